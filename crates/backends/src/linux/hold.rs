//! The right to use the layers of a copy-on-write workspace. The kernel promises nothing about layers
//! that two views write to, so one sandbox at a time gets it; those that only read share it.
//!
//! Whoever wants to know whether layers are in use asks for the same lock on the same directory.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use stockade_core::{BackendName, Error, ErrorCode, Result, SandboxSpec, Workspace};

/// Given up when it is dropped, or with the process that has it.
#[derive(Debug)]
pub(crate) struct Hold(OwnedFd);

impl Drop for Hold {
    fn drop(&mut self) {
        // A child between its birth and its first instruction may have a copy of the descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes the layers of this spec, if it names any.
pub(crate) fn take(backend: &BackendName, spec: &SandboxSpec) -> Result<Option<Hold>> {
    let Workspace::Overlay(layers) = &spec.workspace else { return Ok(None) };
    let how = match spec.read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let work = layers.work.as_path();
    let held = openat(CWD, work, flags, Mode::empty()).and_then(|lock| {
        flock(&lock, how)?;
        Ok(Hold(lock))
    });
    held.map(Some).map_err(|errno| refused(backend, errno, &layers.work.to_string()))
}

fn refused(backend: &BackendName, errno: Errno, work: &str) -> Error {
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
