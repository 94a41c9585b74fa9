//! The one pipeline every front end goes through:
//! tenant → admit → audit → create → run → audit → destroy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stockade_core::{
    Admitted, Backend, BackendChoice, BackendName, Boundary, Capabilities, Command, Enforcement,
    EngineId, Error, ErrorCode, Feature, JobId, Refusal, Refusals, Result, Sandbox, SandboxId,
    SandboxSpec, Support, admit_command,
};
use stockade_fs::{StateDir, fresh_id};

use crate::config::EngineConfig;
use crate::egress::LazyNetwork;
use crate::execution::{Execution, SharedExecution, Watcher};
use crate::history::Subscription;
use crate::host_views::behind_links;
use crate::journal::{Event, Journal};
use crate::lease::{LeaseListing, Leases};
use crate::measured::Measurements;
use crate::output_log::OutputLogs;
use crate::pool::{Claim, Pools};
use crate::presence::{EnginePresence, Engines};
use crate::registry::Registry;
use crate::sandboxes::{RunningSandbox, SandboxOrder};
use crate::select::{Selection, select};
use crate::snapshots::Snapshots;

/// The engine. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    pub config: EngineConfig,
    pub registry: Registry,
    pub journal: Arc<Journal>,
    pub leases: Leases,
    pub engines: Engines,
    /// From the first record on that this engine opens.
    pub presence: Mutex<Option<EnginePresence>>,
    pub snapshots: Arc<Snapshots>,
    pub output_logs: OutputLogs,
    pub live: Mutex<HashMap<SandboxId, Arc<RunningSandbox>>>,
    pub running: Mutex<HashMap<JobId, Weak<SharedExecution>>>,
    pub pools: Pools,
    pub network: LazyNetwork,
}

