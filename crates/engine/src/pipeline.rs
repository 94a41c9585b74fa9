//! The one pipeline every front end goes through, each of its forms as one function:
//! tenant → admit → audit → create → run → audit → destroy.
//!
//! The steps are in `admission`, `audit`, `lifecycle`, `processes` and `teardown`. From create on they are taken in a
//! task of their own, so that a caller who gives up half-way leaves nothing behind (C-32).

use std::sync::Arc;

use stockade_core::{Command, Error, ErrorCode, JobId, Result, SandboxId};
use stockade_fs::fresh_id;
use tokio::sync::oneshot;

use crate::audit::build_created_event;
use crate::engine::EngineInner;
use crate::execution::{Execution, SharedExecution};
use crate::history::Subscription;
use crate::lifecycle::{SandboxCaller, SandboxOrder, in_a_task};
use crate::request::SandboxRequest;
use crate::teardown::end_executions;

impl EngineInner {
    /// Runs one command in a sandbox of its own. Returns when the command has started; the outcome is revealed when
    /// nothing is left of the sandbox. `observe` gets the execution before its first byte.
    pub(crate) async fn run_once<T>(
        self: Arc<Self>,
        request: SandboxRequest,
        command: Command,
        observe: fn(&SharedExecution) -> T,
    ) -> Result<(Execution, T)> {
        // Tenant, admit.
        let order = self.admit_request(&request, Some(&command)).await?;
        let (claim, sandbox) = self.reserve_sandbox(&order).await?;
        // Audit.
        let shared = self.open_record(fresh_id()?, &order, sandbox, &command).await?;
        let observed = observe(&shared);
        // The handle cancels when it is dropped, so giving up half-way ends what the task has begun.
        let execution = Execution::new(Arc::clone(&shared));
        let (started, start) = oneshot::channel();
        tokio::spawn(async move {
            // Create.
            let (live, answer) = match self.create_reserved(&order, claim, &shared).await {
                Ok(created) => created,
                Err(failure) => {
                    let error = self.close_unstarted_record(&shared, failure, Ok(())).await;
                    return drop(started.send(Err(error)));
                }
            };
            // Run.
            let process = match self.start_first_command(&live, &command, &shared).await {
                Ok(process) => process,
                Err(failure) => {
                    end_executions(&live).await;
                    let destroyed = self.destroy_sandbox(&live).await;
                    let error = self.close_unstarted_record(&shared, failure, destroyed).await;
                    return drop(started.send(Err(error)));
                }
            };
            // Held so far: the pool makes no other before the command runs.
            drop(answer);
            let _ = started.send(Ok(()));
            let ended = self.supervise_command(&live, &shared, process).await;
            // Destroy, before the record is closed: that one says that nothing is left.
            end_executions(&live).await;
            let destroyed = self.destroy_sandbox(&live).await;
            // A reader of the outcome may destroy at once: no lease is held here by then.
            drop(live);
            // Audit.
            self.close_record(&shared, ended, destroyed).await;
        });
        wait_for_start(start).await?;
        Ok((execution, observed))
    }

    /// Creates a sandbox that lives on.
    pub(crate) async fn create(self: Arc<Self>, request: SandboxRequest) -> Result<SandboxId> {
        // Tenant, admit.
        let order = self.admit_request(&request, None).await?;
        self.create_admitted(order).await
    }

    /// Creates a sandbox that lives on, from an order that was admitted.
    pub(crate) async fn create_admitted(self: Arc<Self>, order: SandboxOrder) -> Result<SandboxId> {
        if let Some(claim) = self.claim(&order).await? {
            return self.keep_claimed(claim, &order).await;
        }
        let id: SandboxId = fresh_id()?;
        let (mut caller, cancelled) = SandboxCaller::new(&self, &id);
        in_a_task({
            let id = id.clone();
            async move {
                // Audit.
                self.record(build_created_event(&id, &order)).await?;
                // Create.
                let live = self.create_sandbox(&order, &id, cancelled.clone()).await?;
                // Run: what went on in it from a captured state. Commands come by `exec_in`.
                let carried = self.supervise_carried_programs(&live).await;
                if carried.is_ok() && self.keep_sandbox(&id, &live, &cancelled) {
                    return Ok(());
                }
                // Destroy: no caller waits for it any more.
                end_executions(&live).await;
                self.destroy_sandbox(&live).await.and(carried)
            }
        })
        .await?;
        caller.mark_served();
        Ok(id)
    }

    /// Runs one more command in a sandbox that lives on. Returns when the command has started.
    pub(crate) async fn exec_in<T>(
        self: Arc<Self>,
        job: JobId,
        id: &SandboxId,
        command: Command,
        observe: fn(&SharedExecution) -> T,
    ) -> Result<(Execution, T)> {
        let live = self.live(id)?;
        // Admit.
        self.admit_command_in(&live, &command).await?;
        // Audit.
        let shared = self.open_record(job, &live.order, id.clone(), &command).await?;
        let observed = observe(&shared);
        let execution = Execution::new(Arc::clone(&shared));
        let (started, start) = oneshot::channel();
        tokio::spawn(async move {
            live.remember_execution(&shared);
            // Run.
            let process = match self.start_command(&live, &command, &shared).await {
                Ok(process) => process,
                Err(failure) => {
                    let error = self.close_unstarted_record(&shared, failure, Ok(())).await;
                    return drop(started.send(Err(error)));
                }
            };
            let _ = started.send(Ok(()));
            // Audit. The sandbox is destroyed when its caller says so.
            self.finish_command(live, shared, process).await;
        });
        wait_for_start(start).await?;
        Ok((execution, observed))
    }
}

/// Gives a follower who is there from the first byte on.
pub(crate) fn follow_from_start(shared: &SharedExecution) -> Subscription {
    shared.history.follow()
}

/// Waits until a command has started, or did not and its record is closed.
async fn wait_for_start(start: oneshot::Receiver<Result<()>>) -> Result<()> {
    start.await.unwrap_or_else(|gone| {
        Err(Error::new(ErrorCode::System, "run a task", "the task ended").source(gone))
    })
}
