//! What all handlers share: the engine, what the daemon holds, and the bounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_core::{ErrorCode, JobId, SandboxId, SandboxSpec, TenantName};
use stockade_engine::{Engine, Watcher};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::attached::AttachedNames;
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::held::{HeldExecution, HeldExecutions, HeldSandbox, SandboxState};
use super::idempotency::IdempotencyKeys;
use super::metrics::ApiCounters;
use super::tenant_slots::TenantSlots;

/// Executions at once in all sandboxes.
const MAX_EXECUTIONS: usize = 256;
/// Executions at once in all sandboxes of one tenant.
const MAX_EXECUTIONS_PER_TENANT: usize = 128;
/// Connections at once by TCP of one tenant.
const MAX_CONNECTIONS_PER_TENANT: usize = 96;
/// Requests at once of one tenant, streams of events included.
const MAX_REQUESTS_PER_TENANT: usize = 64;
/// Readers of the journal at once: each may read much of it.
const MAX_JOURNAL_READERS: usize = 2;

/// The room of one execution: in its sandbox, of its tenant, and in all.
pub(crate) type ExecutionRoom = [Option<OwnedSemaphorePermit>; 3];

/// How the API is served.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// What is configured for every sandbox.
    pub configured: SandboxSpec,
    /// Sandboxes at once.
    pub max_sandboxes: usize,
}

/// The API over one engine. Clones are the same.
#[derive(Clone)]
pub struct Api(Arc<ApiShared>);

/// What the clones share.
pub struct ApiShared {
    pub(crate) engine: Engine,
    pub(crate) configured: SandboxSpec,
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<HeldSandbox>>>,
    executions: Mutex<HeldExecutions>,
    sandbox_slots: Arc<Semaphore>,
    execution_slots: Arc<Semaphore>,
    tenant_execution_slots: TenantSlots,
    request_slots: TenantSlots,
    connection_slots: TenantSlots,
    pub(crate) journal_readers: Arc<Semaphore>,
    pub(crate) created: IdempotencyKeys<SandboxId>,
    pub(crate) started: IdempotencyKeys<JobId>,
    pub(crate) counters: ApiCounters,
    pub(crate) attached: AttachedNames,
    closing: AtomicBool,
    /// What is being made: the engine is closed after it.
    making: TaskTracker,
}

impl std::ops::Deref for Api {
    type Target = ApiShared;

    fn deref(&self) -> &ApiShared {
        &self.0
    }
}

fn lock_shared<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Api {
    /// The API over an engine, which it closes when it is stopped.
    pub fn new(engine: Engine, options: ApiOptions) -> Self {
        Self(Arc::new(ApiShared {
            engine,
            configured: options.configured,
            sandboxes: Mutex::default(),
            executions: Mutex::default(),
            sandbox_slots: Arc::new(Semaphore::new(options.max_sandboxes)),
            execution_slots: Arc::new(Semaphore::new(MAX_EXECUTIONS)),
            tenant_execution_slots: TenantSlots::new(MAX_EXECUTIONS_PER_TENANT),
            request_slots: TenantSlots::new(MAX_REQUESTS_PER_TENANT),
            connection_slots: TenantSlots::new(MAX_CONNECTIONS_PER_TENANT),
            journal_readers: Arc::new(Semaphore::new(MAX_JOURNAL_READERS)),
            created: IdempotencyKeys::default(),
            started: IdempotencyKeys::default(),
            counters: ApiCounters::default(),
            attached: AttachedNames::default(),
            closing: AtomicBool::new(false),
            making: TaskTracker::new(),
        }))
    }
}

impl ApiShared {
    /// A sandbox that is there for the caller.
    pub(crate) fn sandbox(
        &self,
        caller: &ApiCaller,
        id: &SandboxId,
    ) -> Result<Arc<HeldSandbox>, ApiFailure> {
        let held = lock_shared(&self.sandboxes).get(id).cloned();
        held.filter(|held| caller.sees(&held.spec.tenant))
            .ok_or_else(|| ApiFailure::not_found("sandbox", id.as_str()))
    }

