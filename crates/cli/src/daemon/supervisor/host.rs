//! What the sessions of one sandbox share: the engine, the sandbox's id, its programs, and the wish
//! that it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_core::{
    Command, Ending, Error, ErrorCode, Result, SandboxId, SandboxSpec, Span, Workspace, WorkspaceId,
};
use stockade_engine::{Engine, Execution, Subscription, Watcher};
use stockade_server::life::{Busy, LifeBounds, SandboxLife};
use stockade_workspaces::Workspaces;
use tokio::sync::watch;
use tokio::time::Instant;

use super::jobs::SupervisedJobs;
use crate::daemon::message::{Info, SupervisorOrder};
use crate::daemon::wire_error::WireError;

/// How a sandbox ended: nothing is left, or why that is not so.
pub type Last = std::result::Result<(), WireError>;

/// What the sessions of one sandbox share.
pub struct SupervisorHost {
    /// Made the sandbox and holds its lease.
    pub engine: Engine,
    /// The sandbox.
    pub id: SandboxId,
    /// What it was asked to be.
    pub spec: SandboxSpec,
    /// The workspace that keeps its changes apart.
    pub workspace: Option<WorkspaceId>,
    /// Whether its workspace was made for it, or for the sandbox that it is a copy of.
    pub has_made_workspace: bool,
    /// Where that is kept.
    pub workspaces: Option<Workspaces>,
    /// What of the host its files come from, where no setting is read.
    pub origin: Workspace,
    /// Idle timeout: how long it lives while it is not in use.
    pub idle: Option<Span>,
    /// How long it lives at most.
    pub lifetime: Option<Span>,
    /// Its current uses, and when it has to end.
    pub life: SandboxLife,
    jobs: Mutex<SupervisedJobs>,
    asked: watch::Sender<bool>,
    ended: watch::Sender<Option<Last>>,
}

/// How long a sandbox may live that begins now.
fn bound_life(order: &SupervisorOrder) -> LifeBounds {
    let end = order.lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime.into()));
    LifeBounds { idle: order.idle.map(Span::into), end }
}

impl SupervisorHost {
    /// For a sandbox that has just been made.
    pub fn new(
        engine: Engine,
        id: SandboxId,
        order: &SupervisorOrder,
        workspaces: Option<Workspaces>,
    ) -> Arc<Self> {
        Arc::new(Self {
            workspaces,
            origin: order.origin.clone(),
            engine,
            id,
            spec: order.spec.clone(),
            workspace: order.workspace.clone(),
            has_made_workspace: order.workspace.is_some() || order.shares_workspace,
            idle: order.idle,
            lifetime: order.lifetime,
            life: SandboxLife::new(bound_life(order)),
            jobs: Mutex::default(),
            asked: watch::Sender::new(false),
            ended: watch::Sender::new(None),
        })
    }

    /// Its programs.
    pub fn jobs(&self) -> MutexGuard<'_, SupervisedJobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is to say about it.
    pub fn info(&self) -> Info {
        let jobs = self.jobs().info();
        let (id, workspace) = (self.id.clone(), self.workspace.clone());
        let paused = self.is_paused();
        Info { id, workspace, idle: self.idle, lifetime: self.lifetime, paused, jobs }
    }

    /// Stops everything in it where it is.
    pub async fn pause(&self) -> Result<()> {
        self.engine.pause(&self.id).await
    }

    /// Lets it go on.
    pub async fn resume(&self) -> Result<()> {
        self.engine.resume(&self.id).await
    }

    fn is_paused(&self) -> bool {
        self.engine.sandbox(&self.id).is_ok_and(|sandbox| sandbox.is_paused())
    }

    /// Refuses what would wait for a sandbox which stands still.
    pub fn refuse_paused(&self, operation: &'static str) -> Result<()> {
        if !self.is_paused() {
            return Ok(());
        }
        let message = format!("sandbox `{}` is paused", self.id);
        Err(Error::new(ErrorCode::Denied, operation, message)
            .remedy(format!("continue it with `stockade resume {}`", self.id)))
    }

    /// Starts a program, with a follower from its first byte on.
    pub async fn exec(self: &Arc<Self>, command: Command) -> Result<(Execution, Subscription)> {
        self.refuse_paused("exec")?;
        self.jobs().room()?;
        let busy = self.life.begin_use();
        let started = self.engine.exec_followed(&self.id, command).await;
        let (execution, follower) = started.inspect_err(|error| self.look_after(error))?;
        let watcher = self.keep_job(&execution);
        tokio::spawn(Arc::clone(self).run_to_end(watcher, busy));
        Ok((execution, follower))
    }

    /// Looks after the programs that went on when the sandbox was made from a captured state.
    pub fn look_after_carried(self: &Arc<Self>) -> Result<()> {
        for watcher in self.engine.executions(&self.id)? {
            let busy = self.life.begin_use();
            self.jobs().add(watcher.clone());
            tokio::spawn(Arc::clone(self).run_to_end(watcher, busy));
        }
        Ok(())
    }

    fn keep_job(&self, execution: &Execution) -> Watcher {
        let watcher = Watcher::clone(execution);
        self.jobs().add(watcher.clone());
        watcher
    }

    async fn run_to_end(self: Arc<Self>, watcher: Watcher, busy: Busy) {
        let outcome = watcher.outcome().await;
        self.jobs().finish(watcher.job(), &outcome);
        drop(busy);
        // A program whose end could not be confirmed ends the whole sandbox.
        if matches!(outcome.ending, Ending::Lost(_)) || self.engine.sandbox(&self.id).is_err() {
            self.ask_to_end();
        }
    }

    /// A sandbox whose walls have fallen cannot be used any more: what is left of it is ended too.
    fn look_after(&self, error: &Error) {
        if matches!(error.code(), ErrorCode::Gone | ErrorCode::Protocol) {
            self.ask_to_end();
        }
    }

    /// Requests the end of the sandbox.
    pub fn ask_to_end(&self) {
        self.asked.send_replace(true);
    }

    /// Returns when its end was requested.
    pub async fn asked_to_end(&self) {
        // The sender lives in `self`, so the channel cannot close.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Tells every waiting caller that it has ended.
    pub fn set_ended(&self, last: Last) {
        self.ended.send_replace(Some(last));
    }

    /// Returns when the sandbox has ended.
    pub async fn ended(&self) -> Last {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(last) = ended.borrow_and_update().clone() {
                return last;
            }
            let _ = ended.changed().await;
        }
    }
}
