//! A sandbox of the landlock backend: the agent's client, with the host's counters behind it.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, EnvName, Files, Process, Result, Sandbox, SandboxId,
};

use super::files::{WorkspaceFiles, from_workspace};
use super::private::LandlockPrivate;
use crate::linux::executions::Program;
use crate::linux::running::Running;
use crate::linux::sandbox::Kernel;
use crate::linux::watch::{Before, Begun, Watched, process_limits};

pub(super) struct LandlockSandbox {
    running: Arc<Running>,
    files: WorkspaceFiles,
    private: LandlockPrivate,
}

impl LandlockSandbox {
    pub(super) fn new(
        running: Arc<Running>,
        client: AgentClient,
        private: LandlockPrivate,
    ) -> Self {
        Self { running, files: WorkspaceFiles(client), private }
    }

    /// Places of its own, and the workspace by its usual path.
    fn settle_command(&self, command: &Command) -> Command {
        let mut command = command.clone();
        let mut default = |name: &str, place: &Path| {
            if let (Ok(name), Some(place)) = (name.parse::<EnvName>(), place.to_str()) {
                command.env.entry(name).or_insert_with(|| place.into());
            }
        };
        default("HOME", &self.private.home());
        default("TMPDIR", &self.private.temporary());
        command.dir = command.dir.as_ref().map(from_workspace);
        command.user = None;
        command
    }
}

#[async_trait]
impl Sandbox for LandlockSandbox {
    fn id(&self) -> &SandboxId {
        &self.running.id
    }

    fn alive(&self) -> bool {
        self.files.0.is_open() && self.running.is_alive()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = self.settle_command(command);
        let before = Before::of(&self.running);
        let (program, Process { events, control }) =
            self.files.0.spawn_with_pid(&command, &process_limits(limits)).await?;
        let begun = Begun { before, program: Program::Told(program), kernel: Kernel::Shared };
        let events = Watched::new(events, &self.running, &control, limits.cpu_time, begun);
        Ok(Process { events: Box::new(events), control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }
}