    /// The sandboxes that are there for the caller, by id.
    pub(crate) fn sandboxes(&self, caller: &ApiCaller) -> Vec<Arc<HeldSandbox>> {
        let held = lock_shared(&self.sandboxes);
        held.values().filter(|held| caller.sees(&held.spec.tenant)).cloned().collect()
    }

    /// How many sandboxes each tenant has.
    pub(crate) fn sandboxes_by_tenant(&self) -> BTreeMap<TenantName, u64> {
        let held = lock_shared(&self.sandboxes);
        count_by_tenant(held.values().map(|held| &held.spec.tenant))
    }

    pub(crate) fn count_sandboxes(&self) -> usize {
        lock_shared(&self.sandboxes).len()
    }

    /// Holds a sandbox that was just made, with the programs that went on in it.
    pub(crate) fn hold_sandbox(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        slot: OwnedSemaphorePermit,
    ) -> Result<(), ApiFailure> {
        let held = HeldSandbox::of(&self.engine, id.clone(), spec, slot)?;
        for watcher in self.engine.executions(&id).unwrap_or_default() {
            let room = self.take_execution_room(&held);
            self.hold_execution(watcher, held.spec.tenant.clone(), room);
        }
        self.counters.sandboxes.fetch_add(1, Ordering::Relaxed);
        lock_shared(&self.sandboxes).insert(id, Arc::new(held));
        Ok(())
    }

    /// Lets a sandbox go that is destroyed.
    pub(crate) fn forget_sandbox(&self, id: &SandboxId) {
        lock_shared(&self.sandboxes).remove(id);
    }

    /// Room for one more sandbox, if need be that of ended ones.
    pub(crate) async fn reserve_sandbox(&self) -> Result<OwnedSemaphorePermit, ApiFailure> {
        if let Some(slot) = take_slot(&self.sandbox_slots) {
            return Ok(slot);
        }
        self.release_ended().await;
        for held in self.sandboxes(&ApiCaller::OwnUser) {
            if self.engine.sandbox(&held.id).is_err() {
                self.forget_sandbox(&held.id);
            }
        }
        take_slot(&self.sandbox_slots).ok_or_else(|| {
            ApiFailure::new(ErrorCode::QuotaExceeded, "the daemon has as many sandboxes as it may")
                .remedy("delete one, or start the daemon with a higher --max-sandboxes")
        })
    }

    /// Gives back what is left of sandboxes that have ended by themselves or by another process, which waits for
    /// that. They are listed as ended until their room is needed.
    pub(crate) async fn release_ended(&self) {
        for held in self.sandboxes(&ApiCaller::OwnUser) {
            let ended = held.state(&self.engine) == SandboxState::Ended;
            if ended && self.engine.sandbox(&held.id).is_ok() {
                // One that cannot be destroyed now is tried again.
                let _ = self.engine.destroy(&held.id).await;
            }
        }
    }

    /// Room for one more execution in a sandbox that is not paused.
    pub(crate) fn reserve_execution(
        &self,
        sandbox: &HeldSandbox,
    ) -> Result<ExecutionRoom, ApiFailure> {
        sandbox.refuse_paused(&self.engine)?;
        let room = self.take_execution_room(sandbox);
        if room.iter().all(Option::is_some) {
            return Ok(room);
        }
        let message =
            "as many programs run as may at once: in this sandbox, of this tenant or in all";
        Err(ApiFailure::new(ErrorCode::QuotaExceeded, message)
            .remedy("wait until one has ended, or cancel one"))
    }

    fn take_execution_room(&self, sandbox: &HeldSandbox) -> ExecutionRoom {
        let of_tenant = self.tenant_execution_slots.take(&sandbox.spec.tenant);
        [take_slot(&sandbox.room), of_tenant, take_slot(&self.execution_slots)]
    }

