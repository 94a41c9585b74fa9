//! The audit steps of the pipeline: what is recorded before anything runs, and how it ended.

use std::sync::Arc;

use stockade_core::{
    BackendChoice, Command, Ending, Error, ErrorCode, JobId, Outcome, Refusals, Result, SandboxId,
    SandboxSpec, StartFailure, StreamReport, Usage,
};

use crate::command_text::cut_command;
use crate::denials::DenialWatch;
use crate::engine::{EngineInner, lock_mutex};
use crate::execution::{FinishedExecution, SharedExecution};
use crate::journal::Event;
use crate::lifecycle::{NotBuilt, SandboxOrder};
use crate::processes::EndedCommand;
use crate::supervise::SupervisedEnd;
use crate::workspace_guard::WorkspaceSlot;

/// The outcome that was recorded, and whether it could be.
pub(crate) struct ClosedRecord {
    outcome: Outcome,
    recorded: Result<()>,
}

impl EngineInner {
    /// Writes to the journal: at once where no other writer holds its lock, else from another thread.
    pub(crate) async fn record(&self, event: Event) -> Result<()> {
        if self.journal.try_append(&event)?.is_some() {
            return Ok(());
        }
        let journal = Arc::clone(&self.journal);
        let append = tokio::task::spawn_blocking(move || journal.append(event).map(drop));
        append.await.unwrap_or_else(|join| {
            Err(Error::new(ErrorCode::JournalUnavailable, "record", "the writer ended")
                .source(join))
        })
    }

    /// Turns refusals into the error, after recording them.
    pub(crate) async fn record_refusals(&self, spec: &SandboxSpec, refusals: Refusals) -> Error {
        let reasons = refusals.0.iter().map(|refusal| refusal.reason.clone()).collect();
        // The refusal stands whether or not it could be recorded: nothing was run.
        let _ =
            self.journal.append(Event::Refused { tenant: spec.tenant.clone(), refusals: reasons });
        let named = match &spec.backend {
            BackendChoice::Auto => None,
            BackendChoice::Named(name) => Some(name.clone()),
        };
        Error::refused("admit", named, refusals)
    }

    /// Opens the record of an execution: nothing runs before this has been written (C-40).
    pub(crate) async fn open_record(
        &self,
        job: JobId,
        order: &SandboxOrder,
        sandbox: SandboxId,
        command: &Command,
    ) -> Result<Arc<SharedExecution>> {
        let spec = order.admitted.spec();
        let argv = cut_command(command.argv());
        let started = Event::Started {
            job: job.clone(),
            sandbox: sandbox.clone(),
            tenant: spec.tenant.clone(),
            backend: order.admitted.backend().clone(),
            boundary: order.admitted.boundary(),
            command: argv.clone(),
            workspace: spec.workspace.clone(),
            limits: order.admitted.enforcement_for(command),
            without: spec.without.clone(),
            labels: spec.labels.clone(),
            trees: spec.trees.iter().map(|tree| tree.part_of.clone()).collect(),
            observes: spec.network.observes(),
            engine: Some(self.engine_id()?),
            image: order.image_name(),
        };
        self.record(started).await?;
        let walls = (order.admitted.backend().clone(), order.admitted.boundary());
        let limits = order.admitted.enforcement_for(command);
        let bounds = self.config.history;
        let shared = SharedExecution::new(job.clone(), sandbox, walls, argv, limits, bounds);
        lock_mutex(&self.running).insert(job, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Closes the record of an execution. Its outcome is known here and not revealed yet.
    pub(crate) async fn close_record(
        &self,
        shared: &SharedExecution,
        EndedCommand { end, denials }: EndedCommand,
    ) -> ClosedRecord {
        let network = denials.map(DenialWatch::finish).unwrap_or_default();
        let outcome = Outcome {
            ending: end.ending,
            stdout: end.stdout,
            stderr: end.stderr,
            usage: end.usage,
            limits: shared.limits.clone(),
            limits_reached: end.limits_reached,
            network_denied: network.denied,
            network_unreachable: end.network_unreachable,
            network_observed: network.observed,
        };
        let log =
            self.config.keep_output.then(|| self.output_logs.reference(&shared.job)).flatten();
        let event = Event::Stopped { job: shared.job.clone(), outcome: outcome.clone(), log };
        ClosedRecord { outcome, recorded: self.record(event).await }
    }

    /// Reveals the outcome of an execution, and whether everything it held is released.
    pub(crate) fn reveal_outcome(
        &self,
        shared: &SharedExecution,
        ClosedRecord { outcome, recorded }: ClosedRecord,
        destroyed: Result<()>,
        released: Result<()>,
    ) {
        lock_mutex(&self.running).remove(&shared.job);
        let released = destroyed.and(recorded).and(released);
        shared.finish(FinishedExecution { outcome, released });
    }

    /// Closes the record of a command that never got as far as a process, and releases the workspace that was
    /// acquired for it alone; answers why.
    pub(crate) async fn close_unstarted_record(
        &self,
        shared: &SharedExecution,
        NotBuilt { error, killed }: NotBuilt,
        destroyed: Result<()>,
        workspace: WorkspaceSlot,
    ) -> Error {
        let end = SupervisedEnd {
            ending: if killed { Ending::Killed } else { ending_of_no_start(&error, shared) },
            usage: Usage::default(),
            stdout: StreamReport::default(),
            stderr: StreamReport::default(),
            limits_reached: Vec::new(),
            network_unreachable: false,
            confirmed: true,
        };
        let ended = EndedCommand { end, denials: None };
        let closed = self.close_record(shared, ended).await;
        let released = workspace.release().await;
        let told = released.clone().err().unwrap_or(error);
        self.reveal_outcome(shared, closed, destroyed, released);
        told
    }
}

/// How a command ended that was never started: as the error says, never as lost unless its walls fell.
fn ending_of_no_start(error: &Error, shared: &SharedExecution) -> Ending {
    let why = error.message().to_owned();
    match error.code() {
        ErrorCode::Gone if *shared.cancelled().borrow() => Ending::Cancelled,
        ErrorCode::Invalid
        | ErrorCode::Refused
        | ErrorCode::QuotaExceeded
        | ErrorCode::NotFound
        | ErrorCode::PathEscapes
        | ErrorCode::Denied
        | ErrorCode::Unsupported
        | ErrorCode::TooLarge => Ending::Refused(why),
        ErrorCode::Gone | ErrorCode::Protocol => Ending::Lost(why),
        ErrorCode::Unavailable
        | ErrorCode::JournalUnavailable
        | ErrorCode::StateUnavailable
        | ErrorCode::TooSlow
        | ErrorCode::WallMissing
        | ErrorCode::LeftBehind
        | ErrorCode::System => Ending::StartFailed(StartFailure::NoSandbox(why)),
    }
}

pub(crate) fn build_created_event(sandbox: &SandboxId, order: &SandboxOrder) -> Event {
    Event::Created {
        sandbox: sandbox.clone(),
        tenant: order.admitted.spec().tenant.clone(),
        backend: order.admitted.backend().clone(),
        boundary: order.admitted.boundary(),
        from: order.from.as_ref().map(|origin| origin.snapshot.clone()),
        image: order.image_name(),
    }
}