pub(crate) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Opens an engine on a state directory, with the backends it may use. Several engines may share
    /// one directory. What dead ones left is removed first, unless the configuration says not to.
    pub async fn open(config: EngineConfig, backends: Vec<Arc<dyn Backend>>) -> Result<Self> {
        let state = StateDir::open(&config.state_dir)?;
        let inner = EngineInner {
            journal: Arc::new(Journal::open(&state, config.journal)?),
            leases: Leases::open(&state)?,
            engines: Engines::open(&state)?,
            presence: Mutex::default(),
            snapshots: Arc::new(Snapshots::open(&state)?),
            output_logs: OutputLogs::open(&state, config.output_logs)?,
            registry: Registry::new(backends, Measurements::below(&config.state_dir)),
            live: Mutex::default(),
            running: Mutex::default(),
            pools: Pools::default(),
            network: LazyNetwork::default(),
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
    /// If this future is dropped, nothing is left (C-32).
    pub async fn run(&self, spec: SandboxSpec, command: Command) -> Result<Execution> {
        let order = self.inner.admit_order(&spec, Some(&command)).await?;
        let (claim, sandbox) = self.inner.place(&order).await?;
        let shared = self.inner.begin_record(fresh_id()?, &order, sandbox, &command).await?;
        self.start(order, command, shared, claim).await
    }

    /// Like [`Engine::run`], with a follower who is there from the first byte on.
    pub async fn run_followed(
        &self,
        spec: SandboxSpec,
        command: Command,
    ) -> Result<(Execution, Subscription)> {
        let order = self.inner.admit_order(&spec, Some(&command)).await?;
        self.run_order(order, command).await
    }

    pub(crate) async fn run_order(
        &self,
        order: SandboxOrder,
        command: Command,
    ) -> Result<(Execution, Subscription)> {
        let (claim, sandbox) = self.inner.place(&order).await?;
        let shared = self.inner.begin_record(fresh_id()?, &order, sandbox, &command).await?;
        let follower = shared.history.follow();
        Ok((self.start(order, command, shared, claim).await?, follower))
    }

    async fn start(
        &self,
        order: SandboxOrder,
        command: Command,
        shared: Arc<SharedExecution>,
        claim: Option<Claim>,
    ) -> Result<Execution> {
        // The handle cancels when it is dropped, so giving up half-way ends what the task has begun.
        let execution = Execution::new(Arc::clone(&shared));
        self.inner.clone().start(order, command, shared, claim).await?;
        Ok(execution)
    }

    /// A sandbox that stays until it is destroyed or its engine ends: a prepared one where a pool has
    /// what is asked for, else a new one.
    pub async fn create(&self, spec: SandboxSpec) -> Result<SandboxId> {
        let order = self.inner.admit_order(&spec, None).await?;
        self.inner.clone().create_live(order).await
    }

    /// Runs one more command in a sandbox of this engine.
    pub async fn exec(&self, id: &SandboxId, command: Command) -> Result<Execution> {
        let (live, shared) = self.inner.begin_in(fresh_id()?, id, &command).await?;
        self.start_in(live, command, shared).await
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
        let (live, shared) = self.inner.begin_in(job, id, &command).await?;
        let follower = shared.history.follow();
        Ok((self.start_in(live, command, shared).await?, follower))
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

    async fn start_in(
        &self,
        live: Arc<RunningSandbox>,
        command: Command,
        shared: Arc<SharedExecution>,
    ) -> Result<Execution> {
        let execution = Execution::new(Arc::clone(&shared));
        self.inner.clone().start_in(live, command, shared).await?;
        Ok(execution)
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
            Some(live) => self.inner.clone().retire(live).await,
            None => self.inner.destroy_foreign(id).await,
        }
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
        // What a pool could not take down is among the live ones afterwards, and tried again.
        self.inner.pools.close().await;
        let ids: BTreeSet<_> = lock_mutex(&self.inner.live).keys().cloned().collect();
        let mut result = Ok(());
        for id in ids {
            result = result.and(self.destroy(&id).await);
        }
        for shared in running {
            result = result.and(shared.finished().await.released);
        }
        result
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
    /// Checks everything before anything is created (C-01).
    pub(crate) async fn admit_order(
        &self,
        spec: &SandboxSpec,
        command: Option<&Command>,
    ) -> Result<SandboxOrder> {
        self.check_known_backend(spec)?;
        let spec = &behind_links(spec);
        let measured = self.registry.measured(spec).await;
        let mut selection = select(spec, &measured);
        let admitted = selection.admitted.take();
        let Refusals(mut refusals) = self.config.refused_views(spec);
        if admitted.is_none() {
            refusals.extend(every_refusal(spec, &selection).0);
        }
        let Some(admitted) = admitted.filter(|_| refusals.is_empty()) else {
            return Err(self.record_refusals(spec, Refusals(refusals)).await);
        };
        let taken =
            measured.iter().find(|capabilities| capabilities.backend == *admitted.backend());
        if let (Some(command), Some(capabilities)) = (command, taken) {
            self.admit_command(command, spec, capabilities).await?;
        }
        self.build_order(admitted)
    }

    async fn admit_command(
        &self,
        command: &Command,
        spec: &SandboxSpec,
        capabilities: &Capabilities,
    ) -> Result<()> {
        match admit_command(command, spec, capabilities) {
            Ok(()) => Ok(()),
            Err(refusals) => Err(self.record_refusals(spec, refusals).await),
        }
    }

    fn check_known_backend(&self, spec: &SandboxSpec) -> Result<()> {
        match &spec.backend {
            BackendChoice::Named(name) if self.registry.get(name).is_none() => {
                Err(no_such_backend(name, &self.registry.names()))
            }
            BackendChoice::Named(_) | BackendChoice::Auto => Ok(()),
        }
    }

    fn build_order(&self, admitted: Admitted) -> Result<SandboxOrder> {
        match self.registry.get(admitted.backend()) {
            Some(backend) => {
                Ok(SandboxOrder { backend: Arc::clone(backend), admitted, from: None })
            }
            None => Err(no_such_backend(admitted.backend(), &self.registry.names())),
        }
    }

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
    async fn record_refusals(&self, spec: &SandboxSpec, refusals: Refusals) -> Error {
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

    async fn begin_in(
        &self,
        job: JobId,
        id: &SandboxId,
        command: &Command,
    ) -> Result<(Arc<RunningSandbox>, Arc<SharedExecution>)> {
        let live = self.live(id)?;
        let spec = live.order.admitted.spec();
        let capabilities = self.registry.capabilities(live.order.admitted.backend()).await;
        if let Some(capabilities) = capabilities {
            self.admit_command(command, spec, capabilities).await?;
        }
        let shared = self.begin_record(job, &live.order, id.clone(), command).await?;
        Ok((live, shared))
    }

    /// Where a command of its own will run: in a prepared sandbox, or in one yet to be made.
    async fn place(&self, order: &SandboxOrder) -> Result<(Option<Claim>, SandboxId)> {
        // What was prepared knows nothing of a captured state.
        let claim = if order.from.is_some() { None } else { self.claim(order).await? };
        let sandbox = claim.as_ref().map_or_else(fresh_id, |claim| Ok(claim.id().clone()))?;
        Ok((claim, sandbox))
    }

    /// Opens the record of an execution: nothing runs before this has been written (C-40).
    pub(crate) async fn begin_record(
        &self,
        job: JobId,
        order: &SandboxOrder,
        sandbox: SandboxId,
        command: &Command,
    ) -> Result<Arc<SharedExecution>> {
        let spec = order.admitted.spec();
        let started = Event::Started {
            job: job.clone(),
            sandbox: sandbox.clone(),
            tenant: spec.tenant.clone(),
            backend: order.admitted.backend().clone(),
            boundary: order.admitted.boundary(),
            command: command.argv(),
            workspace: spec.workspace.clone(),
            limits: order.admitted.enforcement_for(command),
            without: spec.without.clone(),
            labels: spec.labels.clone(),
            trees: spec.trees.iter().map(|tree| tree.part_of.clone()).collect(),
            engine: Some(self.engine_id()?),
        };
        self.record(started).await?;
        let walls = (order.admitted.backend().clone(), order.admitted.boundary());
        let limits = order.admitted.enforcement_for(command);
        let (argv, bounds) = (command.argv(), self.config.history);
        let shared = SharedExecution::new(job.clone(), sandbox, walls, argv, limits, bounds);
        lock_mutex(&self.running).insert(job, Arc::downgrade(&shared));
        Ok(shared)
    }
}

fn no_such_backend(name: &BackendName, known: &[BackendName]) -> Error {
    let known: Vec<_> = known.iter().map(BackendName::as_str).collect();
    Error::new(ErrorCode::NotFound, "select a backend", format!("there is no backend `{name}`"))
        .remedy(format!("choose one of: auto, {}", known.join(", ")))
}

/// All that stood in the way of every backend, or the plain fact that there is none.
fn every_refusal(spec: &SandboxSpec, selection: &Selection) -> Refusals {
    let mut refusals: Vec<Refusal> = Vec::new();
    for choice in &selection.choices {
        for mut refusal in choice.refusals.iter().cloned() {
            // A field that is wrong is wrong for everybody, and where there is one it is plain who.
            let unclear = refusal.feature.is_some() && selection.choices.len() > 1;
            refusal.backend = unclear.then(|| choice.backend.clone());
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
    }
    // Who asks for a boundary is told of those that have it and are not chosen by themselves.
    if spec.backend == BackendChoice::Auto && !spec.boundaries.is_empty() {
        let passed_over = selection.choices.iter().filter(|choice| choice.refusals.is_empty());
        refusals.extend(passed_over.map(|choice| Refusal {
            field: "boundaries".into(),
            feature: None,
            reason: format!("{} was passed over: {}", choice.backend, choice.why),
            remedy: format!("name it; `stockade detect` says what {} lacks here", choice.backend),
            backend: Some(choice.backend.clone()),
        }));
    }
    if refusals.is_empty() {
        refusals.push(Refusal {
            field: "backend".into(),
            feature: None,
            reason: "no backend may be chosen automatically here".into(),
            remedy: "name one; `stockade detect` lists them".into(),
            backend: None,
        });
    }
    Refusals(refusals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_that_is_to_be_had_only_by_name_is_told_of() {
        let mut machines = Capabilities::none(BackendName::literal("machines"), Boundary::Emulated);
        machines.only_by_name = Some("it emulates, since there is no KVM".into());
        let walls = Capabilities::none(BackendName::literal("walls"), Boundary::SharedKernel);
        let boundaries = BTreeSet::from([Boundary::Hardware]);
        let spec = SandboxSpec { boundaries, ..SandboxSpec::default() };
        let told = every_refusal(&spec, &select(&spec, &[machines, walls])).to_string();
        for part in ["machines was passed over", "no KVM", "walls has the boundary"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
