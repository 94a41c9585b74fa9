//! One sandbox of a daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use stockade_core::{Command, EffectiveLimits, Files, Process, Result, Sandbox, SandboxId, User};
use tokio::task::JoinHandle;

use super::client::{DaemonCall, DaemonClient};
use super::files::DaemonFiles;
use super::process;
use super::sse::SseReader;

/// Timeout for stopping a sandbox where it is, and for continuing it: longer than the daemon's own.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(40);
/// Timeout for asking whether a sandbox is paused. The exit of a program waits for the answer: shorter than an engine
/// waits for the exit of one that it has killed.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);

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

/// What a daemon says about a sandbox.
#[derive(Deserialize)]
struct ToldSandbox {
    state: String,
}

/// Whether a sandbox of a daemon is paused, as far as the daemon was asked.
pub(super) struct DaemonPause {
    client: DaemonClient,
    /// Where the sandbox is in the API.
    path: String,
    /// Held while the daemon is asked.
    asking: tokio::sync::Mutex<()>,
    paused: AtomicBool,
}

impl DaemonPause {
    fn new(client: DaemonClient, path: String) -> Arc<Self> {
        let (asking, paused) = (tokio::sync::Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { client, path, asking, paused })
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    async fn set(&self, operation: &'static str, paused: bool) -> Result<()> {
        let _asking = self.asking.lock().await;
        // Before the daemon does it: this may be dropped half-way.
        self.paused.fetch_or(paused, Ordering::SeqCst);
        let call = DaemonCall::post(operation, format!("{}/{operation}", self.path));
        match self.client.ask(call.within(PAUSE_TIMEOUT)).await {
            Ok(_) => self.paused.store(paused, Ordering::SeqCst),
            Err(error) => {
                self.ask_state().await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Where the daemon does not answer, it stays as it was.
    async fn ask_state(&self) {
        let call = DaemonCall::get("pause", self.path.clone()).within(STATE_TIMEOUT);
        if let Ok(ToldSandbox { state }) = self.client.ask_json(call).await {
            self.paused.store(state == "paused", Ordering::SeqCst);
        }
    }

    /// Asks again after the end of a program: ending it may have resumed the sandbox. Takes a bounded time, and may be
    /// dropped half-way.
    pub(super) async fn ask_after_exit(&self) {
        if !self.is_paused() {
            return;
        }
        let asking = async {
            let _asking = self.asking.lock().await;
            self.ask_state().await;
        };
        // One that does not answer stays paused as far as is known here.
        let _ = tokio::time::timeout(STATE_TIMEOUT, asking).await;
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
    pause: Arc<DaemonPause>,
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
        let pause = DaemonPause::new(client.clone(), path.clone());
        Self { id, path, user, client, files, alive, pause }
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

    fn is_paused(&self) -> bool {
        self.pause.is_paused()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let mut command = command.clone();
        // The sandbox's own is no choice of the command's.
        command.user = command.user.filter(|user| Some(*user) != self.user);
        let pause = Arc::clone(&self.pause);
        process::start_process(&self.client, &self.path, &command, limits, pause).await
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }

    async fn pause(&self) -> Result<()> {
        self.pause.set("pause", true).await
    }

    async fn resume(&self) -> Result<()> {
        self.pause.set("resume", false).await
    }
}
