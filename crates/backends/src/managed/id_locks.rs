//! One lock for each sandbox id: building a sandbox and taking it down never meet (C-32).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_core::SandboxId;
use tokio::sync::OwnedMutexGuard;

type LockTable = HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>;

/// The locks that are held or waited for; no other takes memory.
#[derive(Debug, Default, Clone)]
pub(super) struct IdLocks(Arc<Mutex<LockTable>>);

/// The lock of one id. Released when it is dropped.
#[derive(Debug)]
pub(super) struct IdLock {
    locks: IdLocks,
    id: SandboxId,
    held: Option<OwnedMutexGuard<()>>,
}

impl IdLocks {
    /// Waits until no other task builds or removes the sandbox of this id.
    pub(super) async fn lock(&self, id: &SandboxId) -> IdLock {
        let mut lock = IdLock { locks: self.clone(), id: id.clone(), held: None };
        lock.lock_again().await;
        lock
    }

    fn table(&self) -> MutexGuard<'_, LockTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdLock {
    /// Whose lock it is.
    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Takes it once more after `release`.
    pub(super) async fn lock_again(&mut self) {
        let one = Arc::clone(self.locks.table().entry(self.id.clone()).or_default());
        self.held = Some(one.lock_owned().await);
    }

    /// Lets others have it.
    pub(super) fn release(&mut self) {
        let mut table = self.locks.table();
        self.held = None;
        // Under the table's lock: no other task can begin to wait for an entry that is removed.
        if table.get(&self.id).is_some_and(|one| Arc::strong_count(one) == 1) {
            table.remove(&self.id);
        }
    }
}

impl Drop for IdLock {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_that_nobody_holds_or_waits_for_takes_no_memory() {
        let (locks, id): (_, SandboxId) = (IdLocks::default(), "a".parse().unwrap());
        let held = locks.lock(&id).await;
        let waiting = tokio::spawn({
            let (locks, id) = (locks.clone(), id.clone());
            async move { drop(locks.lock(&id).await) }
        });
        let mut given_up = Box::pin(locks.lock(&id));
        tokio::select! {
            biased;
            _ = &mut given_up => panic!("two hold it"),
            () = tokio::task::yield_now() => {}
        }
        drop(given_up);
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap();
        assert!(locks.table().is_empty());
    }
}
