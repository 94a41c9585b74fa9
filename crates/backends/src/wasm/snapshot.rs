//! Snapshots of a sandbox's writable files: copies in its private directory, and back. Follows no link.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, mkdirat, openat, readlinkat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Result, SandboxId, SnapshotId};

use super::NAME;
use super::tree::{Place, Tree};

/// Deeper than anybody works, and far from the end of a stack.
const DEPTH: usize = 256;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Captures every directory that can be written to.
pub(super) fn take(id: &SandboxId, tree: &Tree) -> Result<SnapshotId> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name: SnapshotId = format!("{id}s{number}").parse().map_err(|error| {
        Error::new(ErrorCode::Invalid, "snapshot", "its name").backend(NAME).source(error)
    })?;
    let at = directory(tree, &name);
    let failed = |errno: Errno| fault("snapshot", "the files cannot be captured", errno);
    make(&at).map_err(failed)?;
    for (number, place) in writable(tree) {
        let copy = at.join(number.to_string());
        make(&copy).map_err(failed)?;
        let copied = open(&place.dir, ".").and_then(|from| copy_all(&from, &open(CWD, &copy)?, 0));
        copied.map_err(failed)?;
    }
    Ok(name)
}

/// Brings a snapshot back: what was made since is gone, what was removed is there.
pub(super) fn bring_back(tree: &Tree, snapshot: &SnapshotId) -> Result<()> {
    let at = directory(tree, snapshot);
    if !at.is_dir() {
        let message = format!("there is no snapshot `{snapshot}`");
        return Err(Error::new(ErrorCode::NotFound, "restore", message).backend(NAME));
    }
    for (number, place) in writable(tree) {
        let copied = open(&place.dir, ".").and_then(|to| {
            empty(&to)?;
            copy_all(&open(CWD, at.join(number.to_string()))?, &to, 0)
        });
        copied.map_err(|errno| fault("restore", "the files cannot be brought back", errno))?;
    }
    Ok(())
}

fn directory(tree: &Tree, snapshot: &SnapshotId) -> PathBuf {
    tree.private.join("snapshots").join(snapshot.as_str())
}

fn writable(tree: &Tree) -> impl Iterator<Item = (usize, &Place)> {
    tree.places.iter().enumerate().filter(|(_, place)| !place.read_only)
}

fn fault(operation: &'static str, what: &str, errno: Errno) -> Error {
    Error::new(ErrorCode::System, operation, what).backend(NAME).source(errno)
}

fn make(path: &Path) -> Result<(), Errno> {
    mkdirat(CWD, path, Mode::RWXU)
}

fn open(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(at, name, DIRECTORY, Mode::empty())
}

fn names(dir: &OwnedFd) -> Result<Vec<std::ffi::CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn copy_all(from: &OwnedFd, to: &OwnedFd, depth: usize) -> Result<(), Errno> {
    if depth > DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    for name in names(from)? {
        let found = statat(from, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = Mode::from_raw_mode(found.st_mode & 0o777);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => copy_file(from, to, &name, mode)?,
            FileType::Directory => {
                mkdirat(to, &name, Mode::RWXU)?;
                let below = open(to, &name)?;
                copy_all(&open(from, &name)?, &below, depth + 1)?;
                fchmod(&below, mode)?;
            }
            FileType::Symlink => symlinkat(readlinkat(from, &name, Vec::new())?, to, &name)?,
            // Nothing inside can make these; they hold nothing that could be captured.
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
    }
    Ok(())
}

fn copy_file(from: &OwnedFd, to: &OwnedFd, name: &std::ffi::CStr, mode: Mode) -> Result<(), Errno> {
    let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut source = File::from(openat(from, name, read, Mode::empty())?);
    let mut target = File::from(openat(to, name, write, Mode::RWXU)?);
    io::copy(&mut source, &mut target)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    fchmod(&target, mode)
}

fn empty(dir: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    for name in names(dir)? {
        match unlinkat(dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => {
                let name = name.to_string_lossy().into_owned();
                let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
                stockade_launcher::clear(Path::new(&path))
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
