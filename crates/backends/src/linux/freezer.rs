//! Pause and resume of a whole sandbox, agent and all. While it is paused nothing in it answers: requests are refused,
//! and what is to be killed is resumed first.

use std::sync::Arc;

use async_trait::async_trait;
use stockade_core::{BackendName, Error, ErrorCode, ProcessControl, Result};
use tokio::sync::{Mutex, MutexGuard};

use super::control_layer::ControlLayer;
use super::running::LiveWalls;

/// A way to stop and continue everything inside.
#[async_trait]
pub(crate) trait Stopper: Send + Sync {
    /// Returns when it has stopped, or goes on. Called only for a change, one call at a time.
    async fn set(&self, stop: bool) -> Result<()>;
}

/// The kernel's freezer of the sandbox's control group.
#[async_trait]
impl Stopper for Arc<LiveWalls> {
    async fn set(&self, stop: bool) -> Result<()> {
        self.freeze(stop).await
    }
}

/// Whether a sandbox is paused, and the way to change that.
pub(crate) struct Freezer {
    backend: BackendName,
    stopper: Box<dyn Stopper>,
    stopped: Mutex<bool>,
}

impl Freezer {
    pub(crate) fn new(backend: BackendName, stopper: impl Stopper + 'static) -> Arc<Self> {
        Arc::new(Self { backend, stopper: Box::new(stopper), stopped: Mutex::new(false) })
    }

    /// Idempotent. Returns when it has stopped, or goes on.
    pub(crate) async fn set(&self, stop: bool) -> Result<()> {
        let mut stopped = self.stopped.lock().await;
        if *stopped != stop {
            self.stopper.set(stop).await?;
            *stopped = stop;
        }
        Ok(())
    }

    /// Refuses what needs an answer from inside: it would wait for ever. It is not stopped before the answer
    /// is dropped.
    pub(crate) async fn goes_on(&self, operation: &'static str) -> Result<MutexGuard<'_, bool>> {
        let stopped = self.stopped.lock().await;
        match *stopped {
            false => Ok(stopped),
            true => Err(Error::new(ErrorCode::Invalid, operation, "the sandbox is paused")
                .backend(self.backend.clone())
                .remedy("resume it first")),
        }
    }
}

/// The control of a process whose sandbox may be paused.
pub(crate) struct FreezableControl {
    pub control: Arc<dyn ProcessControl>,
    pub freezer: Arc<Freezer>,
}

#[async_trait]
impl ControlLayer for FreezableControl {
    fn inner(&self) -> &dyn ProcessControl {
        self.control.as_ref()
    }

    async fn kill(&self) -> Result<()> {
        self.freezer.set(false).await?;
        self.control.kill().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct NoStopper;

    #[async_trait]
    impl Stopper for NoStopper {
        async fn set(&self, _: bool) -> Result<()> {
            Ok(())
        }
    }

    /// The control of a program that has ended.
    struct FinishedControl;

    #[async_trait]
    impl ProcessControl for FinishedControl {
        async fn kill(&self) -> Result<()> {
            Ok(())
        }

        async fn ended(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_program_is_passed_on() {
        let freezer = Freezer::new(BackendName::literal("test"), NoStopper);
        let braked = FreezableControl { control: Arc::new(FinishedControl), freezer };
        let ended = tokio::time::timeout(Duration::from_secs(1), braked.ended()).await;
        assert!(ended.is_ok(), "it never ends");
    }
}
