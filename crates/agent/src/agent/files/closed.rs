//! Entries that their own user has closed to itself, such as a file of mode 0. They are opened by descriptor: a
//! name may lead elsewhere by now. Never opens what belongs to another user.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, statat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use stockade_fs::chmod_descriptor;

const FILE_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file to be read. One that is closed to its own user has its mode again when this returns.
pub fn open_file(dir: &OwnedFd, name: impl Arg + Copy) -> Result<OwnedFd> {
    match openat(dir, name, FILE_FLAGS, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let (file, mode) = open_own(dir, name, FileType::RegularFile, Mode::RUSR)?;
            fchmod(&file, mode)?;
            Ok(file)
        }
        opened => opened,
    }
}

/// A directory whose entries can be listed and opened.
pub struct OpenedDir {
    pub fd: OwnedFd,
    /// Its own mode, if it is open for as long as this lives.
    closed: Option<Mode>,
}

impl OpenedDir {
    /// Opens a directory. If this process is killed before one that is closed to its own user has its mode again,
    /// the directory stays open to that user, and to no other.
    pub fn open(dir: &OwnedFd, name: impl Arg + Copy) -> Result<Self> {
        let opened = openat(dir, name, DIRECTORY_FLAGS, Mode::empty());
        // One that can only be listed cannot be passed through.
        let entered = opened.and_then(|fd| statat(&fd, ".", AtFlags::empty()).map(|_| fd));
        match entered {
            Err(Errno::ACCESS) => {
                let rights = Mode::RUSR | Mode::XUSR;
                let (fd, mode) = open_own(dir, name, FileType::Directory, rights)?;
                Ok(Self { fd, closed: Some(mode) })
            }
            entered => Ok(Self { fd: entered?, closed: None }),
        }
    }
}

impl Drop for OpenedDir {
    fn drop(&mut self) {
        if let Some(mode) = self.closed {
            // It is this user's, whatever has become of it.
            let _ = fchmod(&self.fd, mode);
        }
    }
}

/// Gives the owner these rights to what is at a name, and opens it. Returns the mode that it had. Refused with
/// `EACCES` where that is not possible, as by the plain attempt before.
fn open_own(
    dir: &OwnedFd,
    name: impl Arg,
    kind: FileType,
    rights: Mode,
) -> Result<(OwnedFd, Mode)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let seen = openat(dir, name, flags, Mode::empty())?;
    let stat = fstat(&seen)?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    if !is_own || FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(Errno::ACCESS);
    }
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    chmod_descriptor(&seen, mode | rights).map_err(|_| Errno::ACCESS)?;
    let opened = reopen(&seen);
    if opened.is_err() {
        let _ = chmod_descriptor(&seen, mode);
    }
    Ok((opened.map_err(|_| Errno::ACCESS)?, mode))
}

/// Opens what a descriptor stands for that was opened only to look.
fn reopen(seen: &OwnedFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", seen.as_raw_fd());
    // The name in `/proc` is a link that has to be followed.
    openat(CWD, path, FILE_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())
}
