//! The host's side of a copy: everything through handles, no symbolic link followed below what the
//! caller named, and nothing opened that could block.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use stockade_core::{EntryKind, Error, ErrorCode};

use super::CP_OPERATION;
use crate::umask;

const NOFOLLOW_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens what the caller named, wherever that leads.
pub fn open_named(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Opens a file or directory for reading.
pub fn open_entry(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, OFlags::RDONLY | NOFOLLOW_FLAGS, Mode::empty())?)
}

/// What kind of thing a handle or a name is, and whether it can be executed.
pub fn classify_stat(of: &rustix::fs::Stat) -> (EntryKind, bool) {
    let kind = match FileType::from_raw_mode(of.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => EntryKind::Other,
    };
    (kind, of.st_mode & 0o111 != 0)
}

/// What is at a name, itself and not what it points to.
pub fn classify_name(dir: impl AsFd, name: &OsStr) -> io::Result<EntryKind> {
    Ok(classify_stat(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?).0)
}

/// Where a symbolic link leads; nothing if that is not text.
pub fn read_link(dir: impl AsFd, name: &OsStr) -> io::Result<Option<String>> {
    Ok(rustix::fs::readlinkat(dir, name, Vec::new())?.into_string().ok())
}

/// Makes a symbolic link, in the place of another one if there is one.
pub fn make_link(dir: impl AsFd, name: &OsStr, target: &str) -> io::Result<()> {
    match rustix::fs::symlinkat(target, &dir, name) {
        Err(Errno::EXIST) if classify_name(&dir, name)? == EntryKind::Symlink => {
            rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
            Ok(rustix::fs::symlinkat(target, &dir, name)?)
        }
        made => Ok(made?),
    }
}

/// The names in a directory, in order.
pub fn list_names(dir: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes a directory, or takes the one that is there.
pub fn make_dir(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o777);
    let new = match rustix::fs::mkdirat(&dir, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | NOFOLLOW_FLAGS;
    let made = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    if new {
        umask::give_to_caller(&made, mode)?;
    }
    Ok(made)
}

/// Makes a regular file, or empties the one that is there.
pub fn create_file(dir: impl AsFd, name: &OsStr, executable: bool) -> io::Result<File> {
    let mode = Mode::from_raw_mode(if executable { 0o777 } else { 0o666 });
    let flags = OFlags::WRONLY | NOFOLLOW_FLAGS;
    let new = rustix::fs::openat(&dir, name, flags | OFlags::CREATE | OFlags::EXCL, mode);
    let file: File = match new {
        Ok(new) => {
            umask::give_to_caller(&new, mode)?;
            new.into()
        }
        Err(Errno::EXIST) => rustix::fs::openat(dir, name, flags, Mode::empty())?.into(),
        Err(errno) => return Err(errno.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // Emptied only now: a device or a pipe in its place must not be touched.
    file.set_len(0)?;
    Ok(file)
}

/// A failure at a path of the host.
pub fn host_path_error(what: &'static str, path: &str, error: io::Error) -> Error {
    let code = match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => ErrorCode::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => ErrorCode::Denied,
        Some(_) | None => ErrorCode::System,
    };
    Error::new(code, CP_OPERATION, format!("`{}` cannot be {what}", path.escape_debug()))
        .source(error)
}
