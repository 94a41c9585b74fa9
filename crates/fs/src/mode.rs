//! Modes, by descriptor.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::Mode;

/// Sets the mode of what a descriptor stands for, even one that was opened only to look (`O_PATH`), which
/// `fchmod` refuses. Never follows a name that may be something else by now.
pub fn chmod_descriptor(fd: impl AsFd, mode: Mode) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::chmod(path, mode)
}
