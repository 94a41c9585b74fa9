//! The create step of the pipeline: the lease, the walls and the network of one sandbox, and what is known of
//! it while it lives.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use stockade_core::{
    Admitted, Backend, EgressRule, Error, ErrorCode, Network, ResolvedImage, Result, Sandbox,
    SandboxId, SnapshotFiles, SnapshotId,
};
use stockade_fs::fresh_id;
use stockade_network::SecretSet;
use tokio::sync::watch;

use crate::denials::DenialWatchers;
use crate::egress::SandboxNetwork;
use crate::engine::{EngineInner, lock_mutex};
use crate::execution::SharedExecution;
use crate::host_views::WorkspaceBy;
use crate::lease::{Lease, LeaseBody};
use crate::lease_quota::{enforced_limits, fits_empty_quota};
use crate::pool::{Claim, ClaimAnswer, Seated};
use crate::quota::ExecutionSlot;
use crate::workspace_guard::WorkspaceSlot;

/// Timeout of capturing or restoring a state.
pub(crate) const CAPTURE_TIMEOUT: Duration = Duration::from_secs(300);

/// An admitted spec and the backend that will honour it.
#[derive(Clone)]
pub(crate) struct SandboxOrder {
    pub backend: Arc<dyn Backend>,
    pub admitted: Admitted,
    /// Who has put the workspace into the spec.
    pub workspace_by: WorkspaceBy,
    /// The captured state that it starts with.
    pub from: Option<Origin>,
    /// What stands for its secrets, in the environment of every command, and puts them in.
    pub secrets: Option<Arc<SecretSet>>,
    /// The image that was provided for it, kept as long as this order and what was built by it.
    pub image: Option<Arc<ResolvedImage>>,
}

/// A captured state, checked and ready to be used.
#[derive(Clone)]
pub(crate) struct Origin {
    pub snapshot: SnapshotId,
    pub parts: Arc<SnapshotFiles>,
}

impl SandboxOrder {
    /// The same, of something that starts with a captured state.
    pub(crate) fn beginning_with(self, origin: Origin) -> Self {
        Self { from: Some(origin), ..self }
    }

    async fn build_walls(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        let admitted = self.admitted_for_backend();
        match &self.from {
            None => self.backend.create(id, &admitted).await,
            Some(origin) => self.backend.create_from(id, &admitted, &origin.parts).await,
        }
    }
}

/// Finds a sandbox for as long as it lives. Empty until it is shared.
pub(crate) type SandboxHandle = Arc<OnceLock<Weak<RunningSandbox>>>;

/// A sandbox that lives until it is destroyed.
pub(crate) struct RunningSandbox {
    pub order: SandboxOrder,
    pub sandbox: Arc<dyn Sandbox>,
    /// Leads here, for what its relay has to tell it.
    pub handle: SandboxHandle,
    /// Held while the walls are taken down, so that all concurrent callers wait for the same end.
    pub lease: tokio::sync::Mutex<Option<Lease>>,
    executions: Mutex<Vec<Weak<SharedExecution>>>,
    /// Its seat in a pool, free again when everything of it is gone.
    pub seat: Option<Seated>,
    /// What relays its connections, where it may have any, and those to its ports.
    pub network: Mutex<Option<SandboxNetwork>>,
    /// What that denies, for each execution.
    pub denials: Arc<DenialWatchers>,
    /// Held while its relay is started or its rules change, one after the other.
    pub network_changes: tokio::sync::Mutex<()>,
    /// The rules in force, where it may reach other hosts. They outlive its relay.
    pub rules: Mutex<Vec<EgressRule>>,
    /// The workspace to be released when it is gone, where it lives on after its first command.
    pub workspace: Mutex<WorkspaceSlot>,
}

impl RunningSandbox {
    fn new(
        order: &SandboxOrder,
        sandbox: Arc<dyn Sandbox>,
        (network, denials): (Option<SandboxNetwork>, Arc<DenialWatchers>),
        handle: SandboxHandle,
        lease: Lease,
    ) -> Self {
        let rules = match &order.admitted.spec().network {
            Network::Egress(rules) => rules.clone(),
            Network::Auto | Network::None | Network::Loopback => Vec::new(),
        };
        Self {
            order: order.clone(),
            sandbox,
            handle,
            lease: tokio::sync::Mutex::new(Some(lease)),
            executions: Mutex::default(),
            seat: None,
            network: Mutex::new(network),
            denials,
            network_changes: tokio::sync::Mutex::default(),
            rules: Mutex::new(rules),
            workspace: Mutex::default(),
        }
    }

