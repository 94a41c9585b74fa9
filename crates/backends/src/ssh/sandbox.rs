//! A sandbox on another host: the agent's client over the connection, the other host's counts behind it,
//! and the workspace copied there and back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, Error, ErrorCode, Exit, ExitStatus, Files, Process, ProcessEvent,
    ProcessEvents, Result, Sandbox, SandboxId, User,
};
use tokio::task::JoinHandle;

use super::NAME;
use super::files::Synced;
use super::link::{Link, Shared};
use crate::across::words::{Ask, How, Tell};
use crate::linux::settle;
use crate::linux::watch::held;

/// The workspace's two copies and what keeps them the same.
pub(super) struct Bridge {
    pub link: Arc<Link>,
    /// The caller's own directory, if the workspace is one.
    pub tree: Option<Shared>,
    /// Whether what the guest changes comes back.
    pub writable: bool,
    conflicts: Mutex<BTreeSet<String>>,
}

impl Bridge {
    pub fn new(link: Arc<Link>, tree: Option<Shared>, writable: bool) -> Self {
        Self { link, tree, writable, conflicts: Mutex::default() }
    }

    fn note(&self, found: impl IntoIterator<Item = String>) {
        self.conflicts.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
    }

    /// What changed on both sides, once.
    pub fn conflict(&self) -> Result<()> {
        let found =
            std::mem::take(&mut *self.conflicts.lock().unwrap_or_else(PoisonError::into_inner));
        if found.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = found.iter().take(10).map(|path| format!("`{path}`")).collect();
        let more = if found.len() > named.len() { " and others" } else { "" };
        let message = format!(
            "changed here and in the sandbox, and left as here: {}{more}",
            named.join(", ")
        );
        Err(Error::new(ErrorCode::Denied, "destroy", message)
            .backend(NAME)
            .remedy("do not change files that a sandbox on another host works on"))
    }

    /// Asks, and takes the guest's changes over.
    pub async fn ask(&self, operation: &'static str, ask: &Ask) -> Result<Tell> {
        let turn = self.link.turn().await;
        let tree = self.tree.as_ref().filter(|_| self.writable);
        let (tell, conflicts) = turn.ask(operation, ask, tree).await?;
        self.note(conflicts);
        if let Tell::Done { conflicts } = &tell {
            self.note(conflicts.iter().cloned());
        }
        Ok(tell)
    }

    /// Sends what has changed here meanwhile.
    pub async fn push(&self) -> Result<()> {
        let Some(tree) = &self.tree else { return Ok(()) };
        let mut turn = self.link.turn().await;
        if turn.tree(tree).await? {
            let (tell, _) = turn.ask("copy the workspace", &Ask::Push, None).await?;
            if let Tell::Done { conflicts } = tell {
                self.note(conflicts);
            }
        }
        Ok(())
    }

    /// Takes over what has changed there.
    pub async fn pull(&self) -> Result<()> {
        match self.tree.is_some() && self.writable {
            true => self.ask("copy the workspace", &Ask::Pull).await.map(drop),
            false => Ok(()),
        }
    }
}

/// A sandbox on another host.
pub(super) struct SshSandbox {
    id: SandboxId,
    user: User,
    bridge: Arc<Bridge>,
    client: Arc<AgentClient>,
    files: Synced,
    last: AtomicU32,
}

impl SshSandbox {
    pub fn new(id: SandboxId, user: User, bridge: Arc<Bridge>, client: AgentClient) -> Self {
        let client = Arc::new(client);
        let files = Synced::new(Arc::clone(&client), Arc::clone(&bridge));
        Self { id, user, bridge, client, files, last: AtomicU32::new(0) }
    }
}

#[async_trait]
impl Sandbox for SshSandbox {
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
        // Before the agent hears of it: what is sent first arrives first.
        self.bridge.link.say(&watch).await?;
        let watched = Watched { bridge: Arc::clone(&self.bridge), execution, over: false };
        let command = settle(command, self.user);
        let Process { events, control } = self.client.spawn(&command, &held(limits)).await?;
        self.bridge.link.control(execution, Some(Arc::clone(&control)));
        let events = Events { inner: events, watched, ending: None };
        Ok(Process { events: Box::new(events), control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
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
            let ask = Ask::Ended { execution, how: How::of(&exit.status) };
            let told = bridge.ask("take the changes over", &ask).await;
            bridge.link.control(execution, None);
            match told {
                Ok(Tell::Judged(verdict)) => verdict.over(exit),
                Ok(Tell::Done { .. } | Tell::Failed(_) | Tell::Kill { .. }) => {
                    lost(exit, "the other side does not say how it ended")
                }
                Err(error) => lost(exit, error.message()),
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
}

#[async_trait]
impl ProcessEvents for Events {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.ending.is_none() {
            match self.inner.next().await {
                Some(ProcessEvent::Exit(exit)) => self.ending = Some(self.watched.end(exit)),
                other => return other,
            }
        }
        let exit = self.ending.as_mut()?.await;
        self.ending = None;
        let exit = exit.unwrap_or_else(|error| ExitStatus::Lost(error.to_string()).into());
        Some(ProcessEvent::Exit(exit))
    }
}
