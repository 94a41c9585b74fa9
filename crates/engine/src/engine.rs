//! The engine as front ends see it. What each call does is in `pipeline`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use stockade_core::{
    Backend, BackendChoice, BackendName, Boundary, Capabilities, Command, Enforcement, EngineId,
    Error, ErrorCode, Feature, JobId, Result, Sandbox, SandboxId, SandboxSpec, Support, TenantName,
};
use stockade_fs::{StateDir, fresh_id};
use tokio::task::JoinHandle;

use crate::asking::KnownAsker;
use crate::capability_cache::CapabilityCache;
use crate::config::{EngineConfig, Quota};
use crate::egress::LazyNetwork;
use crate::execution::{Execution, SharedExecution, Watcher};
use crate::history::Subscription;
use crate::journal::{Event, Journal};
use crate::lease::{LeaseListing, Leases};
use crate::lifecycle::RunningSandbox;
use crate::output_log::OutputLogs;
use crate::pipeline::follow_from_start;
use crate::pool::Pools;
use crate::presence::{EnginePresence, Engines};
use crate::quota::QuotaLedger;
use crate::registry::Registry;
use crate::request::SandboxRequest;
use crate::secrets::HeldSecrets;
use crate::select::{Selection, select};
use crate::snapshots::Snapshots;

/// The engine. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    pub config: EngineConfig,
    /// Where they were changed after it was opened.
    pub changed_quotas: Mutex<Option<QuotaTable>>,
    pub registry: Registry,
    pub journal: Arc<Journal>,
    pub leases: Leases,
    pub quotas: Arc<QuotaLedger>,
    pub engines: Engines,
    /// From the first record on that this engine opens.
    pub presence: Mutex<Option<EnginePresence>>,
    pub snapshots: Arc<Snapshots>,
    pub output_logs: OutputLogs,
    pub live: Mutex<HashMap<SandboxId, Arc<RunningSandbox>>>,
    pub running: Mutex<HashMap<JobId, Weak<SharedExecution>>>,
    /// Sandboxes that other processes have ended on purpose, the newest last.
    pub killed: Mutex<VecDeque<SandboxId>>,
    pub pools: Pools,
    pub network: LazyNetwork,
    /// Workspaces that are being released since their callers went away before there was a sandbox.
    pub releases: Mutex<Vec<JoinHandle<()>>>,
    pub secrets: HeldSecrets,
    /// Reaches a person who is asked about hosts.
    pub host_asker: OnceLock<KnownAsker>,
}

/// Quotas by tenant, and that of every other tenant.
pub(crate) type QuotaTable = (BTreeMap<TenantName, Quota>, Quota);

