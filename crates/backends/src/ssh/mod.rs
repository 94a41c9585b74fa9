//! Sandboxes on other hosts: the program for the peer is carried there, and builds the native
//! backend's walls there. The system's `ssh` makes the connection, with the user's own configuration.
//!
//! A host on which the walls cannot be built is refused, never used bare, and one whose key is not known
//! is not connected to. `docs/backends/ssh.md` says what this does not protect from.

mod create;
#[cfg(feature = "factory")]
pub mod factory;
mod host;
mod probe;
mod remote_command;
mod ssh_error;
mod start;
mod upload;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Admitted, BackendName, Capabilities, Error, ErrorCode, Result, Sandbox, SandboxId,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::linux::lock;
use crate::managed::{Cancellation, Managed, WallBuilder};
use crate::peer::client::WorkspaceSync;
use crate::peer::far_program::FAR_DIGEST;
use crate::peer::protocol::{ProbeReply, RemoteRequest};
pub use host::Host;
pub use remote_command::{RemoteCommand, RemoteProgram};

/// The ssh backend's name.
pub const NAME: BackendName = BackendName::literal("ssh");

/// How long the peer may take to take a sandbox down before it is told so in another way.
const TAKING_DOWN: Duration = Duration::from_secs(15);

/// The ssh backend: a pool of hosts.
pub type Ssh = Managed<SshWalls>;

/// What has other hosts build walls.
pub struct SshWalls {
    hosts: Vec<Host>,
    live: Mutex<HashMap<SandboxId, Arc<HostedSandbox>>>,
}

/// A sandbox of this value, or one that it is about to build.
struct HostedSandbox {
    /// Which host, once one was reached. Until then nothing can be left anywhere.
    host: Mutex<Option<usize>>,
    /// Taken by who destroys it; everybody else waits for the same end.
    sync: tokio::sync::Mutex<Option<Arc<WorkspaceSync>>>,
}

impl Ssh {
    /// A backend that has not connected to anything yet.
    pub fn new(hosts: Vec<Host>) -> Self {
        Self::of(SshWalls { hosts, live: Mutex::default() })
    }
}

impl SshWalls {
    /// Has every host answer one question at once.
    async fn ask_all(&self, verb: &'static str, input: &str) -> Vec<(Host, Result<ProbeReply>)> {
        let mut asking = JoinSet::new();
        for (at, host) in self.hosts.iter().cloned().enumerate() {
            let input = input.to_owned();
            asking.spawn(async move {
                let said = upload::ask_far(&host, verb, input.as_bytes()).await;
                (at, host, said)
            });
        }
        let mut all = asking.join_all().await;
        all.sort_by_key(|(at, _, _)| *at);
        all.into_iter().map(|(_, host, said)| (host, said)).collect()
    }

    /// Destroys what this value did not build, or lost: wherever it is.
    async fn destroy_anywhere(&self, id: &SandboxId) -> Result<()> {
        let mut unsure = None;
        for (host, said) in self.ask_all("destroy", id.as_str()).await {
            match said {
                // It was there, so it is nowhere else.
                Ok(ProbeReply::Gone { found: true }) => return Ok(()),
                Ok(ProbeReply::Gone { found: false }) => {}
                Ok(ProbeReply::Measured(_) | ProbeReply::Listed(_) | ProbeReply::Failed(_)) => {
                    unsure = Some(unexpected_answer(&host, "destroy"));
                }
                Err(error) => unsure = Some(error),
            }
        }
        unsure.map_or(Ok(()), Err)
    }

    async fn destroy_on(&self, at: usize, id: &SandboxId) -> Result<()> {
        let host = &self.hosts[at];
        match upload::ask_far(host, "destroy", id.as_str().as_bytes()).await? {
            ProbeReply::Gone { .. } => Ok(()),
            ProbeReply::Measured(_) | ProbeReply::Listed(_) | ProbeReply::Failed(_) => {
                Err(unexpected_answer(host, "destroy"))
            }
        }
    }

    /// Takes a sandbox of this value down: by way of its connection, or another one if that is lost.
    async fn destroy_live(&self, id: &SandboxId, live: &HostedSandbox) -> Result<()> {
        let mut held = live.sync.lock().await;
        let Some(at) = *lock(&live.host) else { return Ok(()) };
        let Some(sync) = held.clone() else { return self.destroy_on(at, id).await };
        let asked = timeout(TAKING_DOWN, sync.ask("destroy", &RemoteRequest::Destroy)).await;
        sync.link().close();
        sync.wait_until_still().await;
        let asked = asked.unwrap_or_else(|_| Err(too_slow(&self.hosts[at])));
        if let Err(error) = asked {
            // After any error: that nothing is left has to be certain first.
            sync.mark_parted(error);
            self.destroy_on(at, id).await?;
        }
        *held = None;
        sync.report_conflicts()
    }
}

fn too_slow(host: &Host) -> Error {
    let message = format!("host `{}` did not remove it in time", host.name);
    Error::new(ErrorCode::TooSlow, "destroy", message).backend(NAME)
}

fn unexpected_answer(host: &Host, operation: &'static str) -> Error {
    let message = format!("host `{}` sent an unexpected answer", host.name);
    Error::new(ErrorCode::Protocol, operation, message).backend(NAME)
}

#[async_trait]
impl WallBuilder for SshWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        if self.hosts.is_empty() {
            return probe::nothing_configured();
        }
        let measured = self.ask_all("probe", "").await.into_iter().map(|(host, said)| {
            let found = said.and_then(|said| match said {
                ProbeReply::Measured(found) => Ok(found.from_a_peer()),
                ProbeReply::Listed(_) | ProbeReply::Gone { .. } | ProbeReply::Failed(_) => {
                    Err(unexpected_answer(&host, "probe"))
                }
            });
            (host, found)
        });
        probe::combine_hosts(measured.collect())
    }

    fn only_by_name(&self) -> Option<String> {
        Some(probe::ONLY_BY_NAME.into())
    }

    /// The peer looks again before it builds: what is kept here need only be the usual case.
    fn fingerprint(&self) -> Option<String> {
        (!self.hosts.is_empty()).then(|| format!("{}\n{:?}", FAR_DIGEST, self.hosts))
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        _: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(create::create_sandbox(&self, id, admitted).await?))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        let live = lock(&self.live).get(id).cloned();
        match live {
            None => self.destroy_anywhere(id).await,
            Some(live) => {
                self.destroy_live(id, &live).await?;
                lock(&self.live).remove(id);
                Ok(())
            }
        }
    }

    /// The peer takes down what it has begun when its connection is dropped; the `destroy` that follows
    /// asks it. Where that is stays known until then: no other host has to answer.
    async fn clear_unfinished(&self, id: &SandboxId, _: &Error) -> Result<()> {
        let live = lock(&self.live).get(id).cloned();
        let Some(live) = live else { return Ok(()) };
        let stands = live.sync.lock().await.is_some();
        if stands { self.destroy_live(id, &live).await } else { Ok(()) }
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let mut ids = Vec::new();
        for (host, said) in self.ask_all("list", "").await {
            match said? {
                ProbeReply::Listed(listed) => ids.extend(listed),
                ProbeReply::Measured(_) | ProbeReply::Gone { .. } | ProbeReply::Failed(_) => {
                    return Err(unexpected_answer(&host, "list"));
                }
            }
        }
        Ok(ids)
    }
}
