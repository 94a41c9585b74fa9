//! One sandbox of a daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{Command, EffectiveLimits, Files, Process, Result, Sandbox, SandboxId, User};
use tokio::task::JoinHandle;

use super::client::{DaemonCall, DaemonClient};
use super::files::DaemonFiles;
use super::process;
use super::sse::SseReader;

/// Timeout for stopping a sandbox where it is, and for continuing it: longer than the daemon's own.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(40);

/// The connection that a sandbox ends with. Dropped, it is closed.
pub(super) struct DaemonHold(JoinHandle<()>);

impl DaemonHold {
    /// Reads on until the daemon says that the sandbox has ended, or is not heard of any more.
    pub(super) fn keep(mut stream: SseReader, alive: Arc<AtomicBool>) -> Self {
        Self(tokio::spawn(async move {
            // Any event but the first tells of the end.
            let _ = stream.next().await;
            alive.store(false, Ordering::SeqCst);
        }))
    }
}

impl Drop for DaemonHold {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A sandbox of a daemon.
pub(super) struct DaemonSandbox {
    id: SandboxId,
    /// Where it is in the API.
    path: String,
    /// Whom commands run as that say nothing else.
    user: Option<User>,
    client: DaemonClient,
    files: DaemonFiles,
    alive: Arc<AtomicBool>,
}

impl DaemonSandbox {
    pub(super) fn new(
        id: SandboxId,
        far_id: SandboxId,
        user: Option<User>,
        client: DaemonClient,
        alive: Arc<AtomicBool>,
    ) -> Self {
        let path = format!("/v1/sandboxes/{far_id}");
        let files = DaemonFiles::new(client.clone(), format!("{path}/files"));
        Self { id, path, user, client, files, alive }
    }

    async fn ask_to(&self, operation: &'static str) -> Result<()> {
        let call = DaemonCall::post(operation, format!("{}/{operation}", self.path));
        self.client.ask(call.within(PAUSE_TIMEOUT)).await.map(drop)
    }
}

#[async_trait]
impl Sandbox for DaemonSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let mut command = command.clone();
        // The sandbox's own is no choice of the command's.
        command.user = command.user.filter(|user| Some(*user) != self.user);
        process::start_process(&self.client, &self.path, &command, limits).await
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }

    async fn pause(&self) -> Result<()> {
        self.ask_to("pause").await
    }

    async fn resume(&self) -> Result<()> {
        self.ask_to("resume").await
    }
}
