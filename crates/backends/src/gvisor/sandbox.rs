//! A sandbox of the gvisor backend: the agent's client, with the host's counters and the runtime behind
//! it.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, Error, ErrorCode, Files, Process, ProcessControl, Result, Sandbox,
    SandboxId, Signal, SnapshotId, SnapshotKind, TerminalSize, User,
};
use tokio::sync::{Mutex, MutexGuard};

use super::NAME;
use super::private::Private;
use super::runsc::Runsc;
use super::snapshot::Snapshots;
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
    pub snapshots: Snapshots,
    pub brake: Arc<Brake>,
}

/// Stops and continues everything inside, by asking the runtime.
pub(super) struct Brake {
    runsc: Runsc,
    private: Private,
    id: SandboxId,
    /// Whether it is stopped, or about to be.
    stopped: AtomicBool,
    /// Held while that changes, and by those whom it must not change for.
    turn: Mutex<()>,
}

impl Brake {
    pub(super) fn new(runsc: Runsc, private: Private, id: SandboxId) -> Self {
        Self { runsc, private, id, stopped: AtomicBool::new(false), turn: Mutex::new(()) }
    }

    async fn stop(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        if self.stopped.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.ask("pause").await.inspect_err(|_| self.stopped.store(false, Ordering::SeqCst))
    }

    /// Waits for nobody where nothing is stopped: what is to be ended must not.
    async fn release(&self) -> Result<()> {
        if !self.stopped.load(Ordering::SeqCst) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if self.stopped.load(Ordering::SeqCst) {
            self.ask("resume").await?;
            self.stopped.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Keeps it from being stopped. The agent of one that is stopped would never answer.
    async fn running(&self, what: &'static str) -> Result<MutexGuard<'_, ()>> {
        let turn = self.turn.lock().await;
        if !self.stopped.load(Ordering::SeqCst) {
            return Ok(turn);
        }
        let message = format!("sandbox `{}` is paused, and its agent with it", self.id);
        Err(Error::new(ErrorCode::Unavailable, what, message)
            .backend(NAME)
            .remedy("resume it first"))
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

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = settle(command, self.user);
        let Process { events, control } =
            self.client.spawn(&command, &held_apart(limits, &self.running)).await?;
        let control: Arc<dyn ProcessControl> =
            Arc::new(Braked { control, brake: Arc::clone(&self.brake) });
        let events = Box::new(Watched::new(events, &self.running, &control, limits.cpu_time));
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.client.files())
    }

    async fn snapshot(&self, kind: SnapshotKind) -> Result<SnapshotId> {
        match kind {
            SnapshotKind::Files => {
                let _running = self.brake.running("snapshot").await?;
                self.snapshots.take(&self.client).await
            }
            SnapshotKind::Full => Err(Error::unsupported("snapshot", kind.feature())),
        }
    }

    async fn restore(&self, snapshot: &SnapshotId) -> Result<()> {
        let _running = self.brake.running("restore").await?;
        self.snapshots.bring_back(&self.client, snapshot).await
    }

    async fn pause(&self) -> Result<()> {
        self.brake.stop().await
    }

    async fn resume(&self) -> Result<()> {
        self.brake.release().await
    }
}

/// The control of a process whose sandbox may be stopped. What is to end has to run for that: the agent
/// that ends it is stopped as well.
struct Braked {
    control: Arc<dyn ProcessControl>,
    brake: Arc<Brake>,
}

#[async_trait]
impl ProcessControl for Braked {
    async fn kill(&self) -> Result<()> {
        self.brake.release().await?;
        self.control.kill().await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.control.signal(signal).await
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        self.control.write_stdin(data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.control.close_stdin().await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size).await
    }
}
