//! What all handlers share: the engine, what the daemon holds, and the bounds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stockade_core::{ErrorCode, JobId, SandboxId, SandboxSpec, TenantName};
use stockade_engine::{Engine, Quota, Watcher};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::attached::AttachedNames;
use super::caller::ApiCaller;
use super::directories::clear_archives;
use super::failure::ApiFailure;
use super::held::{HeldExecution, HeldExecutions, HeldSandbox};
use super::idempotency::IdempotencyKeys;
use super::lifetime::{EndReason, end_when_due};
use super::metrics::ApiCounters;
use super::tenant_slots::TenantSlots;
use crate::life::{Busy, LifeBounds};

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
/// Archives of directories at once, of all tenants and of one: each is on the host's disk while it is sent.
const MAX_ARCHIVES: usize = 4;
const MAX_ARCHIVES_PER_TENANT: usize = 1;
/// Directory of these archives, below the state directory.
const ARCHIVE_DIR: &str = "archives";
/// How long it is told of a sandbox that it has ended, and why.
const ENDED_MEMORY: Duration = Duration::from_secs(3600);

/// The room of one execution.
pub(crate) struct ExecutionRoom {
    /// In its sandbox, of its tenant, and in all.
    permits: [Option<OwnedSemaphorePermit>; 3],
    /// It uses its sandbox.
    _busy: Busy,
}

/// How the API is served.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// What is configured for every sandbox.
    pub configured: SandboxSpec,
    /// Sandboxes at once.
    pub max_sandboxes: usize,
    /// Lifetime of a sandbox of a token, at most and unless another is given.
    pub max_lifetime: Duration,
}

/// The API over one engine. Clones are the same.
#[derive(Clone)]
pub struct Api(Arc<ApiShared>);

