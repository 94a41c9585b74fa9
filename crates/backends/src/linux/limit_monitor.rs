//! Holds a sandbox to the limits no single mechanism enforces: counts from outside, and ends what goes
//! beyond. Also says, at an exit, which limit it was (C-16).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use async_trait::async_trait;
use stockade_agent::client::Limit;
use stockade_core::{
    Bytes, EffectiveLimits, Exit, ExitStatus, LimitKind, ProcessControl, ProcessEvent,
    ProcessEvents, Signal, Span,
};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::cgroup::Group;
use super::control_layer::{ControlLayer, LayeredControl};
use super::counters::{Counters, has_room_for_at_most, is_exceeded_now};
use super::executions::KnownProgram;
use super::lock;
use super::running::LiveWalls;

/// Whose clock tells what a command has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The host's own.
    Shared,
    /// One between the guest and the host.
    Apart,
}

const SIGXCPU: Signal = Signal(24);
const SIGXFSZ: Signal = Signal(25);

/// What each process of an execution is held to: a whole second more of processor time than all of
/// them may use. Their exact count is the watch's.
pub(crate) fn process_limits(limits: &EffectiveLimits) -> Vec<(Limit, u64)> {
    let seconds = limits.cpu_time.map(|time| time.as_millis().div_ceil(1000) + 1);
    seconds.map(|seconds| (Limit::CpuSeconds, seconds)).into_iter().collect()
}

/// The same where a kernel of its own counts for the guest: it takes waiting for the host's processor
/// for use of it, so that only without a group's exact count its own has to do.
pub(crate) fn held_apart(limits: &EffectiveLimits, running: &LiveWalls) -> Vec<(Limit, u64)> {
    let counted = running.group.as_ref().and_then(Group::cpu_time).is_some();
    if counted { Vec::new() } else { process_limits(limits) }
}

/// The events of one execution, with limits named at the exit.
pub(crate) struct Watched {
    inner: Box<dyn ProcessEvents>,
    watching: Watching,
}

impl Watched {
    pub(crate) fn new(
        inner: Box<dyn ProcessEvents>,
        running: &Arc<LiveWalls>,
        control: &Arc<dyn ProcessControl>,
        cpu_time: Option<Span>,
        begun: Begun,
    ) -> Self {
        Self { inner, watching: Watching::start_watching(begun, running, control, cpu_time) }
    }

    /// The same control, which also tells what the execution has used so far.
    pub(crate) fn count_by_control(
        &self,
        control: Arc<dyn ProcessControl>,
    ) -> Arc<dyn ProcessControl> {
        let Watching { running, held, .. } = &self.watching;
        let (running, held) = (Arc::downgrade(running), Arc::clone(held));
        Arc::new(LayeredControl(CountingControl { control, running, held }))
    }
}

/// The control of an execution whose processor time the group of its sandbox counts.
struct CountingControl {
    control: Arc<dyn ProcessControl>,
    /// Not held: it outlives the sandbox.
    running: Weak<LiveWalls>,
    held: Arc<ExecutionWatchState>,
}

#[async_trait]
impl ControlLayer for CountingControl {
    fn inner(&self) -> &dyn ProcessControl {
        self.control.as_ref()
    }

    /// By the group alone: a tally of processes forgets those that have ended.
    fn cpu_used(&self) -> Option<Span> {
        let running = self.running.upgrade()?;
        running.group.as_ref().and_then(Group::cpu_time)?;
        Some(self.held.cpu_used(&running))
    }
}

/// An execution that has just been started: the counters of its sandbox before, and its program.
pub(crate) struct Begun {
    pub before: Before,
    pub program: KnownProgram,
    /// Whose kernel runs it.
    pub kernel: Kernel,
}

/// The counters of a sandbox before an execution. Read before the agent is told to start it: on a busy host
/// it may be over before this side goes on.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    cpu: Span,
    /// What other executions had used of it.
    cpu_of_others: Span,
    oom_kills: u64,
    refused_processes: u64,
}

