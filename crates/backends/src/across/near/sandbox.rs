//! A sandbox that another host or machine builds: the agent's client over the connection, and the counts of
//! the other side behind it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, Exit, ExitStatus, Files, Parts, Process, ProcessControl,
    ProcessEvent, ProcessEvents, Result, Sandbox, SandboxId, Signal, SnapshotKind, TerminalSize,
    User,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::bridge::Bridge;
use super::files::Synced;
use super::link::Link;
use super::{Connection, DEADLINE};
use crate::across::guest::Identity;
use crate::across::words::{Ask, How, Tell};
use crate::linux::archives::Archives;
use crate::linux::settle;
use crate::linux::watch::held;

/// The last numbers that were used: none is used twice, by copies neither.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Numbers {
    /// Whose they are.
    pub of: SandboxId,
    pub channels: u32,
    pub executions: u32,
}

/// A sandbox that another host or machine builds.
pub(crate) struct FarSandbox {
    id: SandboxId,
    user: User,
    bridge: Arc<Bridge>,
    client: Arc<AgentClient>,
    files: Synced,
    archives: Archives,
    last: AtomicU32,
}

impl FarSandbox {
    pub fn new(
        id: SandboxId,
        user: User,
        bridge: Arc<Bridge>,
        client: AgentClient,
        archives: Archives,
        used: u32,
    ) -> Self {
        let client = Arc::new(client);
        let files = Synced::new(Arc::clone(&client), Arc::clone(&bridge));
        Self { id, user, bridge, client, files, archives, last: AtomicU32::new(used) }
    }

    /// The connection.
    pub fn link(&self) -> Arc<Link> {
        self.bridge.link()
    }

    /// What was used up so far.
    pub fn numbers(&self) -> Numbers {
        let executions = self.last.load(Ordering::Relaxed);
        Numbers { of: self.id.clone(), channels: self.client.last_channel(), executions }
    }

    /// What has changed here is there too.
    pub async fn push(&self) -> Result<()> {
        self.bridge.push().await
    }

    /// Goes on with a machine that is as the one was of which this had used so much. What ran then goes on;
    /// what began later is gone.
    pub async fn go_back(
        &self,
        connection: Connection,
        identity: Identity,
        used: Numbers,
    ) -> Result<()> {
        self.bridge.push().await?;
        // Whoever learns of an end on the way asks the machine that there is then.
        let before = self.bridge.turn().await;
        let (link, pipe) = Link::new(before.link().peer().clone(), connection);
        let asked = Ask::Become { identity: Box::new(identity), shared: self.bridge.is_shared() };
        link.turn().await.ask("restore", &asked, None).await.map(drop)?;
        let own = used.of == self.id;
        link.inherit(before.link(), |execution| own && execution < used.executions);
        let (reader, writer) = tokio::io::split(pipe);
        self.client.go_back(reader, writer, DEADLINE, (used.channels, own)).await?;
        self.last.fetch_max(used.executions, Ordering::Relaxed);
        self.bridge.replace(before, link).await
    }
}

#[async_trait]
impl Sandbox for FarSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn alive(&self) -> bool {
        self.client.is_open()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        self.bridge.push().await?;
        let execution = self.last.fetch_add(1, Ordering::Relaxed);
        let watch = Ask::Watch { execution, cpu_time: limits.cpu_time };
        let watched = Watched { bridge: Arc::clone(&self.bridge), execution, over: false };
        self.bridge.link().expect(execution);
        // Before the agent hears of it: what is sent first arrives first.
        self.bridge.link().say(&watch).await?;
        let command = settle(command, self.user);
        let Process { events, control } = self.client.spawn(&command, &held(limits)).await?;
        self.bridge.link().control(execution, &control);
        let (over, ended) = watch::channel(false);
        let killed = Arc::<AtomicBool>::default();
        let control = Control { inner: control, ended, killed: Arc::clone(&killed) };
        let events = Events { inner: events, watched, ending: None, over, killed };
        Ok(Process { events: Box::new(events), control: Arc::new(control) })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }

    /// The archives come by the agent's pipe, as on every other backend: the other side is asked for
    /// nothing, names no part, and sends no more than the disk limit allows.
    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.bridge.push().await?;
        self.archives.take(&self.client, kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.bridge.push().await?;
        self.archives.bring_back(&self.client, from).await?;
        self.bridge.pull().await
    }
}

