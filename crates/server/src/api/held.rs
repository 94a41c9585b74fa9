//! What the daemon holds: its sandboxes, and the executions in them, of which the newest ended ones are
//! remembered so that a client that comes back learns how they ended.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use stockade_core::{
    BackendName, Boundary, Enforcement, ErrorCode, JobId, Outcome, SandboxId, SandboxSpec, Span,
    TenantName,
};
use stockade_engine::{Engine, Timestamp, Watcher};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::ApiFailure;
use super::lifetime::{AskedLife, EndReason, SandboxEnd};
use crate::life::{Busy, LifeBounds, SandboxLife};

/// Executions at once in one sandbox.
pub(crate) const MAX_EXECUTIONS_PER_SANDBOX: usize = 32;
/// Ended executions that are remembered for each tenant.
const MAX_ENDED_PER_TENANT: usize = 128;

/// A sandbox of this daemon.
#[derive(Debug)]
pub(crate) struct HeldSandbox {
    pub id: SandboxId,
    pub spec: SandboxSpec,
    /// By both clocks.
    created: (Timestamp, Instant),
    backend: BackendName,
    boundary: Boundary,
    limits: Vec<Enforcement>,
    /// Its uses, and how long it may live. They change under the lock of its end.
    pub life: SandboxLife,
    end: Mutex<Option<SandboxEnd>>,
    /// Nothing is left of it.
    pub gone: CancellationToken,
    /// Room for executions.
    pub room: Arc<Semaphore>,
    _slot: OwnedSemaphorePermit,
}

/// Whether a sandbox can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SandboxState {
    /// It can.
    Running,
    /// It can after `resume`.
    Paused,
    /// It cannot: `ended` says why.
    Ended,
}

/// A sandbox as callers see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxView<'a> {
    id: &'a SandboxId,
    tenant: &'a TenantName,
    state: SandboxState,
    backend: &'a BackendName,
    boundary: Boundary,
    created: Timestamp,
    labels: &'a BTreeMap<String, String>,
    limits: &'a [Enforcement],
    /// When its lifetime is over.
    expires: Option<Timestamp>,
    /// Its idle timeout.
    idle: Option<Span>,
    /// When that is over, unless it is used before. Absent while it is used.
    idle_expires: Option<Timestamp>,
    /// Absent until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<SandboxEnd>,
}

impl HeldSandbox {
    /// A sandbox that was just made. Fails if it has ended already.
    pub(crate) fn of(
        engine: &Engine,
        id: SandboxId,
        spec: SandboxSpec,
        bounds: LifeBounds,
        slot: OwnedSemaphorePermit,
    ) -> stockade_core::Result<Self> {
        let (backend, boundary) = engine.walls(&id)?;
        Ok(Self {
            limits: engine.limits(&id)?,
            id,
            spec,
            created: (Timestamp::now(), Instant::now()),
            backend,
            boundary,
            life: SandboxLife::new(bounds),
            end: Mutex::default(),
            gone: CancellationToken::new(),
            room: Arc::new(Semaphore::new(MAX_EXECUTIONS_PER_SANDBOX)),
            _slot: slot,
        })
    }

    /// Whether it can be used, as far as that is known without waiting.
    pub(crate) fn state(&self, engine: &Engine) -> SandboxState {
        if self.end(engine).is_some() {
            return SandboxState::Ended;
        }
        match engine.sandbox(&self.id).is_ok_and(|sandbox| sandbox.is_paused()) {
            true => SandboxState::Paused,
            false => SandboxState::Running,
        }
    }

    fn lock_end(&self) -> MutexGuard<'_, Option<SandboxEnd>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That it has ended and why, if it has.
    pub(crate) fn end(&self, engine: &Engine) -> Option<SandboxEnd> {
        find_end(&mut self.lock_end(), engine, &self.id)
    }

    /// Whether its end is known.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock_end().is_some()
    }

    /// Whether it ended longer ago than this.
    pub(crate) fn ended_before(&self, age: Duration) -> bool {
        let Some(end) = *self.lock_end() else { return false };
        // A clock that was set back does not keep it for ever: its room is taken when it is needed.
        SystemTime::from(end.at).elapsed().is_ok_and(|elapsed| elapsed > age)
    }

    /// Says that it ends, for this reason unless there was another before.
    pub(crate) fn note_end(&self, reason: EndReason) {
        self.lock_end().get_or_insert(SandboxEnd { reason, at: Timestamp::now() });
    }

    /// One more use. Fails where it has ended.
    pub(crate) fn begin_use(&self, engine: &Engine) -> Result<Busy, ApiFailure> {
        let mut end = self.lock_end();
        refuse_ended(find_end(&mut end, engine, &self.id))?;
        Ok(self.life.begin_use())
    }

    /// Changes how long it may live, which is a use. Fails where it has ended.
    pub(crate) fn extend(&self, engine: &Engine, asked: AskedLife) -> Result<(), ApiFailure> {
        let mut end = self.lock_end();
        refuse_ended(find_end(&mut end, engine, &self.id))?;
        drop(self.life.begin_use());
        self.life.set_bounds(asked.apply_to(self.life.bounds()));
        Ok(())
    }

    /// Returns when its life is over and its end is noted. From then on nothing uses it.
    pub(crate) async fn wait_for_end_of_life(&self) {
        loop {
            self.life.expired().await;
            let mut end = self.lock_end();
            // It may have been used or extended in between.
            let due = self.life.next_end().filter(|due| due.at <= Instant::now());
            if let Some(due) = due {
                let reason = due.reason.into();
                end.get_or_insert(SandboxEnd { reason, at: Timestamp::now() });
                return;
            }
        }
    }

    /// An instant as callers are told it.
    pub(crate) fn timestamp(&self, at: Instant) -> Timestamp {
        let (created, since) = self.created;
        let lived = at.saturating_duration_since(since);
        SystemTime::from(created).checked_add(lived).map_or(created, Timestamp::from)
    }

    /// Fails where it is paused: what needs an answer from inside would wait until it is resumed.
    pub(crate) fn refuse_paused(&self, engine: &Engine) -> Result<(), ApiFailure> {
        match engine.sandbox(&self.id).is_ok_and(|sandbox| sandbox.is_paused()) {
            false => Ok(()),
            true => Err(ApiFailure::new(ErrorCode::Invalid, "the sandbox is paused")
                .remedy("resume it first")),
        }
    }

    /// What callers see.
    pub(crate) fn view(&self, engine: &Engine) -> SandboxView<'_> {
        let LifeBounds { idle, end } = self.life.bounds();
        let ended = self.end(engine);
        let unused = self.life.next_idle_end().filter(|_| ended.is_none());
        SandboxView {
            id: &self.id,
            tenant: &self.spec.tenant,
            state: self.state(engine),
            backend: &self.backend,
            boundary: self.boundary,
            created: self.created.0,
            labels: &self.spec.labels,
            limits: &self.limits,
            expires: end.map(|end| self.timestamp(end)),
            idle: idle.map(Span::from),
            idle_expires: unused.map(|at| self.timestamp(at)),
            ended,
        }
    }
}

