//! A sandbox behind whose walls an agent runs: its client, with the host's counters behind it. The same for
//! every backend that hands back an agent's pipe.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, ExitStatus, Files, LimitKind, Parts, Process, ProcessControl, Result,
    Sandbox, SandboxId, SnapshotKind, User,
};

use super::archives::Archives;
use super::brake::{Brake, Braked};
use super::executions::Program;
use super::running::Running;
use super::watch::{Before, Begun, Watched, held_apart, process_limits};
use super::{ended, settle_command};

/// Whose clock tells what a command has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The host's own.
    Shared,
    /// One between the guest and the host.
    Apart,
}

pub(crate) struct LinuxSandbox {
    pub running: Arc<Running>,
    pub client: AgentClient,
    /// Whom everything in it runs as.
    pub user: User,
    pub archives: Archives,
    pub brake: Arc<Brake>,
    pub kernel: Kernel,
}

#[async_trait]
impl Sandbox for LinuxSandbox {
    fn id(&self) -> &SandboxId {
        &self.running.id
    }

    fn alive(&self) -> bool {
        self.client.is_open() && self.running.is_alive()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = settle_command(command, self.user);
        let each = match self.kernel {
            Kernel::Shared => process_limits(limits),
            Kernel::Apart => held_apart(limits, &self.running),
        };
        let before = Before::of(&self.running);
        let (program, Process { events, control }) =
            match self.client.spawn_with_pid(&command, &each).await {
                Ok(started) => started,
                // The kernel has ended the sandbox for want of memory: that is how this command ended.
                Err(_) if !self.client.is_open() && self.running.has_unjudged_oom_kill() => {
                    return Ok(ended::ended_process(ExitStatus::LimitExceeded(LimitKind::Memory)));
                }
                Err(error) => return Err(error),
            };
        let brake = Arc::clone(&self.brake);
        let control: Arc<dyn ProcessControl> = Arc::new(Braked { control, brake });
        let program = match self.kernel {
            Kernel::Shared => Program::Told(program),
            Kernel::Apart => Program::Unknown,
        };
        let begun = Begun { before, program, kernel: self.kernel };
        let events = Watched::new(events, &self.running, &control, limits.cpu_time, begun);
        Ok(Process { events: Box::new(events), control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.client.files())
    }

    async fn open_network(&self) -> Result<Process> {
        self.client.open_network().await
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        drop(self.brake.goes_on("snapshot").await?);
        self.archives.write_snapshot(&self.client, kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        drop(self.brake.goes_on("restore").await?);
        self.archives.bring_back(&self.client, from).await
    }

    async fn pause(&self) -> Result<()> {
        self.brake.set(true).await
    }

    async fn resume(&self) -> Result<()> {
        self.brake.set(false).await
    }
}
