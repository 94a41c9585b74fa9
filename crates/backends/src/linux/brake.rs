//! Stopping a whole sandbox where it is, agent and all, and what that asks of everybody else: nothing in
//! it answers until it goes on, and what is to end has to run for that.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{BackendName, Error, ErrorCode, ProcessControl, Result, Signal, TerminalSize};
use tokio::sync::Mutex;

use super::running::Running;

/// Stops and continues everything inside.
#[async_trait]
pub(crate) trait Brake: Send + Sync {
    /// Idempotent. Returns when it is so.
    async fn set(&self, stop: bool) -> Result<()>;
}

/// The kernel's freezer of the sandbox's control group.
pub(crate) struct Freezer {
    backend: BackendName,
    running: Arc<Running>,
    stopped: Mutex<bool>,
}

impl Freezer {
    pub(crate) fn new(backend: BackendName, running: &Arc<Running>) -> Self {
        Self { backend, running: Arc::clone(running), stopped: Mutex::new(false) }
    }

    /// Refuses what needs an answer from inside.
    pub(crate) async fn goes_on(&self, operation: &'static str) -> Result<()> {
        match *self.stopped.lock().await {
            false => Ok(()),
            true => Err(stopped(self.backend.clone(), operation)),
        }
    }
}

/// It would wait for ever.
pub(crate) fn stopped(backend: BackendName, operation: &'static str) -> Error {
    Error::new(ErrorCode::Invalid, operation, "the sandbox is paused")
        .backend(backend)
        .remedy("resume it first")
}

#[async_trait]
impl Brake for Freezer {
    async fn set(&self, stop: bool) -> Result<()> {
        let mut stopped = self.stopped.lock().await;
        if *stopped == stop {
            return Ok(());
        }
        self.running.freeze(stop).await?;
        *stopped = stop;
        Ok(())
    }
}

/// The control of a process whose sandbox may be stopped.
pub(crate) struct Braked {
    pub control: Arc<dyn ProcessControl>,
    pub brake: Arc<dyn Brake>,
}

#[async_trait]
impl ProcessControl for Braked {
    async fn kill(&self) -> Result<()> {
        self.brake.set(false).await?;
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
