//! Removes trees that a guest made: of any depth, with any names, with directories that forbid it.
//! Never follows a symbolic link and never leaves the directory that was named.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, Result as SysResult};

use crate::tree::list_names;

/// Recursion depth below which directories are moved up to the top.
const MAX_RECURSION_DEPTH: usize = 128;
/// Attempts to find a free name for a directory that is moved up.
const MAX_RENAME_ATTEMPTS: usize = 64;

/// Removes what has this name in a directory. Nothing there is no error.
pub(crate) fn remove_entry(dir: &impl AsFd, name: &[u8]) -> SysResult<()> {
    match unlink_entry(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let Some(top) = open_for_removal(dir, name)? else { return Ok(()) };
    // What is nested too deeply lands beside the rest and is met again in the next round.
    while remove_contents(&top, &top, 0)? {}
    ignore_missing(unlink_entry(dir, name, AtFlags::REMOVEDIR))
}

/// Removes everything in a directory; says whether something was moved up meanwhile.
fn remove_contents(top: &OwnedFd, dir: &OwnedFd, depth: usize) -> SysResult<bool> {
    let mut moved = false;
    for name in list_names(dir)? {
        match unlink_entry(dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        if depth >= MAX_RECURSION_DEPTH {
            move_up(top, dir, &name)?;
            moved = true;
            continue;
        }
        let Some(below) = open_for_removal(dir, &name)? else { continue };
        moved |= remove_contents(top, &below, depth + 1)?;
        ignore_missing(unlink_entry(dir, &name, AtFlags::REMOVEDIR))?;
    }
    Ok(moved)
}

fn move_up(top: &OwnedFd, dir: &OwnedFd, name: &[u8]) -> SysResult<()> {
    for attempt in 0..MAX_RENAME_ATTEMPTS {
        let free = format!(".deep-{attempt}-{}", stockade_fs::draft_name("d"));
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(dir, OsStr::from_bytes(name), top, free.as_str(), flags) {
            Err(Errno::EXIST) => {}
            done => return done,
        }
    }
    Err(Errno::EXIST)
}

fn open_for_removal(dir: &impl AsFd, name: &[u8]) -> SysResult<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty());
    let fd = match open() {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ACCESS) => {
            restore_owner_access(dir, name)?;
            open()?
        }
        Err(errno) => return Err(errno),
    };
    let mode = rustix::fs::fstat(&fd)?.st_mode;
    if mode & 0o700 != 0o700 {
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o700))?;
    }
    Ok(Some(fd))
}

/// Gives the owner back a directory that its mode closes to them.
fn restore_owner_access(dir: &impl AsFd, name: &[u8]) -> SysResult<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty())?;
    chmod_descriptor(&fd, 0o700)
}

/// Sets the mode of what a descriptor stands for, even one that was opened only to look.
pub(crate) fn chmod_descriptor(fd: &OwnedFd, mode: u32) -> SysResult<()> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

fn unlink_entry(dir: &impl AsFd, name: &[u8], flags: AtFlags) -> SysResult<()> {
    rustix::fs::unlinkat(dir, OsStr::from_bytes(name), flags)
}

fn ignore_missing(result: SysResult<()>) -> SysResult<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_deep_tree_with_closed_directories_and_links_is_removed_alone() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("kept"), "kept").unwrap();
        let mut dir = place.path().join("tree");
        std::fs::create_dir(&dir).unwrap();
        symlink(place.path(), dir.join("out")).unwrap();
        std::fs::create_dir(dir.join("closed")).unwrap();
        std::fs::write(dir.join("closed/x"), "x").unwrap();
        std::fs::set_permissions(dir.join("closed"), PermissionsExt::from_mode(0o0)).unwrap();
        for _ in 0..700 {
            dir.push("d");
            std::fs::create_dir(&dir).unwrap();
        }
        let fd = rustix::fs::open(place.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        remove_entry(&fd, b"tree").unwrap();
        remove_entry(&fd, b"tree").unwrap();
        assert_eq!(list_names(&fd).unwrap(), [b"kept"]);
    }
}