/// What the clones share.
pub struct ApiShared {
    pub(crate) engine: Engine,
    configured: Mutex<Arc<SandboxSpec>>,
    pub(crate) max_lifetime: Duration,
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<HeldSandbox>>>,
    executions: Mutex<HeldExecutions>,
    sandbox_slots: Arc<Semaphore>,
    execution_slots: Arc<Semaphore>,
    tenant_execution_slots: TenantSlots,
    request_slots: TenantSlots,
    connection_slots: TenantSlots,
    /// Where archives are that are being made.
    pub(crate) archives: PathBuf,
    archive_slots: Arc<Semaphore>,
    tenant_archive_slots: TenantSlots,
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
        let archives = engine.state_dir().join(ARCHIVE_DIR);
        // Where that fails, archives are refused when they are asked for.
        let _ = clear_archives(&archives);
        Self(Arc::new(ApiShared {
            archives,
            archive_slots: Arc::new(Semaphore::new(MAX_ARCHIVES)),
            tenant_archive_slots: TenantSlots::new(MAX_ARCHIVES_PER_TENANT),
            engine,
            configured: Mutex::new(Arc::new(options.configured)),
            max_lifetime: options.max_lifetime,
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

impl Api {
    /// Takes over a configuration that was read again: for every sandbox that is made from now on.
    pub fn reconfigure(
        &self,
        configured: SandboxSpec,
        quotas: BTreeMap<TenantName, Quota>,
        default_quota: Quota,
    ) {
        let mut held = lock_shared(&self.configured);
        // Which backends there are was decided when the engine was opened.
        let backend = held.backend.clone();
        *held = Arc::new(SandboxSpec { backend, ..configured });
        drop(held);
        self.engine.set_quotas(quotas, default_quota);
    }

    /// Holds a sandbox that was just made, with the programs that went on in it, and ends it when its life is over.
    pub(crate) fn hold_sandbox(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        bounds: LifeBounds,
        slot: OwnedSemaphorePermit,
    ) -> Result<(), ApiFailure> {
        let held = HeldSandbox::of(&self.engine, id.clone(), spec, bounds, slot)?;
        for watcher in self.engine.executions(&id).unwrap_or_default() {
            let room = self.take_execution_room(&held, held.life.begin_use());
            self.hold_execution(watcher, held.spec.tenant.clone(), room);
        }
        self.counters.sandboxes.fetch_add(1, Ordering::Relaxed);
        let held = Arc::new(held);
        lock_shared(&self.sandboxes).insert(id, Arc::clone(&held));
        tokio::spawn(end_when_due(self.clone(), held));
        Ok(())
    }
}

impl ApiShared {
    /// What is configured for every sandbox.
    pub(crate) fn configured(&self) -> Arc<SandboxSpec> {
        Arc::clone(&lock_shared(&self.configured))
    }

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
        let alive = held.values().filter(|held| !held.has_ended());
        count_by_tenant(alive.map(|held| &held.spec.tenant))
    }

    pub(crate) fn count_sandboxes(&self) -> usize {
        lock_shared(&self.sandboxes).values().filter(|held| !held.has_ended()).count()
    }

    /// Lets a sandbox go that is destroyed.
    pub(crate) fn forget_sandbox(&self, id: &SandboxId) {
        if let Some(held) = lock_shared(&self.sandboxes).remove(id) {
            held.note_end(EndReason::Deleted);
            held.gone.cancel();
        }
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
    /// that. They are listed as ended until their room is needed, and for a bounded time.
    pub(crate) async fn release_ended(&self) {
        for held in self.sandboxes(&ApiCaller::OwnUser) {
            let ended = held.end(&self.engine).is_some();
            let dead = self.engine.sandbox(&held.id).is_ok_and(|sandbox| !sandbox.alive());
            if ended && dead {
                // One that cannot be destroyed now is tried again.
                let _ = self.engine.destroy(&held.id).await;
            }
            if ended && self.engine.sandbox(&held.id).is_err() {
                held.gone.cancel();
                if held.ended_before(ENDED_MEMORY) {
                    self.forget_sandbox(&held.id);
                }
            }
        }
    }

    /// Room for one more execution in a sandbox that is not paused.
    pub(crate) fn reserve_execution(
        &self,
        sandbox: &HeldSandbox,
    ) -> Result<ExecutionRoom, ApiFailure> {
        let busy = sandbox.begin_use(&self.engine)?;
        sandbox.refuse_paused(&self.engine)?;
        let room = self.take_execution_room(sandbox, busy);
        if room.permits.iter().all(Option::is_some) {
            return Ok(room);
        }
        let message =
            "as many programs run as may at once: in this sandbox, of this tenant or in all";
        Err(ApiFailure::new(ErrorCode::QuotaExceeded, message)
            .remedy("wait until one has ended, or cancel one"))
    }

    fn take_execution_room(&self, sandbox: &HeldSandbox, busy: Busy) -> ExecutionRoom {
        let of_tenant = self.tenant_execution_slots.take(&sandbox.spec.tenant);
        let permits = [take_slot(&sandbox.room), of_tenant, take_slot(&self.execution_slots)];
        ExecutionRoom { permits, _busy: busy }
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

    /// Room for one more archive of a directory.
    pub(crate) fn reserve_archive(
        &self,
        tenant: &TenantName,
    ) -> Result<[OwnedSemaphorePermit; 2], ApiFailure> {
        let room = (self.tenant_archive_slots.take(tenant), take_slot(&self.archive_slots));
        let (Some(of_tenant), Some(of_all)) = room else {
            let message = "as many archives are made as may be at once";
            return Err(ApiFailure::new(ErrorCode::QuotaExceeded, message)
                .remedy("wait until one was sent"));
        };
        Ok([of_tenant, of_all])
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

    /// Whether the daemon ends.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Makes nothing from now on, and ends everything that there is. Streams of events get their last one.
    pub(crate) async fn close(&self) -> stockade_core::Result<()> {
        self.closing.store(true, Ordering::SeqCst);
        self.making.close();
        self.making.wait().await;
        for held in self.sandboxes(&ApiCaller::OwnUser) {
            held.note_end(EndReason::Stopped);
        }
        let closed = self.engine.close().await;
        for held in std::mem::take(&mut *lock_shared(&self.sandboxes)).into_values() {
            held.gone.cancel();
        }
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
