//! A backend in front of the one that is judged: it notes which sandboxes were asked for, and can hide
//! one feature so that its refusal can be seen. It must never change what the other one answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Command, EffectiveLimits, Error, Feature, Files,
    Process, ProcessControl, Result, Sandbox, SandboxId, SnapshotFiles, SnapshotKind, TerminalSize,
};

/// The backend in front.
pub(crate) struct Witness {
    backend: Arc<dyn Backend>,
    capabilities: Capabilities,
    created: Mutex<Vec<SandboxId>>,
    hidden: Option<Feature>,
}

impl Witness {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        capabilities: Capabilities,
        hidden: Option<Feature>,
    ) -> Self {
        Self { backend, capabilities, created: Mutex::default(), hidden }
    }

    fn hide_feature(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        match self.hidden {
            Some(hidden) => Arc::new(Lacking { sandbox, hidden }),
            None => sandbox,
        }
    }

    /// Every sandbox that was ever asked for.
    pub(crate) fn created(&self) -> Vec<SandboxId> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Backend for Witness {
    fn name(&self) -> BackendName {
        self.backend.name()
    }

    async fn probe(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        self.backend.create(id, admitted).await.map(|sandbox| self.hide_feature(sandbox))
    }

    async fn create_from(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        from: &SnapshotFiles,
    ) -> Result<Arc<dyn Sandbox>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        self.backend.create_from(id, admitted, from).await.map(|sandbox| self.hide_feature(sandbox))
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.backend.list().await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.backend.destroy(id).await
    }
}

/// A sandbox that lacks one operation, as a backend that never had it would.
struct Lacking {
    sandbox: Arc<dyn Sandbox>,
    hidden: Feature,
}

impl Lacking {
    fn require_feature(&self, operation: &'static str, feature: Feature) -> Result<&dyn Sandbox> {
        if self.hidden == feature {
            return Err(Error::unsupported(operation, feature));
        }
        Ok(self.sandbox.as_ref())
    }
}

#[async_trait]
impl Sandbox for Lacking {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn alive(&self) -> bool {
        self.sandbox.alive()
    }

    fn is_paused(&self) -> bool {
        self.sandbox.is_paused()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let Process { events, control } = self.sandbox.spawn(command, limits).await?;
        if self.hidden == Feature::Signals {
            return Ok(Process { events, control: Arc::new(Deaf(control)) });
        }
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        self.require_feature("files", Feature::FileTransfer)?.files()
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.require_feature("snapshot", kind.feature())?.snapshot(kind, into).await
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        self.require_feature("restore", from.kind.feature())?.restore(from).await
    }

    async fn pause(&self) -> Result<()> {
        self.require_feature("pause", Feature::Pause)?.pause().await
    }

    async fn resume(&self) -> Result<()> {
        self.require_feature("resume", Feature::Pause)?.resume().await
    }
}

/// The control of a process that signals do not reach.
struct Deaf(Arc<dyn ProcessControl>);

#[async_trait]
impl ProcessControl for Deaf {
    async fn kill(&self) -> Result<()> {
        self.0.kill().await
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        self.0.write_stdin(data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.0.close_stdin().await
    }

    async fn discard_output(&self) {
        self.0.discard_output().await;
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.0.resize(size).await
    }
}
