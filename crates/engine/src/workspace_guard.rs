//! The workspace step of the pipeline: acquired before the walls of its sandbox are built, released when they are
//! gone, also after a failure in between.

use std::sync::Arc;

use stockade_core::{
    Error, HeldWorkspace, Result, SandboxId, SandboxSpec, WorkspaceId, WorkspaceSource,
};

use crate::engine::{Engine, EngineInner, lock_mutex};
use crate::lifecycle::RunningSandbox;
use crate::request::SandboxRequest;

/// The workspace that was acquired for a sandbox, if one was.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkspaceSlot(Option<Arc<dyn HeldWorkspace>>);

impl WorkspaceSlot {
    pub(crate) fn get(&self) -> Option<&Arc<dyn HeldWorkspace>> {
        self.0.as_ref()
    }

    pub(crate) async fn release(&self) -> Result<()> {
        match &self.0 {
            Some(held) => held.release().await,
            None => Ok(()),
        }
    }

    /// Releases it after something that failed; answers what the caller is told.
    pub(crate) async fn release_after(&self, error: Error) -> Error {
        self.release().await.err().unwrap_or(error)
    }
}

/// A workspace whose sandbox is yet to be created. If this is dropped before that, it is released.
pub struct WorkspaceGuard {
    inner: Arc<EngineInner>,
    slot: WorkspaceSlot,
}

impl WorkspaceGuard {
    /// Of a sandbox whose spec is taken as it is.
    pub(crate) fn none(inner: &Arc<EngineInner>) -> Self {
        Self { inner: Arc::clone(inner), slot: WorkspaceSlot::default() }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.slot.0.is_none()
    }

    /// Leaves the release to the one who ends the sandbox.
    pub(crate) fn hand_over(mut self) -> WorkspaceSlot {
        std::mem::take(&mut self.slot)
    }

    /// Leaves it to the engine of another process, which builds the sandbox and releases it.
    pub fn leave(self) -> Option<WorkspaceId> {
        self.hand_over().0.map(|held| held.id().clone())
    }

    /// Its id.
    pub fn id(&self) -> Option<&WorkspaceId> {
        self.slot.0.as_ref().map(|held| held.id())
    }

    /// Releases it, since no sandbox came of it.
    pub async fn release(mut self) -> Result<()> {
        let released = self.slot.release().await;
        // Not before: if this future is dropped half-way, the guard tries again.
        self.slot = WorkspaceSlot::default();
        released
    }

    /// Releases it after a step that failed; answers what the caller is told.
    pub(crate) async fn release_after(self, error: Error) -> Error {
        self.release().await.err().unwrap_or(error)
    }
}

impl Drop for WorkspaceGuard {
    fn drop(&mut self) {
        let slot = std::mem::take(&mut self.slot);
        if slot.0.is_none() {
            return;
        }
        // Without a runtime this process is about to end, and what a dead process had is released by the next one.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let release = runtime.spawn(async move { drop(slot.release().await) });
        let mut releases = lock_mutex(&self.inner.releases);
        releases.retain(|release| !release.is_finished());
        releases.push(release);
    }
}

impl Engine {
    /// Acquires a workspace for a sandbox that the engine of another process will build, and puts it into
    /// the spec. A sandbox of this engine gets its own by [`SandboxRequest::workspace`].
    pub async fn acquire_workspace(
        &self,
        source: Arc<dyn WorkspaceSource>,
        spec: &mut SandboxSpec,
    ) -> Result<WorkspaceGuard> {
        self.inner.acquire_workspace(Some(&source), spec).await
    }

    /// The workspace that was acquired for a live sandbox of this engine, if one was.
    pub fn workspace(&self, id: &SandboxId) -> Result<Option<Arc<dyn HeldWorkspace>>> {
        Ok(self.inner.live(id)?.workspace().get().cloned())
    }
}

impl EngineInner {
    /// Acquires the workspace of a request, and puts it into its spec.
    pub(crate) async fn acquire_requested(
        self: &Arc<Self>,
        request: &mut SandboxRequest,
    ) -> Result<WorkspaceGuard> {
        self.acquire_workspace(request.workspace.as_ref(), &mut request.spec).await
    }

    async fn acquire_workspace(
        self: &Arc<Self>,
        source: Option<&Arc<dyn WorkspaceSource>>,
        spec: &mut SandboxSpec,
    ) -> Result<WorkspaceGuard> {
        let mut guard = WorkspaceGuard::none(self);
        if let Some(source) = source {
            let held = source.acquire().await?;
            spec.workspace = held.spec();
            guard.slot = WorkspaceSlot(Some(held));
        }
        Ok(guard)
    }

    /// Waits for the release of workspaces whose callers went away before there was a sandbox.
    pub(crate) async fn finish_releases(&self) {
        let releases = std::mem::take(&mut *lock_mutex(&self.releases));
        for release in releases {
            // What cannot be released stays listed with its changes.
            let _ = release.await;
        }
    }
}

impl RunningSandbox {
    pub(crate) fn set_workspace(&self, workspace: WorkspaceSlot) {
        *lock_mutex(&self.workspace) = workspace;
    }

    pub(crate) fn workspace(&self) -> WorkspaceSlot {
        lock_mutex(&self.workspace).clone()
    }

    /// Releases its workspace. What cannot be released stays listed with its changes.
    pub(crate) async fn release_workspace(&self) {
        let _ = self.workspace().release().await;
    }
}
