//! The part of the pipeline that touches walls: create and run. Each step runs in a task
//! of its own, so that a caller who gives up half-way leaves nothing behind (C-32).

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use stockade_core::{
    Admitted, Backend, CarriedProgram, Command, DeniedHost, EffectiveLimits, EgressRule, Ending,
    EnvName, Error, ErrorCode, Network, Outcome, Parts, Process, Result, Sandbox, SandboxId,
    Signal, SnapshotId, StartFailure, Stdin, StreamReport, Usage,
};
use stockade_fs::fresh_id;
use stockade_network::GUEST_ENVIRONMENT;
use tokio::sync::watch;

use crate::denials::{DenialWatch, DenialWatchers};
use crate::egress::SandboxNetwork;
use crate::engine::{EngineInner, lock_mutex};
use crate::execution::{ControlSlot, FinishedExecution, SharedExecution};
use crate::journal::Event;
use crate::lease::{Lease, LeaseBody};
use crate::pool::{Claim, Seated};
use crate::supervise::{Sink, SupervisedEnd, supervise_process};
use crate::teardown::end_executions;

/// `PATH` of a clean environment.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Timeout of capturing or restoring a state.
pub(crate) const CAPTURE_TIMEOUT: Duration = Duration::from_secs(300);

/// An admitted spec and the backend that will honour it.
#[derive(Clone)]
pub(crate) struct SandboxOrder {
    pub backend: Arc<dyn Backend>,
    pub admitted: Admitted,
    /// The captured state that it starts with.
    pub from: Option<Origin>,
}

/// A captured state, checked and ready to be used.
#[derive(Clone)]
pub(crate) struct Origin {
    pub snapshot: SnapshotId,
    pub parts: Arc<Parts>,
}

impl SandboxOrder {
    /// The same, of something that starts with a captured state.
    pub(crate) fn beginning_with(self, origin: Origin) -> Self {
        Self { from: Some(origin), ..self }
    }

    async fn build(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        match &self.from {
            None => self.backend.create(id, &self.admitted).await,
            Some(origin) => self.backend.create_from(id, &self.admitted, &origin.parts).await,
        }
    }
}

/// A sandbox that lives until it is destroyed.
pub(crate) struct RunningSandbox {
    pub order: SandboxOrder,
    pub sandbox: Arc<dyn Sandbox>,
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
}

impl RunningSandbox {
    fn new(
        order: &SandboxOrder,
        sandbox: Arc<dyn Sandbox>,
        (network, denials): (Option<SandboxNetwork>, Arc<DenialWatchers>),
        lease: Lease,
    ) -> Self {
        let rules = match &order.admitted.spec().network {
            Network::Egress(rules) => rules.clone(),
            Network::Auto | Network::None | Network::Loopback => Vec::new(),
        };
        Self {
            order: order.clone(),
            sandbox,
            lease: tokio::sync::Mutex::new(Some(lease)),
            executions: Mutex::default(),
            seat: None,
            network: Mutex::new(network),
            denials,
            network_changes: tokio::sync::Mutex::default(),
            rules: Mutex::new(rules),
        }
    }

    /// Takes it over for a caller, whose labels it has from now on.
    pub(crate) fn dress(&mut self, order: &SandboxOrder) -> Result<()> {
        if let Some(lease) = self.lease.get_mut() {
            lease.hand_over(&order.admitted.spec().labels)?;
        }
        self.order = order.clone();
        Ok(())
    }

    pub(crate) fn executions(&self) -> Vec<Arc<SharedExecution>> {
        lock_mutex(&self.executions).iter().filter_map(Weak::upgrade).collect()
    }

    fn remember_execution(&self, shared: &Arc<SharedExecution>) {
        let mut executions = lock_mutex(&self.executions);
        executions.retain(|execution| execution.strong_count() > 0);
        executions.push(Arc::downgrade(shared));
    }
}

/// A program that was started, and what it is held to.
struct StartedCommand {
    process: Process,
    /// What the network denies meanwhile.
    denials: DenialWatch,
    stdin: Stdin,
    limits: EffectiveLimits,
    terminal: bool,
    /// Whether the sandbox is its own and ends with it.
    one_shot: bool,
}

impl StartedCommand {
    fn of(
        (process, denials): (Process, DenialWatch),
        command: &Command,
        live: &RunningSandbox,
        one_shot: bool,
    ) -> Self {
        let limits = live.order.admitted.limits_for(command);
        let (stdin, terminal) = (command.stdin.clone(), command.terminal.is_some());
        Self { process, denials, stdin, limits, terminal, one_shot }
    }
}

