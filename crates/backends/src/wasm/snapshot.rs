//! Snapshots of a sandbox's writable files: an archive of each place, as every backend makes them.
//! Follows no link. What is mounted belongs to the host and is no part of it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use stockade_core::{Error, ErrorCode, Result, SnapshotFiles, SnapshotKind};
use stockade_fs::{ClosedDirs, list_names};

use super::NAME;
use super::tree::{GuestPlace, GuestTree};
use crate::peer::tree::{self, Side};

/// Staging directory: restored files wait there until all of them have arrived.
const STAGING_DIR_NAME: &str = ".stockade-restored";

const OPEN_DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Captures every directory of the sandbox that can be written to.
pub(super) fn take_snapshot(
    tree: &GuestTree,
    kind: SnapshotKind,
    into: &Path,
    most: u64,
) -> Result<()> {
    if kind == SnapshotKind::Full {
        return Err(Error::unsupported("snapshot", kind.feature()));
    }
    for place in writable_places(tree) {
        let sent = File::create_new(into.join(part_name(place)))
            .map_err(|error| snapshot_error("snapshot", "it cannot be kept").source(error))
            .and_then(|out| write_archive(place, most, out));
        sent?;
    }
    Ok(())
}

fn write_archive(place: &GuestPlace, most: u64, out: File) -> Result<()> {
    let captured = tree::Tree::open(&place.host, Side::Near, most)
        .map_err(tree::TreeError::from)
        .and_then(|mut tree| tree.send(out));
    captured
        .map_err(|error| snapshot_error("snapshot", "the files cannot be captured").source(error))
}

/// Brings a snapshot back: what was made since is gone, what was removed is there. Nothing is removed
/// before all of it has arrived.
pub(super) fn restore_snapshot(tree: &GuestTree, from: &SnapshotFiles, most: u64) -> Result<()> {
    if from.kind == SnapshotKind::Full {
        return Err(Error::unsupported("restore", from.kind.feature()));
    }
    let staged: Result<Vec<_>> =
        writable_places(tree).map(|place| stage_archive(place, from, most)).collect();
    let swapped = staged.and_then(|staged| {
        for (place, _stage) in writable_places(tree).zip(staged) {
            swap_in_staged(place)
                .map_err(|errno| snapshot_error("restore", "the files").source(errno))?;
        }
        Ok(())
    });
    for place in writable_places(tree) {
        let _ = open_dir(&place.host)
            .and_then(|dir| remove_entry(&dir, &CString::new(STAGING_DIR_NAME)?));
    }
    swapped
}

/// Unpacks the archive of one place inside of it.
fn stage_archive(place: &GuestPlace, from: &SnapshotFiles, most: u64) -> Result<()> {
    let failed =
        |error: io::Error| snapshot_error("restore", "the files cannot be unpacked").source(error);
    let dir = open_dir(&place.host).map_err(failed)?;
    CString::new(STAGING_DIR_NAME)
        .map_err(io::Error::from)
        .and_then(|name| remove_entry(&dir, &name))
        .map_err(failed)?;
    mkdirat(&dir, STAGING_DIR_NAME, Mode::RWXU).map_err(|errno| failed(errno.into()))?;
    // What had no such place had nothing in it.
    let Ok(part) = from.get(&part_name(place)) else { return Ok(()) };
    let archive = File::open(part).map_err(failed)?;
    let taken = tree::Tree::open(&place.host.join(STAGING_DIR_NAME), Side::Far, most)
        .map_err(tree::TreeError::from)
        .and_then(|mut tree| tree.take(archive));
    taken.map(drop).map_err(|error| failed(io::Error::other(error)))
}

/// Puts what was staged in the place of what is there.
fn swap_in_staged(place: &GuestPlace) -> io::Result<()> {
    let dir = open_dir(&place.host)?;
    for name in list_names(&dir)? {
        if name.to_bytes() != STAGING_DIR_NAME.as_bytes() {
            remove_entry(&dir, &name)?;
        }
    }
    let staged = openat(&dir, STAGING_DIR_NAME, OPEN_DIR_FLAGS, Mode::empty())?;
    for name in list_names(&staged)? {
        renameat(&staged, &name, &dir, &name)?;
    }
    Ok(unlinkat(&dir, STAGING_DIR_NAME, AtFlags::REMOVEDIR)?)
}

fn writable_places(tree: &GuestTree) -> impl Iterator<Item = &GuestPlace> {
    tree.own_places().filter(|place| !place.read_only)
}

/// What the archive of a place is called.
fn part_name(place: &GuestPlace) -> String {
    place.at.trim_start_matches('/').replace('/', "-")
}

fn snapshot_error(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorCode::System, operation, what).backend(NAME)
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OPEN_DIR_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())?)
}

fn remove_entry(dir: &OwnedFd, name: &CString) -> io::Result<()> {
    Ok(stockade_fs::remove_entry(dir, name, ClosedDirs::Open)?)
}