/// The end of a sandbox: what is noted, or what is seen now.
fn find_end(noted: &mut Option<SandboxEnd>, engine: &Engine, id: &SandboxId) -> Option<SandboxEnd> {
    if noted.is_none() && !engine.sandbox(id).is_ok_and(|sandbox| sandbox.alive()) {
        let killed = engine.ended_on_purpose(id);
        let reason = if killed { EndReason::Killed } else { EndReason::Lost };
        *noted = Some(SandboxEnd { reason, at: Timestamp::now() });
    }
    *noted
}

fn refuse_ended(end: Option<SandboxEnd>) -> Result<(), ApiFailure> {
    let Some(SandboxEnd { reason, at }) = end else { return Ok(()) };
    let message = format!("the sandbox has ended at {at}: {}", reason.describe());
    Err(ApiFailure::new(ErrorCode::Gone, message).remedy("make a new one"))
}

/// An execution in a sandbox of this daemon.
#[derive(Debug)]
pub(crate) struct HeldExecution {
    /// Its place among all executions of this daemon.
    pub order: u64,
    pub watcher: Watcher,
    pub tenant: TenantName,
    started: Timestamp,
}

/// An execution as callers see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionView<'a> {
    id: &'a JobId,
    sandbox: &'a SandboxId,
    command: &'a [String],
    state: &'static str,
    started: Timestamp,
    /// Absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

impl HeldExecution {
    /// What callers see.
    pub(crate) fn view(&self) -> ExecutionView<'_> {
        let outcome = self.watcher.known_outcome();
        ExecutionView {
            id: self.watcher.job(),
            sandbox: self.watcher.sandbox(),
            command: self.watcher.command(),
            state: if outcome.is_some() { "ended" } else { "running" },
            started: self.started,
            outcome,
        }
    }
}

/// The executions of this daemon, in the order they began.
#[derive(Debug, Default)]
pub(crate) struct HeldExecutions {
    next: u64,
    by_order: BTreeMap<u64, Arc<HeldExecution>>,
    orders: BTreeMap<JobId, u64>,
}

impl HeldExecutions {
    /// Adds one, and forgets what ended longest ago where its tenant has many.
    pub(crate) fn insert(&mut self, watcher: Watcher, tenant: TenantName) {
        self.forget_ended(&tenant);
        let (order, job) = (self.next, watcher.job().clone());
        self.next += 1;
        let started = Timestamp::now();
        self.by_order.insert(order, Arc::new(HeldExecution { order, watcher, tenant, started }));
        self.orders.insert(job, order);
    }

    fn forget_ended(&mut self, tenant: &TenantName) {
        let ended = self
            .by_order
            .iter()
            .filter(|(_, held)| held.tenant == *tenant && held.watcher.known_outcome().is_some());
        let ended: Vec<u64> = ended.map(|(order, _)| *order).collect();
        let surplus = (ended.len() + 1).saturating_sub(MAX_ENDED_PER_TENANT);
        for order in &ended[..surplus] {
            if let Some(held) = self.by_order.remove(order) {
                self.orders.remove(held.watcher.job());
            }
        }
    }

    /// One by its id.
    pub(crate) fn get(&self, job: &JobId) -> Option<Arc<HeldExecution>> {
        self.by_order.get(self.orders.get(job)?).cloned()
    }

    /// Those of one sandbox that began after this place.
    pub(crate) fn of_sandbox(
        &self,
        sandbox: &SandboxId,
        after: Option<u64>,
    ) -> Vec<Arc<HeldExecution>> {
        let later = after.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.by_order.range((later, Bound::Unbounded)).map(|(_, held)| held);
        later.filter(|held| held.watcher.sandbox() == sandbox).cloned().collect()
    }

    /// Those that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = &HeldExecution> {
        let all = self.by_order.values().map(Arc::as_ref);
        all.filter(|held| held.watcher.known_outcome().is_none())
    }
}