pub(crate) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Opens an engine on a state directory, with the backends it may use. Several engines may share
    /// one directory. What dead ones left is removed first, unless the configuration says not to.
    pub async fn open(config: EngineConfig, backends: Vec<Arc<dyn Backend>>) -> Result<Self> {
        let state = StateDir::open(&config.state_dir)?;
        let kept = CapabilityCache::below(&config.state_dir);
        let inner = EngineInner {
            journal: Arc::new(Journal::open(&state, config.journal)?),
            leases: Leases::open(&state)?,
            quotas: Arc::new(QuotaLedger::new(config.state_dir.clone())),
            engines: Engines::open(&state)?,
            presence: Mutex::default(),
            snapshots: Arc::new(Snapshots::open(&state)?),
            output_logs: OutputLogs::open(&state, config.output_logs)?,
            registry: Registry::new(backends, kept, config.images.clone()),
            live: Mutex::default(),
            running: Mutex::default(),
            killed: Mutex::default(),
            pools: Pools::default(),
            network: LazyNetwork::default(),
            releases: Mutex::default(),
            secrets: HeldSecrets::default(),
            host_asker: OnceLock::new(),
            changed_quotas: Mutex::default(),
            config,
        };
        let engine = Self { inner: Arc::new(inner) };
        if engine.inner.config.reap_on_open {
            engine.reap().await?;
        }
        Ok(engine)
    }

    /// Which backend this spec would take, and why each other one would not. Creates nothing.
    pub async fn explain(&self, spec: &SandboxSpec) -> Selection {
        let all = SandboxSpec { backend: BackendChoice::Auto, ..SandboxSpec::default() };
        let registry = &self.inner.registry;
        let mut measured = registry.measured(&all).await;
        if let BackendChoice::Named(name) = &spec.backend
            && let Some(now) = registry.capabilities(name).await
        {
            let named = measured.iter_mut().filter(|known| known.backend == *name);
            named.for_each(|known| known.clone_from(now));
        }
        select(spec, &measured)
    }

    /// Whether the backend that this spec would take has a feature in full.
    pub async fn offers(&self, spec: &SandboxSpec, feature: Feature) -> bool {
        let measured = self.inner.registry.measured(spec).await;
        let chosen = select(spec, &measured).chosen;
        let taken = measured.iter().find(|known| Some(&known.backend) == chosen.as_ref());
        taken.is_some_and(|known| matches!(known.support(feature), Support::Full { .. }))
    }

    /// What each backend has on this host, measured now.
    pub async fn detect(&self) -> Vec<Capabilities> {
        self.inner.registry.measure_anew().await
    }

    /// What one backend has on this host, as it was last measured.
    pub async fn detect_one(&self, backend: &BackendName) -> Option<Capabilities> {
        self.inner.registry.capabilities(backend).await.cloned()
    }

    /// Runs one command in a sandbox of its own, which is destroyed before the outcome is revealed.
    /// So is its workspace released, if the request names where it comes from. If this future is dropped,
    /// nothing is left (C-32).
    pub async fn run(
        &self,
        request: impl Into<SandboxRequest>,
        command: Command,
    ) -> Result<Execution> {
        let run = Arc::clone(&self.inner).run_once(request.into(), command, |_| ());
        Box::pin(run).await.map(|(execution, ())| execution)
    }

    /// Like [`Engine::run`], with a follower who is there from the first byte on.
    pub async fn run_followed(
        &self,
        request: impl Into<SandboxRequest>,
        command: Command,
    ) -> Result<(Execution, Subscription)> {
        let run = Arc::clone(&self.inner).run_once(request.into(), command, follow_from_start);
        Box::pin(run).await
    }

    /// A sandbox that stays until it is destroyed or its engine ends: a prepared one where a pool has
    /// what is asked for, else a new one.
    pub async fn create(&self, request: impl Into<SandboxRequest>) -> Result<SandboxId> {
        // In a box: callers nest this future deep in their own.
        Box::pin(Arc::clone(&self.inner).create(request.into())).await
    }

    /// Runs one more command in a sandbox of this engine.
    pub async fn exec(&self, id: &SandboxId, command: Command) -> Result<Execution> {
        let exec = Arc::clone(&self.inner).exec_in(fresh_id()?, id, command, |_| ());
        exec.await.map(|(execution, ())| execution)
    }

    /// The id that the records of this engine name, so that another one closes them if it dies.
    pub fn id(&self) -> Result<EngineId> {
        self.inner.engine_id()
    }

    /// The id of a record that is to be opened later, for what has to name it before.
    pub fn fresh_job(&self) -> Result<JobId> {
        fresh_id()
    }

    /// Like [`Engine::exec`], with a follower who is there from the first byte on.
    pub async fn exec_followed(
        &self,
        id: &SandboxId,
        command: Command,
    ) -> Result<(Execution, Subscription)> {
        self.exec_followed_as(self.fresh_job()?, id, command).await
    }

    /// Like [`Engine::exec_followed`], under an id from [`Engine::fresh_job`] that is used once.
    pub async fn exec_followed_as(
        &self,
        job: JobId,
        id: &SandboxId,
        command: Command,
    ) -> Result<(Execution, Subscription)> {
        Arc::clone(&self.inner).exec_in(job, id, command, follow_from_start).await
    }

    /// Who built the walls of a live sandbox of this engine, and of what kind they are.
    pub fn walls(&self, id: &SandboxId) -> Result<(BackendName, Boundary)> {
        let live = self.inner.live(id)?;
        Ok((live.order.admitted.backend().clone(), live.order.admitted.boundary()))
    }

    /// How each limit of a live sandbox of this engine is enforced.
    pub fn limits(&self, id: &SandboxId) -> Result<Vec<Enforcement>> {
        Ok(self.inner.live(id)?.order.admitted.enforcement().to_vec())
    }

    /// Records what a front end decided or did. Returns when it is written (C-40).
    pub async fn record(&self, event: Event) -> Result<()> {
        self.inner.record(event).await
    }

    /// A live sandbox of this engine: its files, snapshots, pause.
    pub fn sandbox(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        self.inner.live(id).map(|live| Arc::clone(&live.sandbox))
    }

    /// The executions that are under way in a live sandbox of this engine, in the order they began. In one
    /// that was made from a state with its memory those are the programs that went on.
    pub fn executions(&self, id: &SandboxId) -> Result<Vec<Watcher>> {
        let executions = self.inner.live(id)?.executions();
        let under_way = executions.into_iter().filter(|shared| !shared.is_finished());
        Ok(under_way.map(|shared| Watcher { shared }).collect())
    }

    /// An execution that is still under way, by the id of its record.
    pub fn watch(&self, job: &JobId) -> Option<Watcher> {
        let shared = lock_mutex(&self.inner.running).get(job)?.upgrade()?;
        Some(Watcher { shared })
    }

    /// Ends a sandbox and everything in it; returns when nothing is left (C-30). Idempotent.
    pub async fn destroy(&self, id: &SandboxId) -> Result<()> {
        if let Some(ready) = self.inner.pools.withdraw(id) {
            lock_mutex(&self.inner.live).insert(id.clone(), Arc::new(ready));
        }
        let live = lock_mutex(&self.inner.live).get(id).cloned();
        match live {
            Some(live) => Arc::clone(&self.inner).destroy_live(live).await,
            None => self.inner.destroy_foreign(id).await,
        }
    }

    /// Whether another process ends, or has ended, this sandbox of this engine on purpose (`stockade kill`): that
    /// is no loss.
    pub fn ended_on_purpose(&self, id: &SandboxId) -> bool {
        lock_mutex(&self.inner.killed).contains(id) || self.inner.kill_is_requested(id)
    }

    /// The sandboxes of every engine that shares this state directory.
    pub async fn list(&self) -> Result<LeaseListing> {
        self.inner.leases.list()
    }

    /// Removes what dead engines left, and says what that was (C-31). Closes their records.
    pub async fn reap(&self) -> Result<Vec<SandboxId>> {
        let reaped = self.inner.reap().await?;
        // A journal that cannot be read does not block executions: open records stay open.
        let _ = self.inner.close_records_of_the_dead().await;
        let _ = self.inner.output_logs.prune_if_due();
        Ok(reaped)
    }

    /// Ends every sandbox and execution of this engine. Idempotent.
    pub async fn close(&self) -> Result<()> {
        let running: Vec<_> =
            lock_mutex(&self.inner.running).values().filter_map(Weak::upgrade).collect();
        running.iter().for_each(|shared| shared.cancel());
        let mut result = match &self.inner.config.images {
            Some(images) => images.close().await,
            None => Ok(()),
        };
        // What a pool could not take down is among the live ones afterwards, and tried again.
        self.inner.pools.close().await;
        let ids: BTreeSet<_> = lock_mutex(&self.inner.live).keys().cloned().collect();
        for id in ids {
            result = result.and(self.destroy(&id).await);
        }
        for shared in running {
            result = result.and(shared.finished().await.released);
        }
        self.inner.finish_releases().await;
        result
    }

    /// Where journal and leases live.
    pub fn state_dir(&self) -> &Path {
        &self.inner.config.state_dir
    }

    /// Changes the quotas: those by tenant, and that of every other tenant. They hold for what begins from now on; what is
    /// there stays.
    pub fn set_quotas(&self, quotas: BTreeMap<TenantName, Quota>, default_quota: Quota) {
        *lock_mutex(&self.inner.changed_quotas) = Some((quotas, default_quota));
    }

    /// The output that is kept on disk.
    pub fn output_logs(&self) -> &OutputLogs {
        &self.inner.output_logs
    }

    /// The audit journal.
    pub fn journal(&self) -> &Journal {
        &self.inner.journal
    }
}

impl EngineInner {
    /// What a tenant may use now.
    pub(crate) fn quota(&self, tenant: &TenantName) -> Quota {
        match &*lock_mutex(&self.changed_quotas) {
            Some((quotas, default_quota)) => quotas.get(tenant).copied().unwrap_or(*default_quota),
            None => self.config.quota(tenant),
        }
    }

    pub(crate) fn live(&self, id: &SandboxId) -> Result<Arc<RunningSandbox>> {
        lock_mutex(&self.live).get(id).cloned().ok_or_else(|| {
            Error::new(
                ErrorCode::NotFound,
                "find sandbox",
                format!("there is no sandbox `{id}` here"),
            )
            .remedy("`stockade ps` lists the ones there are")
        })
    }
}
