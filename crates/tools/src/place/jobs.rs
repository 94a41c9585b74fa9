//! The executions of one place, running and ended, with their output.
//!
//! Ended ones are forgotten, oldest first, when there are too many of them or they hold too much.

use std::collections::VecDeque;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stockade_core::{ErrorCode, JobId, Outcome, StreamId};
use stockade_engine::{OutputEvent, Subscription, Watcher};
use tokio::sync::watch;

use super::OutputPiece;
use super::spool::Spool;
use crate::ToolError;

/// The most executions that are remembered, and the most output that is kept of ended ones.
const MAX_JOBS: usize = 200;
const MAX_KEPT_BYTES: u64 = 256 << 20;

/// The executions of one place.
pub(crate) struct ToolJobs {
    dir: PathBuf,
    known: Mutex<VecDeque<Arc<ToolJob>>>,
}

/// One execution.
pub(crate) struct ToolJob {
    pub watcher: Watcher,
    /// What was asked for, as it was asked.
    pub line: String,
    pub started: Instant,
    spool: Spool,
    state: watch::Sender<JobState>,
}

/// How far an execution has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobState {
    /// Bytes kept of standard output and standard error.
    pub kept: [u64; 2],
    /// The newest output, for progress.
    pub newest: bytes::Bytes,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// Room for the output of an execution that is about to start.
pub(super) struct PreparedJob(Spool);

impl PreparedJob {
    /// The execution never came to be.
    pub(super) fn discard(&self) {
        self.0.remove();
    }
}

impl ToolJobs {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, known: Mutex::default() }
    }

    fn lock_known(&self) -> MutexGuard<'_, VecDeque<Arc<ToolJob>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn prepare(&self, job: &JobId) -> Result<PreparedJob, ToolError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        let spool = made.and_then(|()| Spool::create(&self.dir, job.as_str()));
        spool.map(PreparedJob).map_err(|error| {
            let message = format!("no room to keep output in `{}`: {error}", self.dir.display());
            ToolError::new(ErrorCode::StateUnavailable, message)
        })
    }

    /// Remembers an execution and keeps its output from now on.
    pub(super) fn keep(
        &self,
        PreparedJob(spool): PreparedJob,
        watcher: Watcher,
        output: Subscription,
        line: String,
    ) -> Arc<ToolJob> {
        let (state, started) = (watch::Sender::new(JobState::default()), Instant::now());
        let job = Arc::new(ToolJob { watcher, line, started, spool, state });
        tokio::spawn(spool_output(Arc::clone(&job), output));
        let mut known = self.lock_known();
        known.push_back(Arc::clone(&job));
        make_room(&mut known);
        job
    }

    pub(crate) fn get(&self, id: &JobId) -> Option<Arc<ToolJob>> {
        self.lock_known().iter().find(|job| job.watcher.job() == id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<ToolJob>> {
        self.lock_known().iter().cloned().collect()
    }

    /// Ends those that still run.
    pub(super) async fn cancel_running(&self) {
        for job in self.all().iter().filter(|job| job.state().outcome.is_none()) {
            // One that cannot be ended ends with its sandbox.
            let _ = job.watcher.close().await;
        }
    }

    /// Removes everything that was kept.
    pub(super) fn forget(&self) {
        self.lock_known().clear();
        // There is nothing where nothing was ever started.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn make_room(known: &mut VecDeque<Arc<ToolJob>>) {
    let size = |job: &Arc<ToolJob>| job.state.borrow().kept.iter().sum::<u64>();
    let mut kept: u64 = known.iter().map(size).sum();
    let mut at = 0;
    while at < known.len() && (known.len() > MAX_JOBS || kept > MAX_KEPT_BYTES) {
        if known[at].state.borrow().outcome.is_none() {
            at += 1;
            continue;
        }
        if let Some(job) = known.remove(at) {
            kept -= size(&job);
            job.spool.remove();
        }
    }
}

/// Writes output down until the end. What cannot be written is not counted as kept.
async fn spool_output(job: Arc<ToolJob>, mut output: Subscription) {
    while let Some(event) = output.next().await {
        match event {
            OutputEvent::Output { stream, data, .. } => {
                let written = job.spool.append(stream, &data).is_ok();
                job.state.send_modify(|state| {
                    if written {
                        state.kept[stream_index(stream)] += data.len() as u64;
                    }
                    state.newest = data;
                });
            }
            // A follower misses nothing while its program runs.
            OutputEvent::Gap { .. } => {}
            OutputEvent::End(outcome) => {
                job.state.send_modify(|state| state.outcome = Some(outcome));
            }
        }
    }
}

fn stream_index(stream: StreamId) -> usize {
    match stream {
        StreamId::Stdout => 0,
        StreamId::Stderr => 1,
    }
}

impl ToolJob {
    pub(crate) fn state(&self) -> JobState {
        self.state.borrow().clone()
    }

    /// How much of a stream is kept.
    pub(crate) fn kept(&self, stream: StreamId) -> u64 {
        self.state.borrow().kept[stream_index(stream)]
    }

    /// Waits for the end, with all output written down.
    pub(crate) async fn ended(&self) -> Outcome {
        let mut receiver = self.state.subscribe();
        loop {
            if let Some(outcome) = receiver.borrow_and_update().outcome.clone() {
                return outcome;
            }
            // The sender lives in `self`.
            let _ = receiver.changed().await;
        }
    }

    /// Waits until a stream has more than this, or the end, or the time is over.
    pub(crate) async fn grown(&self, stream: StreamId, than: u64, wait: Duration) {
        let mut receiver = self.state.subscribe();
        let more = receiver
            .wait_for(|state| state.outcome.is_some() || state.kept[stream_index(stream)] > than);
        // After a timeout as after more output, the caller looks again.
        let _ = tokio::time::timeout(wait, more).await;
    }

    /// What is kept of a stream from an offset on.
    pub(crate) fn read(
        &self,
        stream: StreamId,
        offset: u64,
        most: u64,
    ) -> Result<OutputPiece, ToolError> {
        let total = self.kept(stream);
        let offset = offset.min(total);
        let most = usize::try_from(most.min(total - offset)).unwrap_or(usize::MAX);
        let data = self.spool.read(stream, offset, most).map_err(|error| {
            ToolError::new(ErrorCode::System, format!("kept output cannot be read: {error}"))
        })?;
        Ok(OutputPiece { next: offset + data.len() as u64, data, total })
    }
}
