//! Whose turn it is with a sandbox: building one and taking it down never meet (C-32).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stockade_core::{BackendName, Error, ErrorCode, Result, SandboxId};
use tokio::sync::OwnedMutexGuard;

use super::lock;

#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Takes the lock of this id: waits until no other task builds or removes its sandbox.
    pub(crate) async fn take(&self, id: &SandboxId) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(lock(&self.0).entry(id.clone()).or_default());
        turn.lock_owned().await
    }

    /// Nothing is left to take turns with.
    pub(crate) fn forget(&self, id: &SandboxId) {
        lock(&self.0).remove(id);
    }
}

/// Runs something in a task of its own: it completes even if its caller has given up.
pub(crate) async fn to_its_end<T: Send + 'static>(
    backend: BackendName,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        let message = "building the sandbox went wrong";
        Err(Error::new(ErrorCode::System, "create", message).backend(backend).source(error))
    })
}