    /// Shares it: from now on its handle leads to it.
    pub(crate) fn share(self) -> Arc<Self> {
        let live = Arc::new(self);
        // Set once: a sandbox is shared by the one who owns it.
        let _ = live.handle.set(Arc::downgrade(&live));
        live
    }

    /// Takes it over for a caller, whose labels it has from now on.
    pub(crate) fn assign_to(&mut self, order: &SandboxOrder) -> Result<()> {
        if let Some(lease) = self.lease.get_mut() {
            lease.hand_over(&order.admitted.spec().labels)?;
        }
        self.order = order.clone();
        Ok(())
    }

    pub(crate) fn executions(&self) -> Vec<Arc<SharedExecution>> {
        lock_mutex(&self.executions).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn remember_execution(&self, shared: &Arc<SharedExecution>) {
        let mut executions = lock_mutex(&self.executions);
        executions.retain(|execution| execution.strong_count() > 0);
        executions.push(Arc::downgrade(shared));
    }
}

/// Why there are no walls, or no process behind them.
pub(crate) struct NotBuilt {
    pub error: Error,
    /// Whether another process was ending the sandbox on purpose meanwhile.
    pub killed: bool,
}

impl From<Error> for NotBuilt {
    fn from(error: Error) -> Self {
        Self { error, killed: false }
    }
}

impl From<NotBuilt> for Error {
    fn from(failure: NotBuilt) -> Self {
        failure.error
    }
}

/// The caller that waits for a sandbox. If it goes away first, so does the sandbox (C-32).
pub(crate) struct SandboxCaller {
    inner: Arc<EngineInner>,
    id: SandboxId,
    wanted: Option<watch::Sender<bool>>,
}

impl SandboxCaller {
    /// A caller of a sandbox, and by what the one who builds it hears that the caller is gone.
    pub(crate) fn new(inner: &Arc<EngineInner>, id: &SandboxId) -> (Self, watch::Receiver<bool>) {
        let (wanted, cancelled) = watch::channel(false);
        let (inner, id) = (Arc::clone(inner), id.clone());
        (Self { inner, id, wanted: Some(wanted) }, cancelled)
    }

    pub(crate) fn mark_served(&mut self) {
        self.wanted = None;
    }
}

impl Drop for SandboxCaller {
    fn drop(&mut self) {
        let Some(wanted) = self.wanted.take() else {
            return;
        };
        // Under the table's lock, so that the task either sees that no caller waits or is seen here.
        let mut table = lock_mutex(&self.inner.live);
        drop(wanted);
        let live = table.remove(&self.id);
        drop(table);
        if let (Some(live), Ok(runtime)) = (live, tokio::runtime::Handle::try_current()) {
            runtime.spawn(Arc::clone(&self.inner).destroy_live(live));
        }
    }
}

impl EngineInner {
    /// The sandbox that a command of its own will have: a prepared one, or the id of one yet to be made.
    pub(crate) async fn reserve_sandbox(
        &self,
        order: &SandboxOrder,
    ) -> Result<(Option<Claim>, SandboxId)> {
        let claim = self.claim(order).await?;
        let sandbox = claim.as_ref().map_or_else(fresh_id, |claim| Ok(claim.id().clone()))?;
        Ok((claim, sandbox))
    }

    /// Makes a reserved sandbox the command's own: takes the prepared one over, or creates it.
    pub(crate) async fn create_reserved(
        &self,
        order: &SandboxOrder,
        claim: Option<Claim>,
        shared: &SharedExecution,
    ) -> Result<(Arc<RunningSandbox>, Option<ClaimAnswer>), NotBuilt> {
        match claim.and_then(Claim::accept) {
            Some((live, answer)) => Ok((live, Some(answer))),
            None => {
                let created = self.create_sandbox(order, &shared.sandbox, shared.cancelled());
                created.await.map(|live| (live, None))
            }
        }
    }

    /// Makes the sandbox known, unless its caller has given up in the meantime.
    pub(crate) fn keep_sandbox(
        &self,
        id: &SandboxId,
        live: &Arc<RunningSandbox>,
        cancelled: &watch::Receiver<bool>,
    ) -> bool {
        let mut table = lock_mutex(&self.live);
        let wanted = cancelled.has_changed().is_ok();
        if wanted {
            table.insert(id.clone(), Arc::clone(live));
        }
        wanted
    }

