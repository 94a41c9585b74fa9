//! What the programs of one sandbox may use together: memory, and bytes written to disk.

use std::sync::atomic::{AtomicU64, Ordering};

use stockade_core::EffectiveLimits;
use tokio::sync::watch;

/// A sandbox's account.
pub(super) struct Account {
    memory_left: AtomicU64,
    disk_left: AtomicU64,
    paused: watch::Sender<bool>,
}

impl Account {
    pub(super) fn new(limits: &EffectiveLimits) -> Self {
        let left = |limit: Option<stockade_core::Bytes>| {
            AtomicU64::new(limit.map_or(u64::MAX, |limit| limit.0))
        };
        Self {
            memory_left: left(limits.memory),
            disk_left: left(limits.disk),
            paused: watch::Sender::new(false),
        }
    }

    /// Takes that much memory, or none.
    pub(super) fn take_memory(&self, bytes: u64) -> bool {
        take(&self.memory_left, bytes)
    }

    pub(super) fn give_memory(&self, bytes: u64) {
        give(&self.memory_left, bytes);
    }

    /// Takes room for that much on disk, or none.
    pub(super) fn take_disk(&self, bytes: u64) -> bool {
        take(&self.disk_left, bytes)
    }

    /// Gives back what was not written after all.
    pub(super) fn give_disk(&self, bytes: u64) {
        give(&self.disk_left, bytes);
    }

    /// What may still be written.
    pub(super) fn disk_left(&self) -> u64 {
        self.disk_left.load(Ordering::SeqCst)
    }

    /// Notes what another process has written on this account.
    pub(super) fn spend_disk(&self, bytes: u64) {
        let spent = |left: u64| Some(left.saturating_sub(bytes));
        let _ = self.disk_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spent);
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// Whom a paused program waits for; nothing if it may go on.
    pub(super) fn paused(&self) -> Option<watch::Receiver<bool>> {
        (*self.paused.borrow()).then(|| self.paused.subscribe())
    }
}

fn take(left: &AtomicU64, bytes: u64) -> bool {
    let taken = |left: u64| left.checked_sub(bytes);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok()
}

fn give(left: &AtomicU64, bytes: u64) {
    let given = |left: u64| Some(left.saturating_add(bytes));
    let _ = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, given);
}