impl Before {
    pub(crate) fn of(running: &LiveWalls) -> Self {
        Self {
            cpu: running.cpu_time(),
            cpu_of_others: running.executions.cpu_of_others(running.pid, None),
            oom_kills: running.oom_kills(),
            refused_processes: running.refused_processes(),
        }
    }
}

/// One execution that is held to its limits. Dropping it ends the watch.
pub(crate) struct Watching {
    running: Arc<LiveWalls>,
    held: Arc<ExecutionWatchState>,
    watch: AbortHandle,
}

/// What the watch of an execution and its judge share.
struct ExecutionWatchState {
    number: u64,
    /// What it may use of the processor.
    cpu: Option<Span>,
    before: Before,
    kernel: Kernel,
    /// The limit that it is ended for.
    exceeded: OnceLock<LimitKind>,
    /// Those that it has run into otherwise.
    reached: Mutex<BTreeSet<LimitKind>>,
}

impl ExecutionWatchState {
    /// What it used of the processor: all that its sandbox did meanwhile but for what others are known for.
    fn cpu_used(&self, running: &LiveWalls) -> Span {
        let all = running.cpu_time().as_millis().saturating_sub(self.before.cpu.as_millis());
        let others = running.executions.cpu_of_others(running.pid, Some(self.number));
        let others = others.as_millis().saturating_sub(self.before.cpu_of_others.as_millis());
        Span::millis(all.saturating_sub(others))
    }

    fn is_out_of_time(&self, running: &LiveWalls) -> bool {
        let Some(most) = self.cpu else { return false };
        let all = running.cpu_time().as_millis().saturating_sub(self.before.cpu.as_millis());
        // Telling others apart takes longer, and is needed only now.
        all > most.as_millis()
            && running.executions.are_others_accountable(running.pid, self.number)
            && self.cpu_charged(running) > most
    }

    /// Processor time that it is charged with now. While others run too, no more than its own known processes
    /// have used: time that cannot be attributed may be theirs.
    fn cpu_charged(&self, running: &LiveWalls) -> Span {
        let used = self.cpu_used(running);
        match running.executions.cpu_of(running.pid, self.number) {
            Some(own) if !running.executions.is_alone(self.number) => own.min(used),
            Some(_) | None => used,
        }
    }

    /// Processor time that no other execution is charged with once this one has ended: what it reports, and
    /// what cannot be attributed, up to its limit. Beyond that it would have been ended.
    fn cpu_settled(&self, running: &LiveWalls, said: Option<Span>) -> Span {
        let most = said.max(self.cpu).unwrap_or(Span::millis(0));
        self.cpu_used(running).min(most)
    }

    fn note_reached(&self, limit: LimitKind) {
        lock(&self.reached).insert(limit);
    }
}

impl Watching {
    /// Watches an execution that is about to start.
    pub(crate) fn new(
        running: &Arc<LiveWalls>,
        control: &Arc<dyn ProcessControl>,
        cpu_time: Option<Span>,
    ) -> Self {
        let before = Before::of(running);
        let begun = Begun { before, program: KnownProgram::Awaited, kernel: Kernel::Shared };
        Self::start_watching(begun, running, control, cpu_time)
    }

    /// Its program runs, under this number.
    pub(crate) fn start(&self, pid: u32) {
        self.running.executions.start(self.held.number, pid);
    }

    fn start_watching(
        Begun { before, program, kernel }: Begun,
        running: &Arc<LiveWalls>,
        control: &Arc<dyn ProcessControl>,
        cpu: Option<Span>,
    ) -> Self {
        let number = running.executions.begin(program);
        let (exceeded, reached) = (OnceLock::new(), Mutex::default());
        let held = Arc::new(ExecutionWatchState { number, cpu, before, kernel, exceeded, reached });
        let watch =
            watch_execution(Arc::downgrade(running), Arc::clone(control), Arc::clone(&held));
        let watch = tokio::spawn(watch).abort_handle();
        Self { running: Arc::clone(running), held, watch }
    }