/// Why there are no walls.
pub(crate) struct NotBuilt {
    error: Error,
    /// Whether another process was ending the sandbox on purpose meanwhile.
    killed: bool,
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

/// The one who waits for a sandbox. If it goes away first, so does the sandbox (C-32).
struct SandboxCaller {
    inner: Arc<EngineInner>,
    id: SandboxId,
    wanted: Option<watch::Sender<bool>>,
}

impl SandboxCaller {
    fn mark_served(&mut self) {
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
            runtime.spawn(Arc::clone(&self.inner).retire(live));
        }
    }
}

impl EngineInner {
    /// One-shot: builds the walls, starts the command, and leaves the rest to a task.
    pub(crate) async fn start(
        self: Arc<Self>,
        order: SandboxOrder,
        command: Command,
        shared: Arc<SharedExecution>,
        claim: Option<Claim>,
    ) -> Result<()> {
        in_a_task(async move {
            // The pool makes no other before the command runs.
            let (built, _answer) = match claim.and_then(Claim::accept) {
                Some((live, answer)) => (Ok(live), Some(answer)),
                None => (self.build(&order, &shared.sandbox, shared.cancelled()).await, None),
            };
            let live = match built {
                Ok(live) => live,
                Err(failure) => return Err(self.never_ran(&shared, failure, Ok(())).await),
            };
            let spawned = match self.supervise_carried_programs(&live).await {
                Ok(()) => self.spawn(&live, &command, &shared).await,
                Err(error) => Err(error),
            };
            match spawned {
                Ok(spawned) => {
                    let started = StartedCommand::of(spawned, &command, &live, true);
                    tokio::spawn(self.see_through(live, shared, started));
                    Ok(())
                }
                Err(error) => {
                    let killed = self.kill_is_requested(live.sandbox.id());
                    end_executions(&live).await;
                    let released = self.take_down(&live).await;
                    let failure = NotBuilt { error, killed };
                    Err(self.never_ran(&shared, failure, released).await)
                }
            }
        })
        .await
    }

    /// Starts a command in a sandbox that lives on.
    pub(crate) async fn start_in(
        self: Arc<Self>,
        live: Arc<RunningSandbox>,
        command: Command,
        shared: Arc<SharedExecution>,
    ) -> Result<()> {
        in_a_task(async move {
            live.remember_execution(&shared);
            match self.spawn(&live, &command, &shared).await {
                Ok(spawned) => {
                    let started = StartedCommand::of(spawned, &command, &live, false);
                    tokio::spawn(self.see_through(live, shared, started));
                    Ok(())
                }
                Err(error) => {
                    let killed = self.kill_is_requested(live.sandbox.id());
                    let failure = NotBuilt { error, killed };
                    Err(self.never_ran(&shared, failure, Ok(())).await)
                }
            }
        })
        .await
    }

    /// Builds a sandbox that lives on.
    pub(crate) async fn create_live(self: Arc<Self>, order: SandboxOrder) -> Result<SandboxId> {
        if let Some(claim) = self.claim(&order).await? {
            return self.keep_claimed(claim, &order).await;
        }
        let id: SandboxId = fresh_id()?;
        let (wanted, cancelled) = watch::channel(false);
        let mut caller =
            SandboxCaller { inner: Arc::clone(&self), id: id.clone(), wanted: Some(wanted) };
        in_a_task({
            let id = id.clone();
            async move {
                self.record(build_created_event(&id, &order)).await?;
                let live = self.build(&order, &id, cancelled.clone()).await?;
                let carried = self.supervise_carried_programs(&live).await;
                if carried.is_ok() && self.keep(&id, &live, &cancelled) {
                    return Ok(());
                }
                end_executions(&live).await;
                self.take_down(&live).await.and(carried)
            }
        })
        .await?;
        caller.mark_served();
        Ok(id)
    }

