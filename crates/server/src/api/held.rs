//! What the daemon holds: its sandboxes, and the executions in them, of which the newest ended ones are
//! remembered so that a client that comes back learns how they ended.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_core::{
    BackendName, Boundary, Enforcement, ErrorCode, JobId, Outcome, SandboxId, SandboxSpec,
    TenantName,
};
use stockade_engine::{Engine, Timestamp, Watcher};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::ApiFailure;

/// Executions at once in one sandbox.
pub(crate) const MAX_EXECUTIONS_PER_SANDBOX: usize = 32;
/// Ended executions that are remembered for each tenant.
const MAX_ENDED_PER_TENANT: usize = 128;

/// A sandbox of this daemon.
#[derive(Debug)]
pub(crate) struct HeldSandbox {
    pub id: SandboxId,
    pub spec: SandboxSpec,
    created: Timestamp,
    backend: BackendName,
    boundary: Boundary,
    limits: Vec<Enforcement>,
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
    /// It cannot: another process ended it, or its walls went away.
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
}

impl HeldSandbox {
    /// A sandbox that was just made. Fails if it has ended already.
    pub(crate) fn of(
        engine: &Engine,
        id: SandboxId,
        spec: SandboxSpec,
        slot: OwnedSemaphorePermit,
    ) -> stockade_core::Result<Self> {
        let (backend, boundary) = engine.walls(&id)?;
        Ok(Self {
            limits: engine.limits(&id)?,
            id,
            spec,
            created: Timestamp::now(),
            backend,
            boundary,
            room: Arc::new(Semaphore::new(MAX_EXECUTIONS_PER_SANDBOX)),
            _slot: slot,
        })
    }

    /// Whether it can be used, as far as that is known without waiting.
    pub(crate) fn state(&self, engine: &Engine) -> SandboxState {
        match engine.sandbox(&self.id) {
            Ok(sandbox) if sandbox.alive() && sandbox.is_paused() => SandboxState::Paused,
            Ok(sandbox) if sandbox.alive() => SandboxState::Running,
            Ok(_) | Err(_) => SandboxState::Ended,
        }
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
        SandboxView {
            id: &self.id,
            tenant: &self.spec.tenant,
            state: self.state(engine),
            backend: &self.backend,
            boundary: self.boundary,
            created: self.created,
            labels: &self.spec.labels,
            limits: &self.limits,
        }
    }
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
