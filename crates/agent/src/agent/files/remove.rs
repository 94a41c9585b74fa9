//! Removing a tree of any depth without ever following a link or emptying what is mounted in it, and without
//! running out of descriptors.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::mounts::is_mount_point;
use super::{OperationFailure, Result, Roots};

/// The depth from which a directory is moved up to the top before it is emptied.
const MAX_OPEN_DEPTH: usize = 64;
/// How often a directory is emptied that others keep filling.
const MAX_EMPTY_ROUNDS: usize = 1000;

/// Removes everything at a path. Succeeds when nothing is there.
pub fn remove_path(roots: &Roots, path: &str) -> Result<()> {
    let (parent, name) = match roots.open_parent(path) {
        Err(failure) if failure.is_missing() => return Ok(()),
        found => found?,
    };
    let name = CString::new(name).map_err(|_| OperationFailure::new(path, Errno::INVAL))?;
    remove_entry(&parent, &name).map_err(|errno| OperationFailure::new(path, errno))
}

/// Puts what is in `with`, a directory in this one, in the place of all else in it. What is mounted there
/// stays, and nothing takes its place.
pub fn replace_contents(roots: &Roots, path: &str, with: &str) -> Result<()> {
    let fail = |errno| OperationFailure::new(path, errno);
    let dir = roots.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let with = CString::new(with).map_err(|_| fail(Errno::INVAL))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = openat(&dir, &with, flags, Mode::empty()).map_err(fail)?;
    for name in read_names(&dir).map_err(fail)? {
        if name != with && !is_mount_point(&dir, &name) {
            remove_entry(&dir, &name).map_err(fail)?;
        }
    }
    for name in read_names(&new).map_err(fail)? {
        if !is_mount_point(&dir, &name) {
            renameat(&new, &name, &dir, &name).map_err(fail)?;
        }
    }
    remove_entry(&dir, &with).map_err(fail)
}

fn read_names(dir: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let names = Dir::read_from(dir)?.map(|item| item.map(|item| item.file_name().to_owned()));
    let real = |name: &CString| !matches!(name.to_bytes(), b"." | b"..");
    names.filter(|name| name.as_ref().map_or(true, real)).collect()
}

fn remove_entry(dir: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    match (Removal { top: None, moved: 0 }).unlink_entry(dir, name, 0) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

struct Removal {
    /// The tree's own directory, where what lies too deep is moved.
    top: Option<OwnedFd>,
    moved: u64,
}

impl Removal {
    fn unlink_entry(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        depth: usize,
    ) -> rustix::io::Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            // Linux says EISDIR; POSIX allows EPERM.
            Err(Errno::ISDIR | Errno::PERM) => self.remove_tree(parent, name, depth),
            done => done,
        }
    }

    fn remove_tree(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        depth: usize,
    ) -> rustix::io::Result<()> {
        if depth >= MAX_OPEN_DEPTH
            && let Some(top) = &self.top
        {
            self.moved += 1;
            return renameat(parent, name, top, format!(".removed-{}", self.moved));
        }
        if is_mount_point(parent, name) {
            return Err(Errno::BUSY);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(parent, name, flags, Mode::empty())?;
        if self.top.is_none() {
            self.top = Some(rustix::io::fcntl_dupfd_cloexec(&dir, 3)?);
        }
        for _ in 0..MAX_EMPTY_ROUNDS {
            self.empty_dir(&dir, depth)?;
            match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                // Others add to it, or what lay too deep was moved into it.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                done => return done,
            }
        }
        Err(Errno::NOTEMPTY)
    }

    fn empty_dir(&mut self, dir: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
        for item in Dir::read_from(dir)? {
            let item = item?;
            if matches!(item.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            match self.unlink_entry(dir, item.file_name(), depth + 1) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