    /// Makes the sandbox known, unless its caller has given up in the meantime.
    fn keep(
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
    async fn build(
        &self,
        order: &SandboxOrder,
        id: &SandboxId,
        cancelled: watch::Receiver<bool>,
    ) -> Result<Arc<RunningSandbox>, NotBuilt> {
        let lease = loop {
            match self.lease(order, id, false) {
                // What is ready for later makes room for what is wanted now.
                Err(error) if error.code() == ErrorCode::QuotaExceeded => {
                    let ready = self.pools.make_room(&order.admitted.spec().tenant);
                    self.dismiss_sandbox(ready.ok_or(error)?).await?;
                }
                lease => break lease?,
            }
        };
        self.build_sandbox(order, id, lease, cancelled).await.map(Arc::new)
    }

    pub(crate) fn lease(&self, order: &SandboxOrder, id: &SandboxId, ready: bool) -> Result<Lease> {
        let spec = order.admitted.spec();
        let mut body = LeaseBody::new(id.clone(), order.backend.name(), spec.tenant.clone());
        body.labels = spec.labels.clone();
        body.ready = ready;
        self.leases.acquire(body, self.config.quota(&spec.tenant).sandboxes)
    }

    pub(crate) async fn build_sandbox(
        &self,
        order: &SandboxOrder,
        id: &SandboxId,
        lease: Lease,
        mut cancelled: watch::Receiver<bool>,
    ) -> Result<RunningSandbox, NotBuilt> {
        let denials: Arc<DenialWatchers> = Arc::default();
        let create = async {
            let sandbox = order.build(id).await?;
            // In a box: few sandboxes have one, and its future is large.
            let policy = &order.admitted.spec().network;
            let network = Box::pin(self.open_network(policy, sandbox.as_ref(), &denials)).await?;
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
                Ok(RunningSandbox::new(order, sandbox, (network, denials), lease))
            }
            Err(error) => {
                // A create that failed may not leave anything, but that is checked, not assumed. If
                // it cannot be confirmed the lease stays, and with it the duty to reap.
                if error.code() == ErrorCode::WallMissing {
                    self.registry.distrust_measurement(order.backend.as_ref());
                }
                self.destroy_within(order.backend.as_ref(), id).await?;
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

    async fn spawn(
        &self,
        live: &RunningSandbox,
        command: &Command,
        shared: &SharedExecution,
    ) -> Result<(Process, DenialWatch)> {
        live.check_network()?;
        // Before it runs: what it does first is told too.
        let denials = live.denials.watch();
        let limits = live.order.admitted.limits_for(command);
        let resolved = resolve_command(command, &live.order.admitted)?;
        let spawn = live.sandbox.spawn(&resolved, &limits);
        let spawned = tokio::time::timeout(self.config.create_deadline, spawn).await;
        let process =
            spawned.unwrap_or_else(|_| Err(too_slow("spawn", live.order.backend.as_ref())))?;
        let _ = shared.control.set(ControlSlot(Arc::clone(&process.control)));
        Ok((process, denials))
    }

    /// Opens a record for each program that went on when the sandbox was made from a captured state: it is an
    /// execution like any other from now on. Its wall time, where one was named, begins now.
    async fn supervise_carried_programs(
        self: &Arc<Self>,
        live: &Arc<RunningSandbox>,
    ) -> Result<()> {
        for CarriedProgram { command, process } in live.sandbox.take_carried() {
            let command = Command::program(command);
            let id = live.sandbox.id().clone();
            let shared = self.begin_record(fresh_id()?, &live.order, id, &command).await?;
            let _ = shared.control.set(ControlSlot(Arc::clone(&process.control)));
            live.remember_execution(&shared);
            let carried = (process, live.denials.watch());
            let mut started = StartedCommand::of(carried, &command, live, false);
            started.limits.wall_time = live.order.admitted.spec().limits.wall_time;
            tokio::spawn(Arc::clone(self).see_through(Arc::clone(live), shared, started));
        }
        Ok(())
    }

    /// Watches a command to its end, records it, and takes the walls down if they were its own.
    async fn see_through(
        self: Arc<Self>,
        live: Arc<RunningSandbox>,
        shared: Arc<SharedExecution>,
        started: StartedCommand,
    ) {
        let StartedCommand { process, denials, stdin, limits, terminal, one_shot } = started;
        // A terminal's output is not logged: no user expects a transcript of it on disk.
        let kept = self.config.keep_output && !terminal;
        let log = kept.then(|| self.output_logs.writer(&shared.job));
        let output = Sink { history: &shared.history, log };
        let mut ended =
            supervise_process(process, stdin, &limits, output, shared.cancelled()).await;
        if self.was_killed(&ended.ending, live.sandbox.id()) {
            ended.confirmed &= ended.ending == Ending::Cancelled;
            ended.ending = Ending::Killed;
        }
        // A process whose end was not confirmed takes its sandbox with it: only that makes sure (C-11).
        let released = if one_shot || !ended.confirmed {
            if one_shot {
                end_executions(&live).await;
            }
            self.take_down_for_good(&live).await
        } else {
            Ok(())
        };
        // A reader of the outcome may destroy at once: no lease is held here by then.
        drop(live);
        self.finish(&shared, ended, denials.finish(), released).await;
    }

    /// Closes the record and reveals the outcome.
    async fn finish(
        &self,
        shared: &SharedExecution,
        ended: SupervisedEnd,
        network_denied: Vec<DeniedHost>,
        released: Result<()>,
    ) {
        let outcome = Outcome {
            ending: ended.ending,
            stdout: ended.stdout,
            stderr: ended.stderr,
            usage: ended.usage,
            limits: shared.limits.clone(),
            limits_reached: ended.limits_reached,
            network_denied,
        };
        let log =
            self.config.keep_output.then(|| self.output_logs.reference(&shared.job)).flatten();
        let event = Event::Stopped { job: shared.job.clone(), outcome: outcome.clone(), log };
        let recorded = self.record(event).await;
        lock_mutex(&self.running).remove(&shared.job);
        shared.finish(FinishedExecution { outcome, released: released.and(recorded) });
    }

    /// Whether an end that looks like a loss was meant, or a cancellation came with the end of the whole
    /// sandbox: another process is ending it.
    fn was_killed(&self, ending: &Ending, id: &SandboxId) -> bool {
        matches!(ending, Ending::Lost(_) | Ending::Signalled(Signal::KILL) | Ending::Cancelled)
            && self.kill_is_requested(id)
    }

    fn kill_is_requested(&self, id: &SandboxId) -> bool {
        self.leases.kill_is_requested(id).unwrap_or(false)
    }

    /// Closes the record of a command that never got as far as a process.
    async fn never_ran(
        &self,
        shared: &SharedExecution,
        NotBuilt { error, killed }: NotBuilt,
        released: Result<()>,
    ) -> Error {
        let ended = SupervisedEnd {
            ending: if killed { Ending::Killed } else { ending_of_no_start(&error, shared) },
            usage: Usage::default(),
            stdout: StreamReport::default(),
            stderr: StreamReport::default(),
            limits_reached: Vec::new(),
            confirmed: true,
        };
        self.finish(shared, ended, Vec::new(), released).await;
        error
    }
}

/// How a command ended that was never started: as the error says, never as lost unless its walls fell.
fn ending_of_no_start(error: &Error, shared: &SharedExecution) -> Ending {
    let why = error.message().to_owned();
    match error.code() {
        ErrorCode::Gone if *shared.cancelled().borrow() => Ending::Cancelled,
        ErrorCode::Invalid
        | ErrorCode::Refused
        | ErrorCode::QuotaExceeded
        | ErrorCode::NotFound
        | ErrorCode::PathEscapes
        | ErrorCode::Denied
        | ErrorCode::Unsupported
        | ErrorCode::TooLarge => Ending::Refused(why),
        ErrorCode::Gone | ErrorCode::Protocol => Ending::Lost(why),
        ErrorCode::Unavailable
        | ErrorCode::JournalUnavailable
        | ErrorCode::StateUnavailable
        | ErrorCode::TooSlow
        | ErrorCode::WallMissing
        | ErrorCode::LeftBehind
        | ErrorCode::System => Ending::StartFailed(StartFailure::NoSandbox(why)),
    }
}

pub(crate) fn build_created_event(sandbox: &SandboxId, order: &SandboxOrder) -> Event {
    Event::Created {
        sandbox: sandbox.clone(),
        tenant: order.admitted.spec().tenant.clone(),
        backend: order.admitted.backend().clone(),
        boundary: order.admitted.boundary(),
        from: order.from.as_ref().map(|origin| origin.snapshot.clone()),
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

/// What the backend is given: environment, directory and user merged, and input always a stream.
fn resolve_command(command: &Command, admitted: &Admitted) -> Result<Command> {
    let spec = admitted.spec();
    let mut resolved = command.clone();
    resolved.env = spec.env.clone();
    resolved.env.extend(command.env.clone());
    let proxies = matches!(spec.network, Network::Egress(_)).then_some(GUEST_ENVIRONMENT);
    let defaults = [("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")];
    for (name, value) in defaults.into_iter().chain(proxies.into_iter().flatten()) {
        let name: EnvName = name.parse().map_err(|error| {
            Error::new(ErrorCode::Invalid, "resolve", "a built-in name").source(error)
        })?;
        resolved.env.entry(name).or_insert_with(|| value.to_owned());
    }
    resolved.dir = command.dir.clone().or_else(|| spec.workdir.clone());
    resolved.user = command.user.or(spec.user);
    if resolved.stdin != Stdin::None {
        resolved.stdin = Stdin::Stream;
    }
    Ok(resolved)
}
