//! Pause and resume of a sandbox. Whether it is paused is said in one place, which changes under the lock of the act
//! itself. Killing a program lets its sandbox go on first, since what stands still cannot be ended by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Process, ProcessControl, RenewalCause, Result, SandboxId, Signal, Span, TerminalSize,
};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::timeout;

use crate::engine::Engine;
use crate::lifecycle::{RunningSandbox, SandboxHandle, in_a_task, too_slow};

/// How long a backend may take to stop a sandbox, or to let it go on.
const SANDBOX_PAUSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a sandbox is paused.
#[derive(Debug, Default)]
pub(crate) struct PauseState {
    /// Held for writing while it is paused or resumed, and for reading while a program is killed, so that none is
    /// paused half-way through its end.
    changing: Arc<RwLock<()>>,
    /// Changed only while that is held for writing.
    is_paused: AtomicBool,
}

impl PauseState {
    fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    fn set(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
    }

    async fn lock_for_change(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.changing).write_owned().await
    }
}

/// What becomes of the values of secrets when a sandbox goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResumedSecrets {
    /// They are asked for again before they are used, where they can be.
    AskedAgain,
    /// They stay.
    Kept,
}

impl Engine {
    /// Stops everything in a sandbox where it is. Idempotent. Done to its end, whether or not its caller waits.
    pub async fn pause(&self, id: &SandboxId) -> Result<()> {
        let live = self.inner.live(id)?;
        // Before the task begins: a caller that gives up and then resumes comes after it.
        let changing = live.pausing.lock_for_change().await;
        in_a_task(async move { live.pause(changing).await }).await
    }

    /// Lets a paused sandbox go on. Values of its secrets that can be asked for again are, before they are used again.
    /// Done to its end, whether or not its caller waits.
    pub async fn resume(&self, id: &SandboxId) -> Result<()> {
        self.resume_with(id, ResumedSecrets::AskedAgain).await
    }

    /// Lets a sandbox go on that was paused while a person looked at it: values of its secrets stay.
    pub async fn resume_after_review(&self, id: &SandboxId) -> Result<()> {
        self.resume_with(id, ResumedSecrets::Kept).await
    }

    async fn resume_with(&self, id: &SandboxId, secrets: ResumedSecrets) -> Result<()> {
        let live = self.inner.live(id)?;
        let changing = live.pausing.lock_for_change().await;
        in_a_task(async move { live.resume(&changing, secrets).await }).await
    }

    /// Whether a sandbox is paused. One in which a program was killed is not: all of it goes on then.
    pub fn is_paused(&self, id: &SandboxId) -> Result<bool> {
        Ok(self.inner.live(id)?.pausing.is_paused())
    }
}

impl RunningSandbox {
    async fn pause(&self, _changing: OwnedRwLockWriteGuard<()>) -> Result<()> {
        let paused = timeout(SANDBOX_PAUSE_TIMEOUT, self.sandbox.pause()).await;
        let Ok(paused) = paused else {
            // It may stand still: a caller resumes it, and a kill does so first.
            self.pausing.set(true);
            return Err(too_slow("pause", self.order.backend.as_ref()));
        };
        paused?;
        self.pausing.set(true);
        Ok(())
    }

    async fn resume(
        &self,
        _changing: &OwnedRwLockWriteGuard<()>,
        secrets: ResumedSecrets,
    ) -> Result<()> {
        // Before anything in it goes on.
        if secrets == ResumedSecrets::AskedAgain {
            self.mark_secrets_stale(RenewalCause::Resumed);
        }
        let resumed = timeout(SANDBOX_PAUSE_TIMEOUT, self.sandbox.resume()).await;
        resumed.unwrap_or_else(|_| Err(too_slow("resume", self.order.backend.as_ref())))?;
        self.pausing.set(false);
        Ok(())
    }

    /// Lets it go on where it is paused. It is not paused before the answer is dropped.
    async fn keep_running(&self) -> Result<OwnedRwLockReadGuard<()>> {
        let running = Arc::clone(&self.pausing.changing).read_owned().await;
        if !self.pausing.is_paused() {
            return Ok(running);
        }
        drop(running);
        let changing = self.pausing.lock_for_change().await;
        // Another caller may have let it go on meanwhile.
        if self.pausing.is_paused() {
            self.resume(&changing, ResumedSecrets::AskedAgain).await?;
        }
        Ok(changing.downgrade())
    }

    /// The same process, with a control that ends it in a paused sandbox too.
    pub(crate) fn with_pausable_control(&self, process: Process) -> Process {
        let Process { events, control } = process;
        let sandbox = Arc::clone(&self.handle);
        Process { events, control: Arc::new(PausableControl { control, sandbox }) }
    }
}

/// The control of a program whose sandbox may be paused.
struct PausableControl {
    control: Arc<dyn ProcessControl>,
    sandbox: SandboxHandle,
}

#[async_trait]
impl ProcessControl for PausableControl {
    async fn kill(&self) -> Result<()> {
        let live = self.sandbox.get().and_then(Weak::upgrade);
        let _running = match &live {
            Some(live) => Some(live.keep_running().await?),
            None => None,
        };
        self.control.kill().await
    }

    async fn ended(&self) {
        self.control.ended().await;
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

    async fn discard_output(&self) {
        self.control.discard_output().await;
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size).await
    }

    fn cpu_used(&self) -> Option<Span> {
        self.control.cpu_used()
    }
}
