//! Holds a sandbox to the limits no single mechanism enforces: counts from outside, and ends what goes
//! beyond. Also says, at an exit, which limit it was (C-16).

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use stockade_agent::client::Limit;
use stockade_core::{
    Bytes, EffectiveLimits, Exit, ExitStatus, LimitKind, ProcessControl, ProcessEvent,
    ProcessEvents, Signal, Span,
};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::cgroup::Group;
use super::disk::Usage;
use super::running::Running;
use super::sandbox::Kernel;
use super::{disk, tally};

/// How often counters are read where the kernel enforces memory itself.
const RELAXED: Duration = Duration::from_millis(50);
/// How often where nothing but this watches memory.
const CLOSE: Duration = Duration::from_millis(10);
/// How often files are added up, at the most.
const DISK: Duration = Duration::from_millis(250);
/// How seldom, where adding up takes its time but not so long that it would do nothing else.
const SELDOM: Duration = Duration::from_secs(1);

const SIGXCPU: Signal = Signal(24);
const SIGXFSZ: Signal = Signal(25);

/// What each process of an execution is held to: a whole second more of processor time than all of
/// them may use. Their exact count is the watch's.
pub(crate) fn held(limits: &EffectiveLimits) -> Vec<(Limit, u64)> {
    let seconds = limits.cpu_time.map(|time| time.as_millis().div_ceil(1000) + 1);
    seconds.map(|seconds| (Limit::CpuSeconds, seconds)).into_iter().collect()
}

/// The same where a kernel of its own counts for the guest: it takes waiting for the host's processor
/// for use of it, so that only without a group's exact count its own has to do.
pub(crate) fn held_apart(limits: &EffectiveLimits, running: &Running) -> Vec<(Limit, u64)> {
    let counted = running.group.as_ref().and_then(Group::cpu_time).is_some();
    if counted { Vec::new() } else { held(limits) }
}

/// The events of one execution, with limits named at the exit.
pub(crate) struct Watched {
    inner: Box<dyn ProcessEvents>,
    watching: Watching,
}

impl Watched {
    pub(crate) fn new(
        inner: Box<dyn ProcessEvents>,
        running: &Arc<Running>,
        control: &Arc<dyn ProcessControl>,
        cpu_time: Option<Span>,
        before: Before,
        kernel: Kernel,
    ) -> Self {
        let mut watching = Watching::since(before, running, control, cpu_time);
        watching.kernel = kernel;
        Self { inner, watching }
    }
}

/// The counters of a sandbox before an execution. Read before the agent is told to start it: on a busy host
/// it may be over before this side goes on.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    cpu: Span,
    oom_kills: u64,
}

impl Before {
    pub(crate) fn of(running: &Running) -> Self {
        Self { cpu: running.cpu_time(), oom_kills: running.oom_kills() }
    }
}

/// One execution that is held to its limits. Dropping it ends the watch.
pub(crate) struct Watching {
    running: Arc<Running>,
    /// What it may use of the processor.
    cpu: Option<Span>,
    before: Before,
    kernel: Kernel,
    watch: AbortHandle,
}

impl Watching {
    /// Watches an execution that is about to start.
    pub(crate) fn new(
        running: &Arc<Running>,
        control: &Arc<dyn ProcessControl>,
        cpu_time: Option<Span>,
    ) -> Self {
        Self::since(Before::of(running), running, control, cpu_time)
    }

    fn since(
        before: Before,
        running: &Arc<Running>,
        control: &Arc<dyn ProcessControl>,
        cpu_time: Option<Span>,
    ) -> Self {
        let most = cpu_time
            .map(|most| Span::millis(before.cpu.as_millis().saturating_add(most.as_millis())));
        let watch = tokio::spawn(watch(Arc::downgrade(running), Arc::clone(control), most));
        let running = Arc::clone(running);
        let (kernel, watch) = (Kernel::Shared, watch.abort_handle());
        Self { running, cpu: cpu_time, before, kernel, watch }
    }

    /// Names the limit that ended it, and says what it used.
    pub(crate) fn judge(&self, exit: Exit) -> Exit {
        self.watch.abort();
        let group = self.running.group.as_ref();
        let counted = group
            .and_then(Group::cpu_time)
            .map(|now| Span::millis(now.as_millis().saturating_sub(self.before.cpu.as_millis())));
        let cpu_time = counted.or(exit.cpu_time);
        // What takes the whole sandbox with it may have happened before this execution began.
        let lost = matches!(exit.status, ExitStatus::Lost(_));
        let earlier = lost && self.running.has_unjudged_oom_kill();
        let out_of_memory = earlier || self.running.judge_oom_kills() > self.before.oom_kills;
        let gone = Gone {
            kernel: self.kernel,
            out_of_memory,
            out_of_time: self.cpu.is_some_and(|most| cpu_time.is_some_and(|used| used > most)),
        };
        let limit = self.running.breached().or_else(|| gone.limit_of(&exit.status));
        Exit {
            status: limit.map_or(exit.status, ExitStatus::LimitExceeded),
            cpu_time,
            peak_memory: group.and_then(Group::peak_memory).map(Bytes).or(exit.peak_memory),
            ..exit
        }
    }
}