    /// Names the limit that ended it, and says what it used.
    pub(crate) fn judge_exit(&self, exit: Exit) -> Exit {
        self.watch.abort();
        let (running, held) = (&self.running, &self.held);
        let group = running.group.as_ref();
        let counted = group.and_then(Group::cpu_time).map(|_| held.cpu_used(running));
        let charged = counted.map(|_| held.cpu_charged(running)).or(exit.cpu_time);
        let cpu_time = counted.or(exit.cpu_time);
        running.executions.end(held.number, held.cpu_settled(running, exit.cpu_time));
        // What takes the whole sandbox with it may have happened before this execution began.
        let lost = matches!(exit.status, ExitStatus::Lost(_));
        let earlier = lost && running.has_unjudged_oom_kill();
        let out_of_memory = earlier || running.judge_oom_kills() > held.before.oom_kills;
        let gone = EndedExecution {
            kernel: held.kernel,
            out_of_memory,
            out_of_time: held.cpu.is_some_and(|most| charged.is_some_and(|used| used > most)),
        };
        let with_all = || running.ended_for().filter(|_| lost);
        let limit = held.exceeded.get().copied().or_else(with_all);
        let limit = limit.or_else(|| gone.limit_of(&exit.status));
        if limit == Some(LimitKind::Disk) && held.exceeded.get().is_none() {
            // The kernel was faster than the watch: what it wrote is its own, all the same.
            running.disk_breaches.fetch_add(1, Ordering::SeqCst);
        }
        Exit {
            limits_reached: self.limits_reached(limit, &exit.status),
            network_unreachable: exit.status != ExitStatus::Exited(0)
                && running.has_tried_the_network(),
            status: limit.map_or(exit.status, ExitStatus::LimitExceeded),
            cpu_time,
            peak_memory: group.and_then(Group::peak_memory).map(Bytes).or(exit.peak_memory),
            ..exit
        }
    }

    /// The limits that it ran into, but for the one that it was ended for.
    fn limits_reached(&self, ended_for: Option<LimitKind>, status: &ExitStatus) -> Vec<LimitKind> {
        // The program itself has just made room for one; one that could not be started, for its keeper too.
        let spare = if matches!(status, ExitStatus::StartFailed(_)) { 2 } else { 1 };
        let refused = self.running.refused_processes() > self.held.before.refused_processes;
        if refused || has_room_for_at_most(&self.running, spare) {
            self.held.note_reached(LimitKind::Processes);
        }
        let reached = lock(&self.held.reached);
        reached.iter().copied().filter(|limit| Some(*limit) != ended_for).collect()
    }
}

/// What is known of an execution that has ended by itself or by the kernel.
struct EndedExecution {
    kernel: Kernel,
    out_of_memory: bool,
    out_of_time: bool,
}

