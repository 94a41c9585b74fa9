//! What the programs of one sandbox may use together: memory, and bytes written to disk.

use std::sync::atomic::{AtomicU64, Ordering};

use stockade_core::EffectiveLimits;
use tokio::sync::{RwLock, watch};

use super::disk_quota::DiskQuota;

/// Disk space charged for a new directory entry, however little it holds.
pub(super) const DIR_ENTRY_BYTES: u64 = 4096;

/// A sandbox's account.
pub(super) struct ResourceAccount {
    memory_left: AtomicU64,
    disk: DiskBalance,
    paused: watch::Sender<bool>,
    /// Held to read while a path is looked at and opened, and to write while one is given another
    /// meaning: so that what was looked at is what is opened.
    pub names: RwLock<()>,
}

/// What may still be written to disk.
enum DiskBalance {
    Own(AtomicU64),
    /// With other processes.
    Shared(DiskQuota),
}

impl ResourceAccount {
    /// An account that only this process knows.
    pub(super) fn new(limits: &EffectiveLimits) -> Self {
        Self::with_disk(
            limits,
            DiskBalance::Own(AtomicU64::new(limits.disk.map_or(u64::MAX, |most| most.0))),
        )
    }

    /// One whose disk is shared with other processes.
    pub(super) fn with_quota(limits: &EffectiveLimits, quota: DiskQuota) -> Self {
        Self::with_disk(limits, DiskBalance::Shared(quota))
    }

    fn with_disk(limits: &EffectiveLimits, disk: DiskBalance) -> Self {
        Self {
            memory_left: AtomicU64::new(limits.memory.map_or(u64::MAX, |most| most.0)),
            disk,
            paused: watch::Sender::new(false),
            names: RwLock::new(()),
        }
    }

    /// Takes that much memory, or none.
    pub(super) fn take_memory(&self, bytes: u64) -> bool {
        reserve_bytes(&self.memory_left, bytes)
    }

    pub(super) fn give_memory(&self, bytes: u64) {
        release_bytes(&self.memory_left, bytes);
    }

    /// Takes room for that much on disk, or none.
    pub(super) fn take_disk(&self, bytes: u64) -> bool {
        match &self.disk {
            DiskBalance::Own(left) => reserve_bytes(left, bytes),
            // A number that cannot be read leaves no room.
            DiskBalance::Shared(quota) => {
                bytes == 0
                    || quota.update_bytes_left(|left| left.checked_sub(bytes)).unwrap_or(false)
            }
        }
    }

    /// Gives back what was not written after all.
    pub(super) fn give_disk(&self, bytes: u64) {
        match &self.disk {
            DiskBalance::Own(left) => release_bytes(left, bytes),
            DiskBalance::Shared(_) if bytes == 0 => {}
            // What cannot be given back counts as written.
            DiskBalance::Shared(quota) => {
                drop(quota.update_bytes_left(|left| Some(left.saturating_add(bytes))))
            }
        }
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    pub(super) fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Whom a paused program waits for; nothing if it may go on.
    pub(super) fn subscribe_if_paused(&self) -> Option<watch::Receiver<bool>> {
        self.is_paused().then(|| self.paused.subscribe())
    }
}

fn reserve_bytes(left: &AtomicU64, bytes: u64) -> bool {
    let taken = |left: u64| left.checked_sub(bytes);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok()
}

fn release_bytes(left: &AtomicU64, bytes: u64) {
    let given = |left: u64| Some(left.saturating_add(bytes));
    let _ = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, given);
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_core::{Bytes, Limits};

    #[test]
    fn accounts_with_one_quota_have_no_more_together_than_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        DiskQuota::create_file(&path, 100).unwrap();
        let limits = Limits { memory: Some(Bytes(10)), ..Limits::default() };
        let account = || ResourceAccount::with_quota(&limits, DiskQuota::open(&path).unwrap());
        let (one, two) = (account(), account());
        assert!(one.take_disk(60));
        assert!(!two.take_disk(60));
        assert!(two.take_disk(30));
        one.give_disk(20);
        // One that is gone without a word has taken what it took.
        drop(one);
        assert!(two.take_disk(30));
        assert!(!account().take_disk(1));
    }
}