/// What is known of an execution that has ended by itself or by the kernel.
struct Gone {
    kernel: Kernel,
    out_of_memory: bool,
    out_of_time: bool,
}

impl Gone {
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
    }
}

#[async_trait]
impl ProcessEvents for Watched {
    async fn next(&mut self) -> Option<ProcessEvent> {
        match self.inner.next().await {
            Some(ProcessEvent::Exit(exit)) => Some(ProcessEvent::Exit(self.watching.judge(exit))),
            other => other,
        }
    }
}

/// Counts until the execution ends, or until a limit is exceeded. `cpu` is of the whole sandbox.
async fn watch(running: Weak<Running>, control: Arc<dyn ProcessControl>, cpu: Option<Span>) {
    let mut disk = DiskWatch::default();
    if let Some(running) = running.upgrade() {
        // What is there already; what is written from now on counts.
        disk.exceeded(&running).await;
    }
    loop {
        let Some(pace) = running.upgrade().map(|running| pace(&running)) else {
            return;
        };
        sleep(pace).await;
        let Some(running) = running.upgrade() else {
            return;
        };
        let over = match exceeded(&running, cpu) {
            Some(limit) => Some(limit),
            None => disk.exceeded(&running).await,
        };
        if let Some(limit) = over {
            running.breach(limit);
            // Whether that was enough is seen at the next round; then everything goes.
            if control.kill().await.is_err() || exceeded(&running, None).is_some() {
                running.kill();
            }
            return;
        }
    }
}

/// Whether the kernel itself holds the sandbox to its memory.
fn memory_is_held(running: &Running) -> bool {
    running.group.as_ref().is_some_and(Group::holds_memory)
}

fn pace(running: &Running) -> Duration {
    if memory_is_held(running) || running.limits.memory.is_none() { RELAXED } else { CLOSE }
}

fn exceeded(running: &Running, cpu: Option<Span>) -> Option<LimitKind> {
    if cpu.is_some_and(|most| running.cpu_time() > most) {
        return Some(LimitKind::CpuTime);
    }
    let most = running.limits.memory.filter(|_| !memory_is_held(running))?;
    let memory = tally::below(running.pid).memory;
    let memory = memory.saturating_add(tally::socket_buffers(running.pid));
    (memory > most.0).then_some(LimitKind::Memory)
}

/// Adds up what is written to the host's directories, from the first look on.
#[derive(Default)]
struct DiskWatch {
    before: Option<Usage>,
    last: Option<(Instant, u64)>,
    next: Option<Instant>,
}

impl DiskWatch {
    async fn exceeded(&mut self, running: &Running) -> Option<LimitKind> {
        let (roots, most) = (running.written.clone(), running.limits.disk?);
        if roots.is_empty() || self.next.is_some_and(|next| Instant::now() < next) {
            return None;
        }
        let started = Instant::now();
        // Whoever waits for the count gives it up by dropping its half: a large tree must not hold up
        // the end of a sandbox, or of the engine.
        let waiting = Arc::new(());
        let wanted = Arc::downgrade(&waiting);
        let counting = tokio::task::spawn_blocking(move || add_up(&roots, &wanted));
        let used = counting.await.ok()??;
        drop(waiting);
        let took = started.elapsed();
        let bytes = used.bytes();
        let written = used.since(self.before.get_or_insert(used.clone()));
        let room = most.0.saturating_sub(written);
        let grown = self.last.map(|(then, had)| (started - then, bytes.saturating_sub(had)));
        self.last = Some((started, bytes));
        self.next = Some(Instant::now() + until_next(took, room, grown));
        (written > most.0).then_some(LimitKind::Disk)
    }
}

/// When to look again: before what is left would be full at the pace it was filled at last. Looking takes
/// a tenth of the time where little is written, and never more than a quarter; but a look that took long,
/// as one does on a busy machine, does not leave the guest alone for long.
fn until_next(took: Duration, room: u64, grown: Option<(Duration, u64)>) -> Duration {
    let soonest = took * 3;
    let latest = (took * 10).clamp(DISK, SELDOM).max(soonest);
    let full = match grown {
        // Nobody knows the pace yet.
        None => Duration::ZERO,
        Some((_, 0)) => latest,
        Some((time, bytes)) => {
            let full = time.as_secs_f64() * room as f64 / bytes as f64;
            Duration::try_from_secs_f64(full).unwrap_or(latest)
        }
    };
    full.clamp(soonest, latest)
}

