//! Locks of the store, shared by all processes: freed by the kernel when their holder ends.
//!
//! `store` is held shared by pulls and imports, and exclusively by whoever removes blobs: a pull counts on blobs
//! that no image names yet. `blob-X` and `make-X` let one process work while others wait. `tree-X` is held shared
//! by each sandbox that uses the tree, and exclusively by whoever removes it.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{AtFlags, OFlags, fstat, statat};
use rustix::io::Errno;
use stockade_fs::{Directory, Locked, Sharing};
use tokio::time::sleep;

use crate::ImageError;

pub(super) const STORE_LOCK: &str = "store";
/// Polling interval while another process holds a lock: the kernel has no call that waits and can be dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The lock of this name if it is free at this instant.
pub(super) fn try_lock(
    locks: &Directory,
    name: &str,
    sharing: Sharing,
) -> Result<Option<Locked>, ImageError> {
    let failed = || ImageError::io("locked", locks.path_of(name));
    loop {
        let file = locks.open(name, OFlags::RDWR | OFlags::CREATE).map_err(failed())?;
        let Ok(locked) = Locked::attempt(file, sharing).map_err(failed())? else {
            return Ok(None);
        };
        if is_current(locks, name, locked.file()).map_err(failed())? {
            return Ok(Some(locked));
        }
    }
}

/// Whether a lock's file still has its name: it may have been removed before it was locked.
fn is_current(locks: &Directory, name: &str, file: &File) -> std::io::Result<bool> {
    match statat(locks, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok(named.st_ino == fstat(file)?.st_ino),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The lock of this name, waited for as long as its holder lives. `waiting` is called once if it has to wait.
pub(super) async fn lock(
    locks: &Directory,
    name: &str,
    sharing: Sharing,
    waiting: impl FnOnce(),
) -> Result<Locked, ImageError> {
    if let Some(locked) = try_lock(locks, name, sharing)? {
        return Ok(locked);
    }
    waiting();
    loop {
        sleep(POLL_INTERVAL).await;
        if let Some(locked) = try_lock(locks, name, sharing)? {
            return Ok(locked);
        }
    }
}

/// Removes the files of locks that are not held.
pub(super) fn remove_unheld(locks: &Directory) -> Result<(), ImageError> {
    let failed = || ImageError::io("removed", locks.path());
    for name in locks.names().map_err(failed())? {
        let is_ours = ["blob-", "make-", "tree-"].iter().any(|prefix| name.starts_with(prefix));
        if is_ours
            && try_lock(locks, &name, Sharing::Exclusive)?.is_some_and(|_held| {
                // Removed while it is held: whoever opened it meanwhile finds that it is not current.
                locks.remove(&name).is_ok()
            })
        {
            continue;
        }
    }
    Ok(())
}
