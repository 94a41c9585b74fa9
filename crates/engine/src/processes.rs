//! The run step of the pipeline: a command becomes a process of a sandbox and is watched to its end.

use std::sync::Arc;

use stockade_core::{
    CarriedProgram, Command, EffectiveLimits, Ending, EnvName, Error, ErrorCode, Network, Process,
    Result, SandboxId, Signal, Stdin,
};
use stockade_fs::fresh_id;
use stockade_network::{BUNDLE_ENVIRONMENT, GUEST_ENVIRONMENT, SecretSet};

use crate::denials::DenialWatch;
use crate::engine::EngineInner;
use crate::execution::{ControlSlot, SharedExecution};
use crate::lifecycle::{NotBuilt, RunningSandbox, SandboxOrder, too_slow};
use crate::quota::ExecutionSlot;
use crate::supervise::{Sink, SupervisedEnd, supervise_process};
use crate::workspace_guard::WorkspaceSlot;

/// `PATH` of a clean environment.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program that was started, and what it is held to.
pub(crate) struct StartedCommand {
    process: Process,
    /// What the network denies meanwhile.
    denials: DenialWatch,
    stdin: Stdin,
    limits: EffectiveLimits,
    terminal: bool,
}

/// A command that is over.
pub(crate) struct EndedCommand {
    pub end: SupervisedEnd,
    /// What the network denied, up to when the record is closed; absent where nothing ran.
    pub denials: Option<DenialWatch>,
}

impl StartedCommand {
    fn of(
        (process, denials): (Process, DenialWatch),
        command: &Command,
        live: &RunningSandbox,
    ) -> Self {
        let limits = live.order.admitted.limits_for(command);
        let (stdin, terminal) = (command.stdin.clone(), command.terminal.is_some());
        Self { process, denials, stdin, limits, terminal }
    }
}

impl EngineInner {
    /// Starts the first command of a sandbox, after what went on in it from a captured state.
    pub(crate) async fn start_first_command(
        self: &Arc<Self>,
        live: &Arc<RunningSandbox>,
        command: &Command,
        shared: &SharedExecution,
    ) -> Result<StartedCommand, NotBuilt> {
        match self.supervise_carried_programs(live).await {
            Ok(()) => self.start_command(live, command, shared).await,
            Err(error) => Err(self.failed_start(error, live)),
        }
    }

    /// Starts a command in a sandbox.
    pub(crate) async fn start_command(
        &self,
        live: &RunningSandbox,
        command: &Command,
        shared: &SharedExecution,
    ) -> Result<StartedCommand, NotBuilt> {
        match self.spawn_process(live, command, shared).await {
            Ok(spawned) => Ok(StartedCommand::of(spawned, command, live)),
            Err(error) => Err(self.failed_start(error, live)),
        }
    }

    fn failed_start(&self, error: Error, live: &RunningSandbox) -> NotBuilt {
        NotBuilt { error, killed: self.kill_is_requested(live.sandbox.id()) }
    }

    async fn spawn_process(
        &self,
        live: &RunningSandbox,
        command: &Command,
        shared: &SharedExecution,
    ) -> Result<(Process, DenialWatch)> {
        live.check_network()?;
        // Before it runs: what it does first is told too.
        let denials = live.denials.watch();
        let limits = live.order.admitted.limits_for(command);
        let resolved = resolve_command(command, &live.order)?;
        let spawn = live.sandbox.spawn(&resolved, &limits);
        let spawned = tokio::time::timeout(self.config.create_deadline, spawn).await;
        let process =
            spawned.unwrap_or_else(|_| Err(too_slow("spawn", live.order.backend.as_ref())))?;
        let _ = shared.control.set(ControlSlot(Arc::clone(&process.control)));
        Ok((process, denials))
    }

    /// Makes each program that went on when the sandbox was made from a captured state an execution like any other
    /// from now on. Where the quota of the tenant has no room for all of them this fails, and the caller destroys
    /// the sandbox: no program goes on uncounted.
    pub(crate) async fn supervise_carried_programs(
        self: &Arc<Self>,
        live: &Arc<RunningSandbox>,
    ) -> Result<()> {
        let programs = live.sandbox.take_carried();
        // All slots before the first record: a copy that is refused leaves no records of its programs.
        let slots = programs.iter().map(|_| self.begin_execution(&live.order));
        let slots = slots.collect::<Result<Vec<_>>>()?;
        for (program, slot) in programs.into_iter().zip(slots) {
            self.supervise_carried_program(live, program, slot).await?;
        }
        Ok(())
    }