impl EndedExecution {
    /// The limit that its end tells of. The kernel kills for processor time too, where this side was not
    /// there in time.
    fn limit_of(&self, status: &ExitStatus) -> Option<LimitKind> {
        match status {
            ExitStatus::Signalled(signal) if *signal == SIGXCPU => Some(LimitKind::CpuTime),
            ExitStatus::Signalled(signal) if *signal == SIGXFSZ => Some(LimitKind::Disk),
            ExitStatus::Signalled(Signal::KILL) | ExitStatus::Lost(_) if self.out_of_memory => {
                Some(LimitKind::Memory)
            }
            // The host kills a helper of the other kernel, which then ends the program as it likes.
            ExitStatus::Exited(code)
                if self.kernel == Kernel::Apart && self.out_of_memory && *code != 0 =>
            {
                Some(LimitKind::Memory)
            }
            ExitStatus::Signalled(Signal::KILL) if self.out_of_time => Some(LimitKind::CpuTime),
            ExitStatus::Signalled(_)
            | ExitStatus::Lost(_)
            | ExitStatus::Exited(_)
            | ExitStatus::StartFailed(_)
            | ExitStatus::LimitExceeded(_) => None,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.abort();
        self.running.executions.end(self.held.number, Span::millis(0));
    }
}

#[async_trait]
impl ProcessEvents for Watched {
    async fn next(&mut self) -> Option<ProcessEvent> {
        match self.inner.next().await {
            Some(ProcessEvent::Exit(exit)) => {
                Some(ProcessEvent::Exit(self.watching.judge_exit(exit)))
            }
            other => other,
        }
    }
}

/// Counts until the execution ends, or until it has exceeded a limit.
async fn watch_execution(
    running: Weak<LiveWalls>,
    control: Arc<dyn ProcessControl>,
    held: Arc<ExecutionWatchState>,
) {
    let mut counters = Counters::default();
    if let Some(running) = running.upgrade() {
        // What is there already; what is written from now on counts.
        counters.poll_limits(&running).await;
    }
    loop {
        let Some(pace) = running.upgrade().map(|running| Counters::poll_interval(&running)) else {
            return;
        };
        sleep(pace).await;
        let Some(running) = running.upgrade() else {
            return;
        };
        if held.is_out_of_time(&running) {
            return end_execution(&running, &*control, &held, LimitKind::CpuTime).await;
        }
        // A look takes its time on a busy host: who is alone after it need not have been so before.
        let (was_alone, ended) =
            (running.executions.is_alone(held.number), running.executions.count_ended());
        let look = counters.poll_limits(&running).await;
        look.reached.into_iter().for_each(|limit| held.note_reached(limit));
        let Some(limit) = look.exceeded else {
            continue;
        };
        // The execution to blame is ended by its own watch, unless none is found. Another one may be gone by
        // now, and what was exceeded with it.
        let most = (limit, running.limits.disk.map_or(0, |disk| disk.0));
        let half = most.1 / 2;
        if look.may_be_of_ended && !running.executions.has_written(running.pid, held.number, half) {
            counters.forget_written();
            continue;
        }
        let own = running.executions.is_to_blame(running.pid, held.number, most);
        let is_same = was_alone && ended == running.executions.count_ended();
        let alone = is_same && running.executions.is_alone(held.number);
        let waits = running.ending_for_limit.load(Ordering::SeqCst) > 0;
        if waits {
            // Another one is being ended for it, which may take its time on a busy host or over a network.
            counters.restart_patience();
        }
        if (own || look.patience_is_over && !waits) && (alone || is_exceeded_now(&running, limit)) {
            return end_execution(&running, &*control, &held, limit).await;
        }
    }
}

/// An execution is being ended for a limit until this is dropped.
struct EndingForLimit<'r>(&'r LiveWalls);

impl<'r> EndingForLimit<'r> {
    fn begin(running: &'r LiveWalls) -> Self {
        running.ending_for_limit.fetch_add(1, Ordering::SeqCst);
        Self(running)
    }
}

