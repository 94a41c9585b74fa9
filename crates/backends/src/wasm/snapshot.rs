//! Snapshots of a sandbox's writable files: an archive of each place, as every backend makes them.
//! Follows no link. What is mounted belongs to the host and is no part of it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Parts, Result, SnapshotKind};

use super::NAME;
use super::tree::{Place, Tree};
use crate::across::tree::{self, Side};

/// Staging directory: restored files wait there until all of them have arrived.
const STAGING_DIR_NAME: &str = ".stockade-restored";

const OPEN_DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Captures every directory of the sandbox that can be written to.
pub(super) fn take(tree: &Tree, kind: SnapshotKind, into: &Path, most: u64) -> Result<()> {
    if kind == SnapshotKind::Full {
        return Err(Error::unsupported("snapshot", kind.feature()));
    }
    for place in writable(tree) {
        let sent = File::create_new(into.join(part(place)))
            .map_err(|error| failed("snapshot", "it cannot be kept").source(error))
            .and_then(|out| send(place, most, out));
        sent?;
    }
    Ok(())
}

fn send(place: &Place, most: u64, out: File) -> Result<()> {
    let captured = tree::Tree::open(&place.host, Side::Near, most)
        .map_err(tree::TreeError::from)
        .and_then(|mut tree| tree.send(out));
    captured.map_err(|error| failed("snapshot", "the files cannot be captured").source(error))
}

/// Brings a snapshot back: what was made since is gone, what was removed is there. Nothing is removed
/// before all of it has arrived.
pub(super) fn bring_back(tree: &Tree, from: &Parts, most: u64) -> Result<()> {
    if from.kind == SnapshotKind::Full {
        return Err(Error::unsupported("restore", from.kind.feature()));
    }
    let staged: Result<Vec<_>> = writable(tree).map(|place| stage(place, from, most)).collect();
    let swapped = staged.and_then(|staged| {
        for (place, _stage) in writable(tree).zip(staged) {
            swap(place).map_err(|errno| failed("restore", "the files").source(errno))?;
        }
        Ok(())
    });
    for place in writable(tree) {
        let _ = open(&place.host).and_then(|dir| remove(&dir, &CString::new(STAGING_DIR_NAME)?));
    }
    swapped
}

/// Unpacks the archive of one place inside of it.
fn stage(place: &Place, from: &Parts, most: u64) -> Result<()> {
    let failed = |error: io::Error| failed("restore", "the files cannot be unpacked").source(error);
    let dir = open(&place.host).map_err(failed)?;
    CString::new(STAGING_DIR_NAME)
        .map_err(io::Error::from)
        .and_then(|name| remove(&dir, &name))
        .map_err(failed)?;
    mkdirat(&dir, STAGING_DIR_NAME, Mode::RWXU).map_err(|errno| failed(errno.into()))?;
    // What had no such place had nothing in it.
    let Ok(part) = from.get(&part(place)) else { return Ok(()) };
    let archive = File::open(part).map_err(failed)?;
    let taken = tree::Tree::open(&place.host.join(STAGING_DIR_NAME), Side::Far, most)
        .map_err(tree::TreeError::from)
        .and_then(|mut tree| tree.take(archive));
    taken.map(drop).map_err(|error| failed(io::Error::other(error)))
}

/// Puts what was staged in the place of what is there.
fn swap(place: &Place) -> io::Result<()> {
    let dir = open(&place.host)?;
    for name in names(&dir)? {
        if name.to_bytes() != STAGING_DIR_NAME.as_bytes() {
            remove(&dir, &name)?;
        }
    }
    let staged = openat(&dir, STAGING_DIR_NAME, OPEN_DIR_FLAGS, Mode::empty())?;
    for name in names(&staged)? {
        renameat(&staged, &name, &dir, &name)?;
    }
    Ok(unlinkat(&dir, STAGING_DIR_NAME, AtFlags::REMOVEDIR)?)
}

fn writable(tree: &Tree) -> impl Iterator<Item = &Place> {
    tree.own().filter(|place| !place.read_only)
}

/// What the archive of a place is called.
fn part(place: &Place) -> String {
    place.at.trim_start_matches('/').replace('/', "-")
}

fn failed(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorCode::System, operation, what).backend(NAME)
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OPEN_DIR_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())?)
}

fn names(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn remove(dir: &OwnedFd, name: &CString) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {
            let name = name.to_string_lossy().into_owned();
            let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
            stockade_launcher::clear(Path::new(&path))
        }
        Err(errno) => Err(errno.into()),
    }
}
