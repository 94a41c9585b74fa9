//! No walls at all: the agent as a plain child of this process, with the workspace as its root.
//!
//! For agents' tools when no sandbox is bound, so that commands and files behave and are recorded the
//! same way there. It claims nothing: its boundary is `none`, and a spec has to give every wall up by
//! name. It must never be in a registry that specs choose from.

mod files;
mod running;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Command, EffectiveLimits, Error,
    ErrorCode, Feature, Files, HostPath, Process, Result, Sandbox, SandboxId, SandboxSpec, Support,
    Workspace,
};

pub use files::inside;

use files::LocalFiles;
use running::LocalAgent;

use crate::linux::watch::process_limits;

/// The name under which local execution is recorded.
pub const NAME: BackendName = BackendName::literal("local");

/// Execution without walls.
#[derive(Default)]
pub struct Local {
    running: Mutex<HashMap<SandboxId, Arc<LocalAgent>>>,
}

/// The spec of local execution in a directory: every wall given up by name.
pub fn spec(workspace: HostPath) -> SandboxSpec {
    SandboxSpec {
        backend: stockade_core::BackendChoice::Named(NAME),
        workspace: Workspace::Local(workspace),
        without: ISOLATION_FEATURES.into_iter().collect(),
        ..SandboxSpec::default()
    }
}

/// Isolation features that every other backend has.
const ISOLATION_FEATURES: [Feature; 4] = [
    Feature::FilesystemIsolation,
    Feature::ProcessIsolation,
    Feature::NetworkIsolation,
    Feature::CompleteKill,
];

/// Features that a plain child process has too.
const OFFERED_FEATURES: [(Feature, &str); 8] = [
    (Feature::HostImage, "it is the host itself"),
    (Feature::LocalWorkspace, "the directory itself"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's pump"),
    (Feature::Stdin, "a pipe"),
    (Feature::Terminal, "a pseudo-terminal"),
    (Feature::Signals, "signals to every descendant"),
    (Feature::FileTransfer, "the agent"),
];

impl Local {
    fn running(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<LocalAgent>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Local {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        let nothing = Capabilities::none(NAME, Boundary::None);
        let offered = OFFERED_FEATURES.into_iter();
        offered.fold(nothing, |all, (feature, by)| all.with(feature, Support::full(by)))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        let Workspace::Local(workspace) = &admitted.spec().workspace else {
            let message = "local execution needs a local workspace";
            return Err(Error::new(ErrorCode::Invalid, "create", message).backend(NAME));
        };
        let (running, client) = LocalAgent::start(id, workspace.as_path()).await?;
        let running = Arc::new(running);
        self.running().insert(id.clone(), Arc::clone(&running));
        let files = LocalFiles::new(client, workspace);
        Ok(Arc::new(LocalSandbox { id: id.clone(), files, _running: running }))
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(running::find_agents().into_iter().map(|(_, id)| id).collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let running = self.running().get(id).cloned();
        match running {
            Some(running) => running.end_agent().await?,
            None => running::end_foreign(id).await,
        }
        self.running().remove(id);
        Ok(())
    }
}

struct LocalSandbox {
    id: SandboxId,
    files: LocalFiles,
    _running: Arc<LocalAgent>,
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn alive(&self) -> bool {
        self.files.client.is_open()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let mut command = command.clone();
        if let Some(dir) = &command.dir {
            command.dir = Some(self.files.resolve_inside(dir)?);
        }
        command.user = None;
        self.files.client.spawn(&command, &process_limits(limits)).await
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }
}
