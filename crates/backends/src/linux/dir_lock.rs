//! The right to use a directory, such as the layers of a copy-on-write workspace. The kernel promises nothing
//! about layers that two views write to, so one sandbox at a time gets it; those that only read share it.
//!
//! Another process that wants to know whether a directory is in use tries the same lock on it.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use stockade_core::{BackendName, Error, ErrorCode, Result, SandboxSpec, Workspace};

/// Given up when it is dropped, or with the process that has it.
#[derive(Debug)]
pub(crate) struct DirectoryLock(OwnedFd);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // A child between its birth and its first instruction may have a copy of the descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl DirectoryLock {
    /// Shared lock on a directory, for readers; fails at once where another holder has the exclusive one, or
    /// where the directory was removed meanwhile.
    pub(crate) fn lock_shared(directory: &Path) -> rustix::io::Result<Self> {
        Self::lock_by_name(directory, FlockOperation::NonBlockingLockShared)
    }

    /// Exclusive lock on a directory; fails at once where there is another holder.
    pub(crate) fn lock_exclusive(directory: &Path) -> rustix::io::Result<Self> {
        Self::lock_by_name(directory, FlockOperation::NonBlockingLockExclusive)
    }

    /// What has the name after it was locked is what was locked.
    fn lock_by_name(directory: &Path, how: FlockOperation) -> rustix::io::Result<Self> {
        let held = lock_directory(directory, how)?;
        let (named, locked) = (rustix::fs::lstat(directory)?, rustix::fs::fstat(&held.0)?);
        let same = (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino);
        if same { Ok(held) } else { Err(Errno::NOENT) }
    }
}

fn lock_directory(directory: &Path, how: FlockOperation) -> rustix::io::Result<DirectoryLock> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, directory, flags, Mode::empty())?;
    flock(&opened, how)?;
    Ok(DirectoryLock(opened))
}

/// Takes the layers of this spec, if it names any.
pub(crate) fn hold_layers(
    backend: &BackendName,
    spec: &SandboxSpec,
) -> Result<Option<DirectoryLock>> {
    let Workspace::Overlay(layers) = &spec.workspace else { return Ok(None) };
    let how = match spec.read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let held = lock_directory(layers.work.as_path(), how);
    held.map(Some).map_err(|errno| hold_refused(backend, errno, &layers.work.to_string()))
}

fn hold_refused(backend: &BackendName, errno: Errno, work: &str) -> Error {
    let in_use = errno == Errno::WOULDBLOCK;
    let (code, what, remedy) = match in_use {
        true => (
            ErrorCode::Unavailable,
            "is in use by another sandbox",
            "end that sandbox first, or ask for a workspace of its own",
        ),
        false => (ErrorCode::Invalid, "cannot be used", "name a directory that exists"),
    };
    let message = format!("workspace.overlay.work: `{work}` {what}");
    let error = Error::new(code, "create", message).backend(backend.clone()).remedy(remedy);
    if in_use { error } else { error.source(std::io::Error::from(errno)) }
}
