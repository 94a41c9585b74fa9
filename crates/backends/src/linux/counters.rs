//! What a sandbox uses at once, looked at again and again: processes and memory where no group counts them, and
//! what is written to the host's directories.

use std::time::Duration;

use stockade_core::LimitKind;
use tokio::time::Instant;

use super::cgroup::Group;
use super::disk_watch::{DiskWatch, Written};
use super::process_usage;
use super::running::LiveWalls;

/// Poll interval of the counters where the kernel enforces memory itself.
const RELAXED_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Poll interval where nothing else watches memory or processes.
const TIGHT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long memory is not looked at again, at the most, where looking takes its time.
const MAX_MEMORY_WAIT: Duration = Duration::from_millis(100);
/// How many polls in a row find a limit exceeded until an execution is ended for it that does not
/// use the most: ending the one that does takes its time.
const MAX_BREACH_POLLS: u32 = 100;
/// The same for what is written, which is polled at no fixed pace.
const MAX_DISK_BREACH: Duration = Duration::from_secs(1);

/// Whether a limit that a look found to be exceeded still is. What was written is there in any case.
pub(super) fn is_exceeded_now(running: &LiveWalls, limit: LimitKind) -> bool {
    match limit {
        LimitKind::Memory => {
            let buffers = process_usage::socket_buffers(running.pid);
            let memory = process_usage::proportional_memory(running.pid).saturating_add(buffers);
            running.limits.memory.is_some_and(|most| memory > most.0)
        }
        LimitKind::Processes => most_tasks(running)
            .is_some_and(|most| process_usage::tally_process_tree(running.pid).tasks > most),
        LimitKind::CpuRate
        | LimitKind::CpuTime
        | LimitKind::WallTime
        | LimitKind::Disk
        | LimitKind::OpenFiles
        | LimitKind::Output
        | LimitKind::Fuel => true,
    }
}

/// Whether there is room for no more than so many processes, where no group counts those that it refuses.
pub(super) fn has_room_for_at_most(running: &LiveWalls, spare: u64) -> bool {
    let counted = running.group.as_ref().and_then(Group::refused_processes).is_some();
    let most = most_tasks(running).filter(|_| !counted);
    most.is_some_and(|most| {
        process_usage::tally_process_tree(running.pid).tasks.saturating_add(spare) >= most
    })
}

/// Whether nothing but the watch holds the sandbox to its memory.
fn counts_memory(running: &LiveWalls) -> bool {
    let held = running.group.as_ref().is_some_and(Group::holds_memory);
    running.limits.memory.is_some() && !held
}

/// How many processes and threads there may be, with those that are not the guest's. Nothing, where they
/// cannot be counted from here.
fn most_tasks(running: &LiveWalls) -> Option<u64> {
    let most = running.limits.processes.filter(|_| running.own_processes > 0)?;
    Some(u64::from(most) + running.own_processes)
}

/// What a look has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LimitsReport {
    /// The limit that is exceeded.
    pub exceeded: Option<LimitKind>,
    /// One up to which everything is used, and that the kernel itself holds.
    pub reached: Option<LimitKind>,
    /// Whether it has been exceeded for so long that the execution which uses the most is not being ended.
    pub patience_is_over: bool,
    /// Whether what exceeds it may be of an execution that has ended.
    pub may_be_of_ended: bool,
}

/// What is looked at again and again.
#[derive(Default)]
pub(super) struct Counters {
    disk: DiskWatch,
    /// When memory is looked at again.
    memory: Option<Instant>,
    /// How many looks in a row have found too much memory or too many processes.
    beyond: u32,
}

impl Counters {
    /// How long until the next look.
    pub(super) fn poll_interval(running: &LiveWalls) -> Duration {
        if counts_memory(running) || running.counts_processes {
            TIGHT_POLL_INTERVAL
        } else {
            RELAXED_POLL_INTERVAL
        }
    }

    /// Counts anew for how long memory or processes are beyond their limit.
    pub(super) fn restart_patience(&mut self) {
        self.beyond = 0;
    }

    /// Counts what is written from now on.
    pub(super) fn forget_written(&mut self) {
        self.disk.forget_written();
    }

    /// Looks at everything that is due.
    pub(super) async fn poll_limits(&mut self, running: &LiveWalls) -> LimitsReport {
        let look = self.look_at_processes(running).await;
        if look.exceeded.is_some() {
            self.beyond += 1;
            return LimitsReport { patience_is_over: self.beyond >= MAX_BREACH_POLLS, ..look };
        }
        if !self.waits_for_memory() {
            self.beyond = 0;
        }
        match self.disk.poll_usage(running).await {
            Written::Within => look,
            Written::AllThereMayBe => LimitsReport { reached: Some(LimitKind::Disk), ..look },
            Written::Beyond(lasted) => LimitsReport {
                exceeded: Some(LimitKind::Disk),
                patience_is_over: lasted >= MAX_DISK_BREACH,
                ..look
            },
            Written::BeyondByEnded => {
                LimitsReport { exceeded: Some(LimitKind::Disk), may_be_of_ended: true, ..look }
            }
        }
    }

    /// Their number and their memory, as far as no group counts them.
    async fn look_at_processes(&mut self, running: &LiveWalls) -> LimitsReport {
        let counted = running.group.as_ref().and_then(Group::refused_processes).is_some();
        let most_tasks = most_tasks(running).filter(|_| !counted);
        let most_memory = running.limits.memory.filter(|_| counts_memory(running));
        if most_tasks.is_none() && most_memory.is_none() {
            return LimitsReport::default();
        }
        let tally = process_usage::tally_process_tree(running.pid);
        let mut look = look_at_number(running, most_tasks, tally.tasks);
        if let (None, Some(most)) = (look.exceeded, most_memory)
            && self.is_beyond(running.pid, tally.memory, most.0).await
        {
            look.exceeded = Some(LimitKind::Memory);
        }
        look
    }

    /// Whether it is too early to look at memory page by page again.
    fn waits_for_memory(&self) -> bool {
        self.memory.is_some_and(|next| Instant::now() < next)
    }

    /// Whether memory is beyond its limit. Pages that processes share are told apart only where it would be
    /// without: that takes the kernel a look at every page.
    async fn is_beyond(&mut self, pid: i32, resident: u64, most: u64) -> bool {
        let buffers = process_usage::socket_buffers(pid);
        if resident.saturating_add(buffers) <= most || self.waits_for_memory() {
            return false;
        }
        let started = Instant::now();
        let counting = tokio::task::spawn_blocking(move || process_usage::proportional_memory(pid));
        let memory = counting.await.unwrap_or(resident).saturating_add(buffers);
        let wait = (started.elapsed() * 3).min(MAX_MEMORY_WAIT);
        self.memory = Some(Instant::now() + wait);
        memory > most
    }
}

fn look_at_number(running: &LiveWalls, most: Option<u64>, tasks: u64) -> LimitsReport {
    let Some(most) = most else { return LimitsReport::default() };
    let found = |there: bool| there.then_some(LimitKind::Processes);
    match running.counts_processes {
        true => LimitsReport { exceeded: found(tasks > most), ..LimitsReport::default() },
        false => LimitsReport { reached: found(tasks >= most), ..LimitsReport::default() },
    }
}