impl Drop for EndingForLimit<'_> {
    fn drop(&mut self) {
        self.0.ending_for_limit.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ends an execution for a limit.
async fn end_execution(
    running: &LiveWalls,
    control: &dyn ProcessControl,
    held: &ExecutionWatchState,
    limit: LimitKind,
) {
    let _ = held.exceeded.set(limit);
    if limit == LimitKind::Disk {
        running.disk_breaches.fetch_add(1, Ordering::SeqCst);
    }
    let ending = EndingForLimit::begin(running);
    let killed = control.kill().await;
    drop(ending);
    // Memory and processes that are left then belong to no execution that could be ended alone.
    let counts = matches!(limit, LimitKind::Memory | LimitKind::Processes);
    let left =
        || counts && running.executions.is_alone(held.number) && is_exceeded_now(running, limit);
    if killed.is_err() || left() {
        running.kill_for(limit);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn a_kill_is_told_by_what_was_used_up() {
        let killed = ExitStatus::Signalled(Signal::KILL);
        let limit = |out_of_memory, out_of_time| {
            let gone = EndedExecution { kernel: Kernel::Shared, out_of_memory, out_of_time };
            assert_eq!(gone.limit_of(&ExitStatus::Exited(0)), None);
            assert_eq!(gone.limit_of(&ExitStatus::Exited(1)), None);
            gone.limit_of(&killed)
        };
        assert_eq!(limit(false, true), Some(LimitKind::CpuTime));
        assert_eq!(limit(true, true), Some(LimitKind::Memory));
        assert_eq!(limit(false, false), None);
    }

    #[test]
    fn a_program_that_another_kernel_ended_for_want_of_memory_has_exceeded_its_limit() {
        let limit = |code, out_of_memory| {
            let gone = EndedExecution { kernel: Kernel::Apart, out_of_memory, out_of_time: false };
            gone.limit_of(&ExitStatus::Exited(code))
        };
        assert_eq!(limit(1, true), Some(LimitKind::Memory));
        assert_eq!(limit(0, true), None);
        assert_eq!(limit(1, false), None);
    }

    /// A sandbox whose control group is this directory, and whose last process is this one.
    pub(in crate::linux) fn running(group: &std::path::Path) -> Arc<LiveWalls> {
        let own = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::NONBLOCK);
        let built = crate::linux::running::BuiltWalls {
            backend: stockade_core::BackendName::literal("test"),
            last: (own.as_raw_pid(), pidfd.unwrap()),
            ending: crate::linux::running::KillMethod::Signal(rustix::process::Signal::CONT),
            group: Some(Group::V2(group.to_owned())),
            written: Vec::new(),
            held: None,
        };
        let spec = stockade_core::SandboxSpec::default();
        let admitted = crate::linux::admit_provisionally(built.backend.clone(), &spec).unwrap();
        Arc::new(LiveWalls::new("watched".parse().unwrap(), built, &admitted))
    }

    fn oom_kills(group: &std::path::Path, kills: u64) {
        std::fs::write(group.join("memory.events"), format!("oom 9\noom_kill {kills}\n")).unwrap();
    }

    fn judged(watching: &Watching, status: ExitStatus) -> ExitStatus {
        watching.judge_exit(status.into()).status
    }

    #[tokio::test]
    async fn a_kill_for_want_of_memory_is_told_however_early_it_came() {
        let group = tempfile::tempdir().unwrap();
        let running = running(group.path());
        let control = super::super::ended::ended_process(ExitStatus::Exited(0)).control;
        let memory = ExitStatus::LimitExceeded(LimitKind::Memory);
        let lost = ExitStatus::Lost("the agent closed the pipe".into());
        oom_kills(group.path(), 0);
        let before = Before::of(&running);
        // On a busy host it is over before this side goes on.
        oom_kills(group.path(), 1);
        let begun = Begun { before, program: KnownProgram::Unknown, kernel: Kernel::Shared };
        let watching = Watching::start_watching(begun, &running, &control, None);
        assert_eq!(judged(&watching, lost.clone()), memory);
        assert_eq!(judged(&watching, ExitStatus::Signalled(Signal::KILL)), memory);
        // An OOM kill that was not reported yet took the sandbox before the next execution began.
        oom_kills(group.path(), 2);
        let next = Watching::new(&running, &control, None);
        assert_eq!(judged(&next, lost.clone()), memory);
        assert_eq!(judged(&next, ExitStatus::Exited(0)), ExitStatus::Exited(0));
        // An execution that began after that report is lost for another reason.
        let last = Watching::new(&running, &control, None);
        assert_eq!(judged(&last, lost.clone()), lost);
    }
}
