//! The handle of one execution: its output, its outcome, and the means to end it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes as Data;
use stockade_core::{
    BackendName, Boundary, Enforcement, Error, ErrorCode, JobId, Outcome, ProcessControl, Result,
    SandboxId, Signal, TerminalSize,
};
use tokio::sync::watch;

use crate::engine::lock_mutex;
use crate::history::{History, HistoryBounds, Subscription};
use crate::quota::ExecutionSlot;

/// What the pipeline and the handles of one execution share.
#[derive(Debug)]
pub(crate) struct SharedExecution {
    pub job: JobId,
    pub sandbox: SandboxId,
    pub walls: (BackendName, Boundary),
    /// The argument vector, cut where it is long.
    pub command: Vec<String>,
    pub limits: Vec<Enforcement>,
    pub history: Arc<History>,
    pub control: OnceLock<ControlSlot>,
    /// Its place in the quota of its tenant, until it has ended.
    slot: Mutex<Option<ExecutionSlot>>,
    cancelled: watch::Sender<bool>,
    finished: watch::Sender<Option<FinishedExecution>>,
}

/// A process's control, with a `Debug` that says nothing.
pub(crate) struct ControlSlot(pub Arc<dyn ProcessControl>);

impl std::fmt::Debug for ControlSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Control")
    }
}

/// The last word on an execution.
#[derive(Debug, Clone)]
pub(crate) struct FinishedExecution {
    pub outcome: Outcome,
    /// Whether everything was released, and the record written.
    pub released: Result<()>,
}

impl SharedExecution {
    pub(crate) fn new(
        job: JobId,
        sandbox: SandboxId,
        walls: (BackendName, Boundary),
        command: Vec<String>,
        limits: Vec<Enforcement>,
        bounds: HistoryBounds,
    ) -> Arc<Self> {
        Arc::new(Self {
            job,
            sandbox,
            walls,
            command,
            limits,
            history: History::new(bounds),
            control: OnceLock::new(),
            slot: Mutex::default(),
            cancelled: watch::Sender::new(false),
            finished: watch::Sender::new(None),
        })
    }

    /// Holds its place in a quota until it has ended.
    pub(crate) fn hold_slot(&self, slot: Option<ExecutionSlot>) {
        *lock_mutex(&self.slot) = slot;
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub(crate) fn cancelled(&self) -> watch::Receiver<bool> {
        self.cancelled.subscribe()
    }

    pub(crate) fn finish(&self, finished: FinishedExecution) {
        let outcome = finished.outcome.clone();
        // Before the end is reported: a caller that waits for it may start the next one.
        self.hold_slot(None);
        self.finished.send_replace(Some(finished));
        self.history.finish(outcome);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.borrow().is_some()
    }

    pub(crate) async fn finished(&self) -> FinishedExecution {
        let mut receiver = self.finished.subscribe();
        loop {
            if let Some(finished) = receiver.borrow_and_update().clone() {
                return finished;
            }
            // The sender lives in `self`, so the channel cannot close.
            let _ = receiver.changed().await;
        }
    }
}

/// A running or ended execution. Dropping it kills what runs, unless it was detached (C-15).
#[derive(Debug)]
pub struct Execution {
    watcher: Watcher,
    armed: bool,
}

/// Everything one can do with an execution; dropping it changes nothing. Clones are equals.
#[derive(Debug, Clone)]
pub struct Watcher {
    pub(crate) shared: Arc<SharedExecution>,
}

impl Execution {
    pub(crate) fn new(shared: Arc<SharedExecution>) -> Self {
        Self { watcher: Watcher { shared }, armed: true }
    }

    /// Lets it run on after this handle is gone.
    pub fn detach(mut self) -> Watcher {
        self.armed = false;
        self.watcher.clone()
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.armed {
            self.watcher.shared.cancel();
        }
    }
}

impl Deref for Execution {
    type Target = Watcher;

    fn deref(&self) -> &Watcher {
        &self.watcher
    }
}

impl Watcher {
    /// The id of its record.
    pub fn job(&self) -> &JobId {
        &self.shared.job
    }

    /// The sandbox it runs in.
    pub fn sandbox(&self) -> &SandboxId {
        &self.shared.sandbox
    }

    /// Its arguments, cut with a mark where they take more than 4 KiB.
    pub fn command(&self) -> &[String] {
        &self.shared.command
    }

    /// The backend that built its walls.
    pub fn backend(&self) -> &BackendName {
        &self.shared.walls.0
    }

    /// What stands between it and the host's kernel.
    pub fn boundary(&self) -> Boundary {
        self.shared.walls.1
    }

    /// How each limit is enforced, as the outcome will say too.
    pub fn limits(&self) -> &[Enforcement] {
        &self.shared.limits
    }

    /// Reads its output: the bounded history once, then the live stream. Never slows the program (C-13).
    pub fn subscribe(&self) -> Subscription {
        self.shared.history.subscribe()
    }

    /// Like [`Watcher::subscribe`], but from now on nothing is missed: while it is not read, the
    /// program waits, as it would at a full pipe. Wall time goes on.
    pub fn follow(&self) -> Subscription {
        self.shared.history.follow()
    }

    /// How it ended. Any number of times, by anyone, always the same (C-14).
    pub async fn outcome(&self) -> Outcome {
        self.shared.finished().await.outcome
    }

    /// How it ended, if it has.
    pub fn known_outcome(&self) -> Option<Outcome> {
        self.shared.finished.borrow().as_ref().map(|finished| finished.outcome.clone())
    }

    /// Asks for its end and returns at once. Idempotent; without effect after the end (C-15).
    pub fn cancel(&self) {
        self.shared.cancel();
    }

    /// Ends it and waits until everything it held is released. Idempotent. Fails if something could
    /// not be released or recorded.
    pub async fn close(&self) -> Result<()> {
        self.shared.cancel();
        self.shared.finished().await.released
    }

    /// Sends a signal to the program and its descendants.
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.control("signal")?.signal(signal).await
    }

    /// Feeds it input, waiting while it does not read.
    pub async fn write_stdin(&self, data: Data) -> Result<()> {
        self.control("write to stdin")?.write_stdin(data).await
    }

    /// Ends its input.
    pub async fn close_stdin(&self) -> Result<()> {
        self.control("close stdin")?.close_stdin().await
    }

    /// Changes its terminal's size.
    pub async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control("resize")?.resize(size).await
    }

    fn control(&self, operation: &'static str) -> Result<&dyn ProcessControl> {
        let control = self.shared.control.get().map(|control| control.0.as_ref());
        control.ok_or_else(|| Error::new(ErrorCode::Gone, operation, "the program never started"))
    }
}
