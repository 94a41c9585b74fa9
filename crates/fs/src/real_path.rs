//! Paths behind all symbolic links.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, readlink};

/// What the kernel appends to the path of a file that has none any more.
const DELETED_SUFFIX: &[u8] = b" (deleted)";

/// Resolves all symbolic links of a path, as `std::fs::canonicalize` does, which asks the kernel about each
/// component of it. Here the kernel resolves the path as a whole, and is asked what it found.
pub fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref();
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match read_descriptor_path(&file) {
        Some(found) => Ok(found),
        None => path.canonicalize(),
    }
}

/// The path of an open file; none where the kernel does not know one, or `/proc` is not mounted.
fn read_descriptor_path(file: &OwnedFd) -> Option<PathBuf> {
    let link = readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).ok()?;
    let bytes = link.into_bytes();
    let known = bytes.starts_with(b"/") && !bytes.ends_with(DELETED_SUFFIX);
    known.then(|| OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_resolved_as_the_standard_library_resolves_them() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        fs::create_dir(base.join("dir")).unwrap();
        for name in ["dir/file", "dir/new\nline", "dir/gone (deleted)"] {
            fs::write(base.join(name), "").unwrap();
        }
        symlink("dir", base.join("link")).unwrap();
        symlink("dir/file", base.join("to-file")).unwrap();
        symlink("absent", base.join("dangling")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        let names = [
            "",
            ".",
            "dir/",
            "dir/../link/./file",
            "link",
            "link/file",
            "link/new\nline",
            "to-file",
            "to-file/beyond",
            "dir/gone (deleted)",
            "dangling",
            "loop",
            "absent",
        ];
        for name in names {
            let path = base.join(name);
            let (found, expected) = (canonicalize(&path), path.canonicalize());
            let kind = |result: &io::Result<PathBuf>| result.as_ref().err().map(io::Error::kind);
            assert_eq!(kind(&found), kind(&expected), "{name:?}");
            assert_eq!(found.ok(), expected.ok(), "{name:?}");
        }
        assert_eq!(canonicalize("/").unwrap(), Path::new("/"));
        assert_eq!(canonicalize(".").unwrap(), Path::new(".").canonicalize().unwrap());
    }
}
