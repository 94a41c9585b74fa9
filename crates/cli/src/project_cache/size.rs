//! What a cache takes on disk. Guests have filled it, and others may be filling it meanwhile: no link is followed, and
//! depth, entries and time are bounded. What cannot be counted is told apart, and never taken for little.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::{Errno, Result};
use stockade_core::Bytes;

/// How deep directories are looked into, each by a descriptor: no tool nests its cache deeper.
const MAX_DEPTH: usize = 64;
/// How many entries are looked at: counting so many takes seconds.
const MAX_ENTRIES: u64 = 2_000_000;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The bytes on disk below a directory, counted no further than past the limit; nothing where they cannot be counted.
/// A file with several names counts for each.
pub(super) fn measure_files(path: &Path, limit: Bytes) -> io::Result<Option<u64>> {
    match openat(CWD, path, DIRECTORY_FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => Ok(Some(0)),
        Err(Errno::ACCESS) => Ok(None),
        opened => Ok(count_bytes(opened?, limit.0)?),
    }
}

fn count_bytes(root: OwnedFd, limit: u64) -> Result<Option<u64>> {
    let mut levels = vec![Dir::new(root)?];
    let (mut bytes, mut entries) = (0_u64, 0_u64);
    while let Some(listing) = levels.last_mut() {
        let Some(entry) = listing.read() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let dir = listing.fd()?;
        let found = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            found => found?,
        };
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        bytes = bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        entries += 1;
        if bytes > limit {
            return Ok(Some(bytes));
        }
        if entries > MAX_ENTRIES {
            return Ok(None);
        }
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            match openat(dir, name, DIRECTORY_FLAGS, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(Errno::ACCESS) => return Ok(None),
                Ok(_) if levels.len() >= MAX_DEPTH => return Ok(None),
                opened => levels.push(Dir::new(opened?)?),
            }
        }
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LIMIT: Bytes = Bytes::mib(1);

    #[test]
    fn files_count_by_what_they_take_and_links_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let kept = base.path().join("kept");
        assert_eq!(measure_files(&kept, LIMIT).unwrap(), Some(0));
        fs::create_dir_all(kept.join("a/b")).unwrap();
        fs::write(kept.join("a/b/file"), vec![1_u8; 300_000]).unwrap();
        fs::write(base.path().join("elsewhere"), vec![1_u8; 900_000]).unwrap();
        std::os::unix::fs::symlink(base.path(), kept.join("a/link")).unwrap();
        let size = measure_files(&kept, LIMIT).unwrap().unwrap();
        assert!((300_000..900_000).contains(&size), "{size}");
        assert!(measure_files(&kept, Bytes(1000)).unwrap().unwrap() > 1000);
    }

    #[test]
    fn a_tree_that_is_too_deep_cannot_be_counted() {
        let base = tempfile::tempdir().unwrap();
        let deep = (0..MAX_DEPTH).fold(base.path().to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(measure_files(base.path(), LIMIT).unwrap(), None);
        fs::remove_dir(&deep).unwrap();
        assert!(measure_files(base.path(), LIMIT).unwrap().is_some());
    }
}
