//! The one pipeline every front end goes through, each of its forms as one function:
//! tenant → admit → audit → create → run → audit → destroy. A workspace is acquired before, released after.
//!
//! The steps are in `workspace_guard`, `admission`, `audit`, `lifecycle`, `processes` and `teardown`. From create on
//! they are taken in a task of their own, so that a caller who gives up half-way leaves nothing behind (C-32).

use std::sync::Arc;

use stockade_core::{Command, Error, ErrorCode, JobId, Result, SandboxId};
use stockade_fs::fresh_id;
use tokio::sync::{oneshot, watch};

use crate::audit::build_created_event;
use crate::engine::EngineInner;
use crate::execution::{Execution, SharedExecution};
use crate::history::Subscription;
use crate::lifecycle::{SandboxCaller, SandboxOrder, in_a_task};
use crate::pool::Claim;
use crate::request::SandboxRequest;
use crate::workspace_guard::{WorkspaceGuard, WorkspaceSlot};

impl EngineInner {
    /// Runs one command in a sandbox of its own. Returns when the command has started; the outcome is revealed when
    /// nothing is left of the sandbox. `observe` gets the execution before its first byte.
    pub(crate) async fn run_once<T>(
        self: Arc<Self>,
        mut request: SandboxRequest,
        command: Command,
        observe: fn(&SharedExecution) -> T,
    ) -> Result<(Execution, T)> {
        // The workspace comes first: where it lies is part of what is admitted.
        let workspace = self.acquire_requested(&mut request).await?;
        // Tenant, admit, audit.
        let (order, claim, shared) = match self.admit_run(&request, &command).await {
            Ok(admitted) => admitted,
            Err(error) => return Err(workspace.release_after(error).await),
        };
        let observed = observe(&shared);
        // The handle cancels when it is dropped, so giving up half-way ends what the task has begun.
        let execution = Execution::new(Arc::clone(&shared));
        let workspace = workspace.hand_over();
        let (started, start) = oneshot::channel();
        tokio::spawn(async move {
            // Create.
            let (live, answer) = match self.create_reserved(&order, claim, &shared).await {
                Ok(created) => created,
                Err(failure) => {
                    let why = self.close_unstarted_record(&shared, failure, Ok(()), workspace);
                    return drop(started.send(Err(why.await)));
                }
            };
            // Run.
            let process = match self.start_first_command(&live, &command, &shared).await {
                Ok(process) => process,
                Err(failure) => {
                    let destroyed = self.destroy_with_executions(&live).await;
                    let why = self.close_unstarted_record(&shared, failure, destroyed, workspace);
                    return drop(started.send(Err(why.await)));
                }
            };
            // Held so far: the pool makes no other before the command runs.
            drop(answer);
            let _ = started.send(Ok(()));
            let ended = self.supervise_command(&live, &shared, process).await;
            // Destroy, before the outcome is told. A reader of that may destroy at once: no lease is held by then.
            let destroyed = self.destroy_with_executions(&live).await;
            drop(live);
            // Audit, before the workspace is looked through: if this process dies meanwhile, the end is known.
            let closed = self.close_record(&shared, ended).await;
            let released = workspace.release().await;
            self.reveal_outcome(&shared, closed, destroyed, released);
        });
        wait_for_start(start).await?;
        Ok((execution, observed))
    }

    /// Admits a command of its own and opens its record.
    async fn admit_run(
        &self,
        request: &SandboxRequest,
        command: &Command,
    ) -> Result<(SandboxOrder, Option<Claim>, Arc<SharedExecution>)> {
        // Tenant, admit.
        let order = self.admit_request(request, Some(command)).await?;
        let slot = self.begin_execution(&order)?;
        let (claim, sandbox) = self.reserve_sandbox(&order).await?;
        // Audit.
        let shared = self.open_record(fresh_id()?, &order, sandbox, command).await?;
        shared.hold_slot(slot);
        Ok((order, claim, shared))
    }

    /// Creates a sandbox that lives on.
    pub(crate) async fn create(self: Arc<Self>, mut request: SandboxRequest) -> Result<SandboxId> {
        let workspace = self.acquire_requested(&mut request).await?;
        // Tenant, admit.
        match self.admit_request(&request, None).await {
            Ok(order) => self.create_admitted(order, workspace).await,
            Err(error) => Err(workspace.release_after(error).await),
        }
    }

    /// Creates a sandbox that lives on, from an order that was admitted.
    pub(crate) async fn create_admitted(
        self: Arc<Self>,
        order: SandboxOrder,
        workspace: WorkspaceGuard,
    ) -> Result<SandboxId> {
        if let Err(error) = self.count_start(&order) {
            return Err(workspace.release_after(error).await);
        }
        // Nothing is prepared for a workspace that was acquired just now.
        if workspace.is_none()
            && let Some(claim) = self.claim(&order).await?
        {
            return self.keep_claimed(claim, &order).await;
        }
        let id: SandboxId = fresh_id()?;
        let (mut caller, cancelled) = SandboxCaller::new(&self, &id);
        let workspace = workspace.hand_over();
        in_a_task({
            let id = id.clone();
            async move {
                match self.create_kept(&id, &order, &workspace, cancelled).await {
                    Ok(true) => Ok(()),
                    Ok(false) => workspace.release().await,
                    Err(error) => Err(workspace.release_after(error).await),
                }
            }
        })
        .await?;
        caller.mark_served();
        Ok(id)
    }

    /// Creates a sandbox and makes it known; answers whether its caller still waited. If not, nothing is left.
    async fn create_kept(
        self: &Arc<Self>,
        id: &SandboxId,
        order: &SandboxOrder,
        workspace: &WorkspaceSlot,
        cancelled: watch::Receiver<bool>,
    ) -> Result<bool> {
        // Audit.
        self.record(build_created_event(id, order)).await?;
        // Create.
        let live = self.create_sandbox(order, id, cancelled.clone()).await?;
        live.set_workspace(workspace.clone());
        // Run what went on in it from a captured state. Commands come by `exec_in`.
        let carried = self.supervise_carried_programs(&live).await;
        if carried.is_ok() && self.keep_sandbox(id, &live, &cancelled) {
            return Ok(true);
        }
        // Destroy.
        self.destroy_with_executions(&live).await.and(carried).map(|()| false)
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
        let slot = self.begin_execution(&live.order)?;
        // Audit.
        let shared = self.open_record(job, &live.order, id.clone(), &command).await?;
        shared.hold_slot(slot);
        let observed = observe(&shared);
        let execution = Execution::new(Arc::clone(&shared));
        let (started, start) = oneshot::channel();
        tokio::spawn(async move {
            live.remember_execution(&shared);
            // Run.
            let process = match self.start_command(&live, &command, &shared).await {
                Ok(process) => process,
                Err(failure) => {
                    // The workspace is the sandbox's, which lives on.
                    let none = WorkspaceSlot::default();
                    let why = self.close_unstarted_record(&shared, failure, Ok(()), none);
                    return drop(started.send(Err(why.await)));
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