    /// Lease first, then walls: what a failure in between leaves can be found and reaped (C-31).
    pub(crate) async fn create_sandbox(
        &self,
        order: &SandboxOrder,
        id: &SandboxId,
        cancelled: watch::Receiver<bool>,
    ) -> Result<Arc<RunningSandbox>, NotBuilt> {
        let lease = loop {
            match self.lease(order, id, false) {
                // What is ready for later makes room for what is wanted now, unless that can never fit.
                Err(error)
                    if error.code() == ErrorCode::QuotaExceeded && self.quota_fits(order, 1) =>
                {
                    let ready = self.pools.make_room(&order.admitted.spec().tenant);
                    self.destroy_unclaimed(ready.ok_or(error)?).await?;
                }
                lease => break lease?,
            }
        };
        self.build_sandbox(order, id, lease, cancelled).await.map(RunningSandbox::share)
    }

    /// Counts the start of an execution, and takes its place in the quota of its tenant.
    pub(crate) fn begin_execution(&self, order: &SandboxOrder) -> Result<Option<ExecutionSlot>> {
        let tenant = &order.admitted.spec().tenant;
        self.quotas.begin_execution(tenant, self.quota(tenant))
    }

    /// Counts the start of a sandbox.
    pub(crate) fn count_start(&self, order: &SandboxOrder) -> Result<()> {
        let tenant = &order.admitted.spec().tenant;
        self.quotas.count_start(tenant, self.quota(tenant))
    }

    /// Whether the quota of its tenant has room for this many of a sandbox, were there no others.
    pub(crate) fn quota_fits(&self, order: &SandboxOrder, count: u32) -> bool {
        let quota = self.quota(&order.admitted.spec().tenant);
        fits_empty_quota(&quota, &enforced_limits(&order.admitted), count)
    }

    pub(crate) fn lease(&self, order: &SandboxOrder, id: &SandboxId, ready: bool) -> Result<Lease> {
        let spec = order.admitted.spec();
        let mut body = LeaseBody::new(id.clone(), order.backend.name(), spec.tenant.clone());
        body.labels = spec.labels.clone();
        body.ready = ready;
        body.limits = enforced_limits(&order.admitted);
        self.leases.acquire(body, self.quota(&spec.tenant))
    }

    pub(crate) async fn build_sandbox(
        &self,
        order: &SandboxOrder,
        id: &SandboxId,
        lease: Lease,
        mut cancelled: watch::Receiver<bool>,
    ) -> Result<RunningSandbox, NotBuilt> {
        let (denials, handle) = (Arc::<DenialWatchers>::default(), SandboxHandle::default());
        let create = async {
            let sandbox = order.build_walls(id).await?;
            // In a box: few sandboxes have one, and its future is large.
            let policy = &order.admitted.spec().network;
            let opening = self.open_network(policy, order, sandbox.as_ref(), &denials, &handle);
            let network = Box::pin(opening).await?;
            Ok((sandbox, network))
        };
        let created = tokio::select! {
            created = tokio::time::timeout(self.build_timeout(order), create) => {
                created.unwrap_or_else(|_| Err(too_slow("create", order.backend.as_ref())))
            }
            _ = cancelled.wait_for(|cancelled| *cancelled) => {
                Err(Error::new(ErrorCode::Gone, "create", "cancelled before the sandbox was ready"))
            }
        };
        match created {
            Ok((sandbox, network)) => {
                Ok(RunningSandbox::new(order, sandbox, (network, denials), handle, lease))
            }
            Err(error) => {
                // A create that failed may not leave anything, but that is checked, not assumed. If
                // it cannot be confirmed the lease stays, and with it the duty to reap.
                if error.code() == ErrorCode::WallMissing {
                    self.registry.distrust_measurement(order.backend.as_ref());
                }
                self.destroy_within_deadline(order.backend.as_ref(), id).await?;
                // The killer waits for the lease, so its request can still be read here.
                let killed = self.kill_is_requested(id);
                lease.release()?;
                Err(NotBuilt { error, killed })
            }
        }
    }

    /// Bringing a state back takes as long as there is much of it.
    fn build_timeout(&self, order: &SandboxOrder) -> Duration {
        self.config.create_deadline
            + order.from.as_ref().map_or(Duration::ZERO, |_| CAPTURE_TIMEOUT)
    }
}

pub(crate) fn too_slow(operation: &'static str, backend: &dyn Backend) -> Error {
    Error::new(ErrorCode::TooSlow, operation, "the backend did not answer in time")
        .backend(backend.name())
        .remedy("see whether the programs behind it run: `stockade detect`")
}

/// Runs to the end even if the caller does not wait for it.
pub(crate) async fn in_a_task<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(join) => {
            Err(Error::new(ErrorCode::System, "run a task", "the task ended").source(join))
        }
    }
}
