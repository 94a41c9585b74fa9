//! The one sandbox over an agent's pipe: processes, files and snapshots come from the agent's client. Walls and a
//! pipe are enough for it; what else a backend has is added: a monitor of its executions, rules for commands and
//! paths, archives, a freezer.
//!
//! The agent is not trusted: whether a limit was exceeded, its monitor tells.

mod files;
mod host;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::{AgentClient, Limit, ProgramPid};
use stockade_core::{
    CarriedProgram, Command, EffectiveLimits, Error, ExitStatus, Feature, Files, Process, Result,
    Sandbox, SandboxId, SandboxPath, SnapshotFiles, SnapshotKind, User,
};

use crate::linux::archives::Archives;
use crate::linux::freezer::Freezer;
use crate::linux::limit_monitor::process_limits;
use crate::linux::{ended, settle_command};
pub(crate) use files::MappedFiles;
pub(crate) use host::HostMonitor;

/// Who watches the executions of a sandbox: this host's counters, or the peer of a connection. It also keeps
/// a workspace that is copied there the same.
#[async_trait]
pub(crate) trait Monitor: Send + Sync {
    /// Whether what it watches has not ended. Answers at once, without a request.
    fn is_alive(&self) -> bool {
        true
    }

    /// What each process of an execution is held to.
    fn process_limits(&self, limits: &EffectiveLimits) -> Vec<(Limit, u64)> {
        process_limits(limits)
    }

    /// Begins to watch an execution, before the agent hears of it. Dropped without a start, there was none.
    async fn begin(&self, limits: &EffectiveLimits) -> Result<Box<dyn BegunExecution>>;

    /// How an execution has ended that could not be started because the whole sandbox was ended.
    fn ended_with_sandbox(&self) -> Option<ExitStatus> {
        None
    }

    /// Brings what has changed outside to the copy inside.
    async fn push_changes(&self) -> Result<()> {
        Ok(())
    }

    /// Brings what has changed inside to the copy outside.
    async fn pull_changes(&self) -> Result<()> {
        Ok(())
    }

    /// As [`Sandbox::take_carried`].
    fn take_carried(&self) -> Vec<CarriedProgram> {
        Vec::new()
    }
}

/// An execution that is about to start.
pub(crate) trait BegunExecution: Send {
    /// It has started: its process, with limits named at the exit.
    fn watch(self: Box<Self>, started: StartedProgram, process: Process) -> Process;
}

/// What is known of a program that was started.
pub(crate) struct StartedProgram {
    /// The channel that its agent knows it by.
    pub channel: u32,
    /// The process number that it will have inside.
    pub pid: ProgramPid,
    /// Its command line.
    pub arguments: Vec<String>,
}

/// What a backend makes of a command before the agent gets it.
type CommandRule = Box<dyn Fn(&Command) -> Result<Command> + Send + Sync>;

/// A sandbox over an agent's pipe.
pub struct AgentSandbox {
    id: SandboxId,
    client: Arc<AgentClient>,
    command_rule: CommandRule,
    files: Option<Box<dyn Files>>,
    monitor: Option<Arc<dyn Monitor>>,
    archives: Option<Archives>,
    freezer: Option<Arc<Freezer>>,
}

impl AgentSandbox {
    /// One with walls and a pipe, in which everything runs as this user.
    pub fn new(id: &SandboxId, client: impl Into<Arc<AgentClient>>, user: User) -> Self {
        Self {
            id: id.clone(),
            client: client.into(),
            command_rule: Box::new(move |command| Ok(settle_command(command, user))),
            files: None,
            monitor: None,
            archives: None,
            freezer: None,
        }
    }

    /// With another rule for commands.
    pub(crate) fn with_command_rule(
        self,
        rule: impl Fn(&Command) -> Result<Command> + Send + Sync + 'static,
    ) -> Self {
        Self { command_rule: Box::new(rule), ..self }
    }

    /// With other files than the agent's own.
    pub(crate) fn with_files(self, files: impl Files + 'static) -> Self {
        Self { files: Some(Box::new(files)), ..self }
    }

    /// With a monitor that holds executions to their limits.
    pub(crate) fn with_monitor(self, monitor: Arc<dyn Monitor>) -> Self {
        Self { monitor: Some(monitor), ..self }
    }

    /// With snapshots of its files.
    pub(crate) fn with_archives(self, archives: Archives) -> Self {
        Self { archives: Some(archives), ..self }
    }

    /// With a way to stop it where it is.
    pub(crate) fn with_freezer(self, freezer: Arc<Freezer>) -> Self {
        Self { freezer: Some(freezer), ..self }
    }

    /// What a snapshot needs. Refuses one of a sandbox that stands still.
    async fn archives(&self, operation: &'static str, kind: SnapshotKind) -> Result<&Archives> {
        let unsupported = || Error::unsupported(operation, kind.feature());
        let archives = self.archives.as_ref().ok_or_else(unsupported)?;
        if let Some(freezer) = &self.freezer {
            drop(freezer.goes_on(operation).await?);
        }
        if let Some(monitor) = &self.monitor {
            monitor.push_changes().await?;
        }
        Ok(archives)
    }

    async fn set_paused(&self, operation: &'static str, paused: bool) -> Result<()> {
        let unsupported = || Error::unsupported(operation, Feature::Pause);
        self.freezer.as_ref().ok_or_else(unsupported)?.set(paused).await
    }
}

#[async_trait]
impl Sandbox for AgentSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn alive(&self) -> bool {
        self.client.is_open() && self.monitor.as_ref().is_none_or(|monitor| monitor.is_alive())
    }

    fn is_paused(&self) -> bool {
        self.freezer.as_ref().is_some_and(|freezer| freezer.is_paused())
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = (self.command_rule)(command)?;
        let Some(monitor) = &self.monitor else {
            return self.client.spawn(&command, &process_limits(limits)).await;
        };
        let each = monitor.process_limits(limits);
        let begun = monitor.begin(limits).await?;
        let (channel, pid, process) = match self.client.spawn_on_channel(&command, &each).await {
            Ok(started) => started,
            Err(error) if self.client.is_open() => return Err(error),
            // The sandbox was ended for a limit: that is how this command ended.
            Err(error) => {
                return monitor.ended_with_sandbox().map(ended::ended_process).ok_or(error);
            }
        };
        let process = match &self.freezer {
            Some(freezer) => freezer.wrap_process(process),
            None => process,
        };
        let started = StartedProgram { channel, pid, arguments: command.argv() };
        Ok(begun.watch(started, process))
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.files.as_deref().unwrap_or_else(|| self.client.files()))
    }

    async fn open_network(&self) -> Result<Process> {
        self.client.open_network().await
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.archives("snapshot", kind).await?.write_snapshot(&self.client, kind, into).await
    }

    async fn archive_tree(&self, path: &SandboxPath, into: &Path, most: u64) -> Result<()> {
        let archives = self.archives("archive", SnapshotKind::Files).await?;
        archives.write_tree(&self.client, path, into, most).await
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        self.archives("restore", from.kind).await?.bring_back(&self.client, from).await?;
        match &self.monitor {
            Some(monitor) => monitor.pull_changes().await,
            None => Ok(()),
        }
    }

    fn take_carried(&self) -> Vec<CarriedProgram> {
        self.monitor.as_ref().map(|monitor| monitor.take_carried()).unwrap_or_default()
    }

    async fn pause(&self) -> Result<()> {
        self.set_paused("pause", true).await
    }

    async fn resume(&self) -> Result<()> {
        self.set_paused("resume", false).await
    }
}
