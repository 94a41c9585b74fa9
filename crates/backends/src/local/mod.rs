//! No walls at all: the agent as a plain child of this process, with the workspace as its root.
//!
//! For agents' tools when no sandbox is bound, so that commands and files behave and are recorded the
//! same way there. It claims nothing: its boundary is `none`, and a spec has to give every wall up by
//! name. It must never be in a registry that specs choose from.

mod files;
mod running;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use stockade_core::{
    Admitted, BackendName, Boundary, Capabilities, Command, Error, ErrorCode, Feature, HostPath,
    Result, Sandbox, SandboxId, SandboxSpec, Support, Workspace,
};

pub use files::inside;

use running::LocalAgent;

use crate::agent_sandbox::{AgentSandbox, MappedFiles};
use crate::linux::{DEFAULT_USER, lock};
use crate::managed::{Cancellation, Managed, WallBuilder};

/// The name under which local execution is recorded.
pub const NAME: BackendName = BackendName::literal("local");

/// Execution without walls. Its agents end with this value.
pub type Local = Managed<NoWalls>;

/// What starts an agent where others build walls.
#[derive(Default)]
pub struct NoWalls {
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

impl Default for Local {
    fn default() -> Self {
        Self::of(NoWalls::default())
    }
}

/// The workspace is its only directory, and its user the only one.
fn settle_command(command: &Command, workspace: &HostPath) -> Result<Command> {
    let dir = command.dir.as_ref().map(|dir| inside(workspace, dir)).transpose()?;
    Ok(Command { dir, user: None, ..command.clone() })
}

#[async_trait]
impl WallBuilder for NoWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        let nothing = Capabilities::none(NAME, Boundary::None);
        let offered = OFFERED_FEATURES.into_iter();
        offered.fold(nothing, |all, (feature, by)| all.with(feature, Support::full(by)))
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        _: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        let Workspace::Local(workspace) = &admitted.spec().workspace else {
            let message = "local execution needs a local workspace";
            return Err(Error::new(ErrorCode::Invalid, "create", message).backend(NAME));
        };
        let (running, client) = LocalAgent::start(id, workspace.as_path()).await?;
        lock(&self.running).insert(id.clone(), Arc::new(running));
        let (client, root, own) = (Arc::new(client), workspace.clone(), workspace.clone());
        let sandbox = AgentSandbox::new(id, Arc::clone(&client), DEFAULT_USER)
            .with_command_rule(move |command| settle_command(command, &own))
            .with_files(MappedFiles::new(&client, move |path| inside(&root, path)));
        Ok(Arc::new(sandbox))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        let running = lock(&self.running).get(id).cloned();
        match running {
            Some(running) => running.end_agent().await?,
            None => running::end_foreign(id).await,
        }
        lock(&self.running).remove(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(running::find_agents().into_iter().map(|(_, id)| id).collect())
    }
}