    /// Holds an execution that has begun, and its room until it has ended.
    pub(crate) fn hold_execution(&self, watcher: Watcher, tenant: TenantName, room: ExecutionRoom) {
        self.counters.executions.fetch_add(1, Ordering::Relaxed);
        lock_shared(&self.executions).insert(watcher.clone(), tenant);
        tokio::spawn(async move {
            watcher.outcome().await;
            drop(room);
        });
    }

    /// An execution that is there for the caller.
    pub(crate) fn execution(
        &self,
        caller: &ApiCaller,
        job: &JobId,
    ) -> Result<Arc<HeldExecution>, ApiFailure> {
        let held = lock_shared(&self.executions).get(job);
        held.filter(|held| caller.sees(&held.tenant))
            .ok_or_else(|| ApiFailure::not_found("execution", job.as_str()))
    }

    /// Fails where the sandbox of an execution is paused.
    pub(crate) fn refuse_paused(&self, execution: &HeldExecution) -> Result<(), ApiFailure> {
        let held = lock_shared(&self.sandboxes).get(execution.watcher.sandbox()).cloned();
        held.map_or(Ok(()), |held| held.refuse_paused(&self.engine))
    }

    /// The executions of one sandbox that began after this place, in the order they began.
    pub(crate) fn executions_of(
        &self,
        sandbox: &SandboxId,
        after: Option<u64>,
    ) -> Vec<Arc<HeldExecution>> {
        lock_shared(&self.executions).of_sandbox(sandbox, after)
    }

    pub(crate) fn count_running(&self) -> usize {
        lock_shared(&self.executions).running().count()
    }

    /// How many executions of each tenant run.
    pub(crate) fn running_by_tenant(&self) -> BTreeMap<TenantName, u64> {
        count_by_tenant(lock_shared(&self.executions).running().map(|held| &held.tenant))
    }

    /// Room for one more request of a tenant; the socket's own user needs none.
    pub(crate) fn reserve_request(
        &self,
        caller: &ApiCaller,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiFailure> {
        let Some(tenant) = caller.tenant() else { return Ok(None) };
        self.request_slots.take(tenant).map(Some).ok_or_else(|| {
            let message = format!("tenant `{tenant}` has as many requests open as it may");
            ApiFailure::new(ErrorCode::QuotaExceeded, message)
                .remedy("end a stream of events, or wait")
        })
    }

    /// Room for one more connection of a tenant.
    pub(crate) fn reserve_connection(
        &self,
        tenant: &TenantName,
    ) -> Result<OwnedSemaphorePermit, ApiFailure> {
        self.connection_slots.take(tenant).ok_or_else(|| {
            let message = format!("tenant `{tenant}` has as many connections open as it may");
            ApiFailure::new(ErrorCode::QuotaExceeded, message).remedy("close one, or wait").last()
        })
    }

    /// Makes something; fails once the daemon ends. The engine is closed after what is being made.
    pub(crate) async fn make<T>(
        &self,
        work: impl Future<Output = Result<T, ApiFailure>>,
    ) -> Result<T, ApiFailure> {
        // Before the question: who comes after it is waited for.
        let _counted = self.making.token();
        if self.closing.load(Ordering::SeqCst) {
            let message = "the daemon is being ended";
            return Err(ApiFailure::new(ErrorCode::Unavailable, message).last());
        }
        work.await
    }

    /// Makes nothing from now on, and ends everything that there is. Streams of events get their last one.
    pub(crate) async fn close(&self) -> stockade_core::Result<()> {
        self.closing.store(true, Ordering::SeqCst);
        self.making.close();
        self.making.wait().await;
        let closed = self.engine.close().await;
        lock_shared(&self.sandboxes).clear();
        closed
    }
}

fn count_by_tenant<'a>(tenants: impl Iterator<Item = &'a TenantName>) -> BTreeMap<TenantName, u64> {
    let mut counts = BTreeMap::new();
    for tenant in tenants {
        *counts.entry(tenant.clone()).or_default() += 1;
    }
    counts
}

fn take_slot(slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(slots).try_acquire_owned().ok()
}