fn add_up(roots: &[PathBuf], wanted: &Weak<()>) -> Option<Usage> {
    let mut counted = roots.iter().map(|root| disk::used(root, || wanted.strong_count() > 0));
    counted.try_fold(Usage::default(), |sum, used| Some(sum.plus(used?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn millis(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_kill_is_told_by_what_was_used_up() {
        let killed = ExitStatus::Signalled(Signal::KILL);
        let limit = |out_of_memory, out_of_time| {
            let gone = Gone { kernel: Kernel::Shared, out_of_memory, out_of_time };
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
            let gone = Gone { kernel: Kernel::Apart, out_of_memory, out_of_time: false };
            gone.limit_of(&ExitStatus::Exited(code))
        };
        assert_eq!(limit(1, true), Some(LimitKind::Memory));
        assert_eq!(limit(0, true), None);
        assert_eq!(limit(1, false), None);
    }

    /// A sandbox whose control group is this directory, and whose last process is this one.
    fn running(group: &std::path::Path) -> Arc<Running> {
        let own = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::NONBLOCK);
        let built = crate::linux::running::Built {
            backend: stockade_core::BackendName::literal("test"),
            last: (own.as_raw_pid(), pidfd.unwrap()),
            ending: crate::linux::running::Ending::Signal(rustix::process::Signal::CONT),
            group: Some(Group::V2(group.to_owned())),
            written: Vec::new(),
            held: None,
        };
        let spec = stockade_core::SandboxSpec::default();
        let admitted = crate::linux::provisional(built.backend.clone(), &spec).unwrap();
        Arc::new(Running::new("watched".parse().unwrap(), built, &admitted))
    }

    fn oom_kills(group: &std::path::Path, kills: u64) {
        std::fs::write(group.join("memory.events"), format!("oom 9\noom_kill {kills}\n")).unwrap();
    }

    fn judged(watching: &Watching, status: ExitStatus) -> ExitStatus {
        watching.judge(status.into()).status
    }

    #[tokio::test]
    async fn a_kill_for_want_of_memory_is_told_however_early_it_came() {
        let group = tempfile::tempdir().unwrap();
        let running = running(group.path());
        let control = super::super::ended::process(ExitStatus::Exited(0)).control;
        let memory = ExitStatus::LimitExceeded(LimitKind::Memory);
        let lost = ExitStatus::Lost("the agent closed the pipe".into());
        oom_kills(group.path(), 0);
        let before = Before::of(&running);
        // On a busy host it is over before this side goes on.
        oom_kills(group.path(), 1);
        let watching = Watching::since(before, &running, &control, None);
        assert_eq!(judged(&watching, lost.clone()), memory);
        assert_eq!(judged(&watching, ExitStatus::Signalled(Signal::KILL)), memory);
        // One that nobody was told of took the sandbox before the next execution began.
        oom_kills(group.path(), 2);
        let next = Watching::new(&running, &control, None);
        assert_eq!(judged(&next, lost.clone()), memory);
        assert_eq!(judged(&next, ExitStatus::Exited(0)), ExitStatus::Exited(0));
        // Whoever lived on after it is lost for another reason.
        let last = Watching::new(&running, &control, None);
        assert_eq!(judged(&last, lost.clone()), lost);
    }

    #[test]
    fn what_is_filled_fast_is_looked_at_before_it_is_full() {
        let next = |grown| until_next(millis(1), 64 * MIB, grown);
        assert_eq!(next(None), millis(3), "the pace is not known yet");
        assert_eq!(next(Some((millis(100), 0))), DISK);
        assert_eq!(next(Some((millis(100), 64 * MIB))), millis(100));
        assert_eq!(next(Some((millis(1), 640 * MIB))), millis(3));
        assert_eq!(until_next(millis(1), 0, Some((millis(9), 1))), millis(3));
    }

    #[test]
    fn a_large_tree_is_looked_at_seldom() {
        assert_eq!(until_next(millis(100), u64::MAX, Some((millis(1), 1))), millis(1000));
        assert_eq!(until_next(millis(100), 1, Some((millis(1), u64::MAX))), millis(300));
    }

    #[test]
    fn one_look_that_took_long_is_no_leave_to_write() {
        assert_eq!(until_next(millis(600), u64::MAX, Some((millis(1), 1))), millis(1800));
        assert_eq!(until_next(millis(200), u64::MAX, Some((millis(1), 1))), SELDOM);
    }
}
