//! Paths to descriptors, by the kernel alone (C-21, C-22).

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat};
use rustix::io::Errno;
use stockade_fs::open_beneath;

use super::{OperationFailure, Result};

/// The two trees that paths name.
pub struct Roots {
    system: OwnedFd,
    workspace: OwnedFd,
}

impl Roots {
    /// Opens `/` and the workspace's directory.
    pub fn open(workspace: &str) -> rustix::io::Result<Self> {
        let open = |path| openat(CWD, path, DIRECTORY_FLAGS, Mode::empty());
        Ok(Self { system: open("/")?, workspace: open(workspace)? })
    }

    /// The descriptors, for those that have to close all others.
    pub fn fds(&self) -> [&OwnedFd; 2] {
        [&self.system, &self.workspace]
    }

    /// Opens what a path names.
    pub fn open_file(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        if path.starts_with('/') {
            let resolved = open_beneath(&self.system, path, flags, mode, ResolveFlags::IN_ROOT);
            return resolved.map_err(|errno| resolve_failure(path, errno));
        }
        open_within(&self.workspace, path, flags, mode)
    }

    /// Opens a directory, only to start from.
    pub fn open_dir(&self, path: &str) -> Result<OwnedFd> {
        self.open_file(path, DIRECTORY_FLAGS, Mode::empty())
    }

    /// Opens what is at a path, a symbolic link itself included, only to look at.
    pub fn open_to_stat(&self, path: &str) -> Result<OwnedFd> {
        self.open_file(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())
    }

    /// The directory a path's last part is in, and that part.
    pub fn open_parent<'p>(&self, path: &'p str) -> Result<(OwnedFd, &'p str)> {
        let (parent, name) = split_last(path)?;
        Ok((self.open_dir(parent)?, name))
    }
}

/// Flags that are enough to start from, and refuse anything but a directory.
const DIRECTORY_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a path that may not leave this directory.
pub fn open_within(dir: impl AsFd, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let resolved = open_beneath(dir, path, flags, mode, ResolveFlags::BENEATH);
    resolved.map_err(|errno| resolve_failure(path, errno))
}

fn resolve_failure(path: &str, errno: Errno) -> OperationFailure {
    // From here it says that the path left its root; elsewhere, that two file systems are involved.
    if errno == Errno::XDEV {
        OperationFailure::escapes(path)
    } else {
        OperationFailure::new(path, errno)
    }
}

/// Splits off the last part. A path without one (`/`, `.`, `a/..`) names no entry of a directory.
pub fn split_last(path: &str) -> Result<(&str, &str)> {
    let trimmed = path.trim_end_matches('/');
    let (parent, name) = match trimmed.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => (".", trimmed),
    };
    match name {
        "" | "." | ".." => Err(OperationFailure::unsuitable(path, "names no entry of a directory")),
        name => Ok((parent, name)),
    }
}