    /// Opens the record of a program that went on. Its wall time, where one was named, begins now.
    async fn supervise_carried_program(
        self: &Arc<Self>,
        live: &Arc<RunningSandbox>,
        CarriedProgram { command, process }: CarriedProgram,
        slot: Option<ExecutionSlot>,
    ) -> Result<()> {
        let command = Command::program(command);
        let id = live.sandbox.id().clone();
        let shared = self.open_record(fresh_id()?, &live.order, id, &command).await?;
        shared.hold_slot(slot);
        let _ = shared.control.set(ControlSlot(Arc::clone(&process.control)));
        live.remember_execution(&shared);
        let carried = (process, live.denials.watch());
        let mut started = StartedCommand::of(carried, &command, live);
        started.limits.wall_time = live.order.admitted.spec().limits.wall_time;
        tokio::spawn(Arc::clone(self).finish_command(Arc::clone(live), shared, started));
        Ok(())
    }

    /// Watches a command of a sandbox that lives on to its end, and records that.
    pub(crate) async fn finish_command(
        self: Arc<Self>,
        live: Arc<RunningSandbox>,
        shared: Arc<SharedExecution>,
        started: StartedCommand,
    ) {
        let ended = self.supervise_command(&live, &shared, started).await;
        // A process whose end was not confirmed takes its sandbox with it: only that makes sure (C-11).
        let (destroyed, workspace) = if ended.end.confirmed {
            (Ok(()), WorkspaceSlot::default())
        } else {
            (self.destroy_sandbox(&live).await, live.workspace())
        };
        // A reader of the outcome may destroy at once: no lease is held here by then.
        drop(live);
        let closed = self.close_record(&shared, ended).await;
        // What cannot be released stays listed with its changes.
        let _ = workspace.release().await;
        self.reveal_outcome(&shared, closed, destroyed, Ok(()));
    }

    /// Watches a command to its end.
    pub(crate) async fn supervise_command(
        &self,
        live: &RunningSandbox,
        shared: &SharedExecution,
        started: StartedCommand,
    ) -> EndedCommand {
        let StartedCommand { process, denials, stdin, limits, terminal } = started;
        // A terminal's output is not logged: no user expects a transcript of it on disk.
        let kept = self.config.keep_output && !terminal;
        let log = kept.then(|| self.output_logs.writer(&shared.job));
        let output = Sink { history: &shared.history, log };
        let control = Arc::clone(&process.control);
        let supervised = supervise_process(process, stdin, &limits, output, shared.cancelled());
        let mut end = match self.cpu_charge(&live.order) {
            Some(charge) => charge.charge_until_end(control, supervised).await,
            None => supervised.await,
        };
        if self.was_killed(&end.ending, live.sandbox.id()) {
            end.confirmed &= end.ending == Ending::Cancelled;
            end.ending = Ending::Killed;
        }
        EndedCommand { end, denials: Some(denials) }
    }

    /// Whether an end that looks like a loss was meant, or a cancellation came with the end of the whole
    /// sandbox: another process is ending it.
    fn was_killed(&self, ending: &Ending, id: &SandboxId) -> bool {
        matches!(ending, Ending::Lost(_) | Ending::Signalled(Signal::KILL) | Ending::Cancelled)
            && self.kill_is_requested(id)
    }

    pub(crate) fn kill_is_requested(&self, id: &SandboxId) -> bool {
        self.leases.kill_is_requested(id).unwrap_or(false)
    }
}

/// What the backend is given: environment, directory and user merged, and input always a stream.
fn resolve_command(command: &Command, order: &SandboxOrder) -> Result<Command> {
    let spec = order.admitted.spec();
    let mut resolved = command.clone();
    resolved.env = spec.env.clone();
    resolved.env.extend(command.env.clone());
    let proxies = matches!(spec.network, Network::Egress(_)).then_some(GUEST_ENVIRONMENT);
    let secrets = order.secrets.as_deref();
    // A value of that name, passed on by mistake, must not enter (C-53).
    for (name, placeholder) in secrets.into_iter().flat_map(SecretSet::placeholders) {
        resolved.env.insert(name.clone(), placeholder.to_owned());
    }
    let bundle = secrets.map(|_| BUNDLE_ENVIRONMENT);
    let network = proxies.into_iter().flatten().chain(bundle.into_iter().flatten());
    let defaults = [("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")];
    for (name, value) in defaults.into_iter().chain(network) {
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
