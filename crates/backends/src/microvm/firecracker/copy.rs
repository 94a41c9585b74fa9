//! Memory files: large, and mostly holes. Copied by sharing blocks where the file system can, and else
//! without what is not there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::OFlags;

/// Owner of a new file, if not this process's user.
pub(super) type FileOwner = Option<(u32, u32)>;

/// Copies an open file to a name that is not there yet.
pub(super) fn copy_to_new(from: &File, to: &Path, owner: FileOwner) -> io::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    stockade_fs::clone_or_copy(from, &made)?;
    if let Some((uid, gid)) = owner {
        fchown(&made, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Renames, or copies to another file system. The result is this user's alone, mode 0600. What
/// is moved may have been put there by another process: only a file is, and no link is followed.
pub(super) fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    if !found.is_file() || found.nlink() != 1 {
        return Err(io::Error::other("it is not a file of that name alone"));
    }
    match fs::rename(from, to) {
        // Something else may have taken its name meanwhile.
        Ok(()) => take_ownership(to).inspect_err(|_| drop(fs::remove_file(to))),
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy_to_new(&open_regular_file(from)?, to, None)?;
            fs::remove_file(from)
        }
        Err(error) => Err(error),
    }
}

/// Makes a file this user's alone, mode 0600.
pub(super) fn take_ownership(path: &Path) -> io::Result<()> {
    let file = open_regular_file(path)?;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    fchown(&file, Some(own.0), Some(own.1))?;
    Ok(rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))?)
}

/// Opens what is nothing but a file.
fn open_regular_file(path: &Path) -> io::Result<File> {
    // Without waiting: a pipe may have no process at its other end.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_same_holes() {
        let dir = tempfile::tempdir().unwrap();
        let from = File::create_new(dir.path().join("from")).unwrap();
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"in the middle", 33 << 20).unwrap();
        let from = File::open(dir.path().join("from")).unwrap();
        let to = dir.path().join("to");
        copy_to_new(&from, &to, None).unwrap();
        let copied = File::open(&to).unwrap();
        let mut found = [0; 13];
        copied.read_exact_at(&mut found, 33 << 20).unwrap();
        assert_eq!(&found, b"in the middle");
        let size = copied.metadata().unwrap();
        assert_eq!(size.len(), 64 << 20);
        assert!(size.blocks() * 512 < 1 << 20, "{} blocks", size.blocks());
    }

    #[test]
    fn nothing_that_is_there_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        fs::write(&there, "precious").unwrap();
        let from = File::open(&there).unwrap();
        let error = copy_to_new(&from, &there, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&there).unwrap(), b"precious");
    }

    #[test]
    fn what_is_not_a_file_stays_behind_and_no_link_is_followed() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let (here, other) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let precious = here.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
        for there in [here.path(), other.path()] {
            let (from, to) = (here.path().join("from"), there.join("to"));
            std::os::unix::fs::symlink(&precious, &from).unwrap();
            assert!(move_file(&from, &to).is_err());
            let _ = fs::remove_file(&from);
            mknodat(CWD, &from, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
            assert!(move_file(&from, &to).is_err());
            let _ = fs::remove_file(&from);
            assert!(fs::symlink_metadata(&to).is_err());
        }
        assert_eq!(fs::metadata(&precious).unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_file_moves_to_another_file_system_too() {
        let (here, there) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let (from, to) = (here.path().join("from"), there.path().join("to"));
        fs::write(&from, "moved").unwrap();
        move_file(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"moved");
        assert!(!from.exists());
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o600);
    }
}
