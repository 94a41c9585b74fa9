//! Files that appear and change whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What a file survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// The end of this process.
    Process,
    /// The loss of power too. Costs a wait for the disk.
    Power,
}

/// Writes a file by way of a draft in the same directory, with this mode under any umask. What has the draft's
/// name is replaced: it is [`draft_name`](crate::draft_name) where others may write the same file at once, and
/// a fixed one under a lock, so that a process that is killed leaves no more than one.
pub fn write_atomically(
    path: &Path,
    draft: &str,
    bytes: &[u8],
    mode: u32,
    survives: Survives,
) -> io::Result<()> {
    let draft = path.with_file_name(draft);
    write_draft(&draft, bytes, mode, survives)
        .and_then(|()| fs::rename(&draft, path))
        .inspect_err(|_| drop(fs::remove_file(&draft)))?;
    match survives {
        Survives::Process => Ok(()),
        Survives::Power => File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all(),
    }
}

fn write_draft(draft: &Path, bytes: &[u8], mode: u32, survives: Survives) -> io::Result<()> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    match survives {
        Survives::Process => Ok(()),
        Survives::Power => file.sync_data(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_no_draft_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(dir.path().join("draft"), "of one that was killed").unwrap();
        for (bytes, survives) in [("one", Survives::Process), ("two", Survives::Power)] {
            write_atomically(&path, "draft", bytes.as_bytes(), 0o755, survives).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), bytes);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_put_in_place_leaves_no_draft() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir_all(path.join("inside")).unwrap();
        assert!(write_atomically(&path, "draft", b"x", 0o600, Survives::Process).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
