//! Sandboxes that stand and that no caller has taken yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_core::SandboxId;

type MarkTable = HashMap<SandboxId, Arc<()>>;

/// Each with a mark that no other build of the same id has.
#[derive(Debug, Default, Clone)]
pub(super) struct Untaken(Arc<Mutex<MarkTable>>);

impl Untaken {
    fn table(&self) -> MutexGuard<'_, MarkTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It stands.
    pub(super) fn note(&self, id: &SandboxId) -> Arc<()> {
        let mark = Arc::new(());
        self.table().insert(id.clone(), Arc::clone(&mark));
        mark
    }

    /// Takes it. False if it was destroyed meanwhile.
    pub(super) fn take(&self, id: &SandboxId, mark: &Arc<()>) -> bool {
        let mut table = self.table();
        let own = table.get(id).is_some_and(|noted| Arc::ptr_eq(noted, mark));
        if own {
            table.remove(id);
        }
        own
    }

    /// It was destroyed.
    pub(super) fn forget(&self, id: &SandboxId) {
        self.table().remove(id);
    }
}
