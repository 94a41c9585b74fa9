//! Waiting for a descriptor without blocking a thread.
#![allow(
    unsafe_code,
    reason = "registering a descriptor with the runtime is unsafe in its interface"
)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until there is something to read. Leaves the descriptor as it is.
pub(crate) async fn wait_until_readable(fd: impl AsFd) -> io::Result<()> {
    let copy: OwnedFd = fd.as_fd().try_clone_to_owned()?;
    // SAFETY: the copy is open, is always the same descriptor, and lives as long as the registration.
    let registered = unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) }?;
    registered.readable().await.map(drop)
}