/// An execution that the other side watches, until it is told of the end.
struct Watched {
    bridge: Arc<Bridge>,
    execution: u32,
    over: bool,
}

impl Watched {
    /// Names the limit that ended it, and brings back what it has changed, before anybody learns that it
    /// is over.
    fn end(&mut self, exit: Exit) -> JoinHandle<Exit> {
        self.over = true;
        let (bridge, execution) = (Arc::clone(&self.bridge), self.execution);
        tokio::spawn(async move {
            let turn = bridge.turn().await;
            let link = Arc::clone(turn.link());
            if link.is_gone(execution) {
                link.forget(execution);
                return exit;
            }
            let ask = Ask::Ended { execution, how: How::of(&exit.status) };
            let told = bridge.ask_in(turn, "take the changes over", &ask).await;
            link.forget(execution);
            let verdict = match told {
                Ok(Tell::Judged(verdict)) => verdict,
                Ok(Tell::Done { .. } | Tell::Failed(_) | Tell::Kill { .. }) => {
                    return lost(exit, "the other side does not say how it ended");
                }
                Err(error) => return lost(exit, error.message()),
            };
            match bridge.together() {
                // What a program that was ended half-way leaves is told of at the end.
                Err(error) if verdict.limit.is_none() => lost(exit, error.message()),
                Ok(()) | Err(_) => verdict.over(exit),
            }
        })
    }
}

/// A program whose changes are not here has not come to its end for whoever asked for it.
fn lost(exit: Exit, why: &str) -> Exit {
    let status = match &exit.status {
        ExitStatus::Exited(code) => ExitStatus::Lost(format!("{why}; it had exited with {code}")),
        ExitStatus::Signalled(signal) => {
            ExitStatus::Lost(format!("{why}; it had ended by {}", signal.name()))
        }
        ExitStatus::StartFailed(_) | ExitStatus::LimitExceeded(_) => exit.status.clone(),
        ExitStatus::Lost(_) => ExitStatus::Lost(why.to_owned()),
    };
    Exit { status, ..exit }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.over && tokio::runtime::Handle::try_current().is_ok() {
            drop(self.end(ExitStatus::Lost(String::new()).into()));
        }
    }
}

struct Events {
    inner: Box<dyn ProcessEvents>,
    watched: Watched,
    ending: Option<JoinHandle<Exit>>,
    /// Says that only the changes are waited for.
    over: watch::Sender<bool>,
    /// Whether it was ended from here: then its exit says nothing to anybody.
    killed: Arc<AtomicBool>,
}

#[async_trait]
impl ProcessEvents for Events {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.ending.is_none() {
            match self.inner.next().await {
                Some(ProcessEvent::Exit(exit)) => {
                    self.over.send_replace(true);
                    self.ending = Some(self.watched.end(exit));
                }
                other => return other,
            }
        }
        let exit = self.ending.as_mut()?.await;
        self.ending = None;
        let exit = exit.unwrap_or_else(|error| ExitStatus::Lost(error.to_string()).into());
        let killed = self.killed.load(Ordering::Relaxed);
        if matches!(exit.status, ExitStatus::Lost(_)) && !killed {
            self.watched.bridge.told();
        }
        Some(ProcessEvent::Exit(exit))
    }
}

/// The agent's control of an execution, and whether it is over.
struct Control {
    inner: Arc<dyn ProcessControl>,
    ended: watch::Receiver<bool>,
    killed: Arc<AtomicBool>,
}

#[async_trait]
impl ProcessControl for Control {
    async fn kill(&self) -> Result<()> {
        self.killed.store(true, Ordering::Relaxed);
        self.inner.kill().await
    }

    /// Bringing back what it has changed is not its time.
    async fn ended(&self) {
        // Whoever watched it is gone: then it is over too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.inner.signal(signal).await
    }

    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        self.inner.write_stdin(data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.inner.close_stdin().await
    }

    async fn hush(&self) {
        self.inner.hush().await;
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.inner.resize(size).await
    }
}
