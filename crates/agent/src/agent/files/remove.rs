//! Removing what is at a path, and putting other contents into a directory.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use stockade_fs::{ClosedDirs, is_mount_point, list_names};

use super::{OperationFailure, Result, Roots};

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
    for name in list_names(&dir).map_err(fail)? {
        if name != with && !is_mount_point(&dir, &name) {
            remove_entry(&dir, &name).map_err(fail)?;
        }
    }
    for name in list_names(&new).map_err(fail)? {
        if !is_mount_point(&dir, &name) {
            renameat(&new, &name, &dir, &name).map_err(fail)?;
        }
    }
    remove_entry(&dir, &with).map_err(fail)
}

/// Never what the guest's own user could not remove.
fn remove_entry(dir: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    stockade_fs::remove_entry(dir, name, ClosedDirs::Refuse)
}
