//! A sandbox of the gvisor backend: the agent's client, with the host's counters and the runtime behind
//! it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, Error, ErrorCode, Files, Parts, Process, ProcessControl, Result,
    Sandbox, SandboxId, SnapshotKind, User,
};
use tokio::sync::Mutex;

use super::NAME;
use super::private::Private;
use super::runsc::Runsc;
use crate::linux::archives::Archives;
use crate::linux::brake::{self, Brake as _, Braked};
use crate::linux::running::Running;
use crate::linux::settle;
use crate::linux::watch::{Watched, held_apart};

/// How long the runtime may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

pub(super) struct GvisorSandbox {
    pub running: Arc<Running>,
    pub client: AgentClient,
    /// Whom everything in it runs as.
    pub user: User,
    pub archives: Archives,
    pub brake: Arc<Brake>,
}

/// Stops and continues everything inside, by asking the runtime.
pub(super) struct Brake {
    pub runsc: Runsc,
    pub private: Private,
    pub id: SandboxId,
    pub stopped: Mutex<bool>,
}

#[async_trait]
impl brake::Brake for Brake {
    async fn set(&self, stop: bool) -> Result<()> {
        let mut stopped = self.stopped.lock().await;
        if *stopped == stop {
            return Ok(());
        }
        self.ask(if stop { "pause" } else { "resume" }).await?;
        *stopped = stop;
        Ok(())
    }
}

impl Brake {
    /// Refuses what needs an answer from inside.
    async fn goes_on(&self, operation: &'static str) -> Result<()> {
        match *self.stopped.lock().await {
            false => Ok(()),
            true => Err(brake::stopped(NAME, operation)),
        }
    }

    async fn ask(&self, verb: &'static str) -> Result<()> {
        let mut command = self.runsc.ask(verb, &self.private, &self.id);
        command.stderr(Stdio::null());
        let mut asked = tokio::process::Command::from(command);
        let failed = |what: String| {
            Error::new(ErrorCode::System, verb, format!("runsc {verb} {what}")).backend(NAME)
        };
        let answer = asked.kill_on_drop(true).status();
        match tokio::time::timeout(ANSWER, answer).await {
            Err(_) => Err(failed(format!("said nothing for {} s", ANSWER.as_secs()))),
            Ok(Err(error)) => Err(failed("cannot be started".into()).source(error)),
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(failed(format!("failed: {status}"))),
        }
    }
}

#[async_trait]
impl Sandbox for GvisorSandbox {
    fn id(&self) -> &SandboxId {
        &self.running.id
    }

    fn alive(&self) -> bool {
        self.client.is_open() && self.running.lives()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = settle(command, self.user);
        let Process { events, control } =
            self.client.spawn(&command, &held_apart(limits, &self.running)).await?;
        let control: Arc<dyn ProcessControl> =
            Arc::new(Braked { control, brake: Arc::clone(&self.brake) as _ });
        let events = Box::new(Watched::new(events, &self.running, &control, limits.cpu_time));
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.client.files())
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.brake.goes_on("snapshot").await?;
        self.archives.take(&self.client, kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.brake.goes_on("restore").await?;
        self.archives.bring_back(&self.client, from).await
    }

    async fn pause(&self) -> Result<()> {
        self.brake.set(true).await
    }

    async fn resume(&self) -> Result<()> {
        self.brake.set(false).await
    }
}
