//! The executions that run in one sandbox at the same time. Going beyond a limit is the fault of one of them:
//! this tells of which, so that the others go on and are not charged for it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use stockade_agent::client::ProgramPid;
use stockade_core::{LimitKind, Span};

use super::{lock, process_usage};

/// All that run, and what those that have ended used.
#[derive(Default)]
pub(crate) struct Executions(Mutex<ExecutionsState>);

#[derive(Default)]
struct ExecutionsState {
    next: u64,
    running: BTreeMap<u64, ExecutionAccount>,
    /// How many have ended.
    ended: u64,
    ended_cpu: Duration,
}

/// How the program of an execution is known, as its sandbox counts processes.
pub(crate) enum KnownProgram {
    /// Its processes are not the host's.
    Unknown,
    /// By the agent's word, as soon as it runs.
    Told(ProgramPid),
    /// The peer that speaks to the agent has not reported the pid yet.
    Awaited,
    /// By its number.
    Number(u32),
}

impl KnownProgram {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Told(program) => program.get(),
            Self::Number(pid) => Some(*pid),
            Self::Unknown | Self::Awaited => None,
        }
    }
}

/// One that runs.
struct ExecutionAccount {
    program: KnownProgram,
    /// The process below which all of its processes are, as the host numbers it, once that was looked for.
    keeper: Option<i32>,
    /// Processor time when it was last looked at.
    cpu: Duration,
    /// How often its processes were looked for and not found.
    misses: u32,
}

/// How often the processes of an execution may be missing before what it used is no longer waited for.
const MAX_MISSES: u32 = 200;

impl ExecutionAccount {
    fn find_keeper(&mut self, first: i32) -> Option<i32> {
        let found = || process_usage::keeper_of(first, self.program.pid()?);
        self.keeper = self.keeper.or_else(found);
        self.keeper
    }

    /// Whether what it used can be told now. Not so between the end of its processes and the word of it, which
    /// says how much they had used.
    fn is_accountable(&mut self, first: i32) -> bool {
        if self.program.pid().is_none() && !matches!(self.program, KnownProgram::Awaited) {
            return true;
        }
        // Counted before it is looked at: what lives on has not taken any of it away.
        self.count_cpu(first);
        let lives = |keeper: i32| std::path::Path::new(&format!("/proc/{keeper}")).exists();
        if self.find_keeper(first).is_some_and(lives) {
            return true;
        }
        self.misses += 1;
        self.misses > MAX_MISSES
    }

    /// What its own processes use. Nothing, where they cannot be told apart.
    fn measure_amount(&mut self, first: i32, limit: LimitKind) -> Option<u64> {
        self.find_keeper(first).map(|keeper| amount_below(keeper, limit))
    }

    /// Never less than before: who has ended took its time with it.
    fn count_cpu(&mut self, first: i32) -> Duration {
        let now =
            self.find_keeper(first).map(|keeper| process_usage::tally_process_tree(keeper).cpu);
        self.cpu = self.cpu.max(now.unwrap_or_default());
        self.cpu
    }
}

/// What a process and everything below it use of what there is a limit on.
fn amount_below(pid: i32, limit: LimitKind) -> u64 {
    match limit {
        LimitKind::Memory => process_usage::tally_process_tree(pid).memory,
        LimitKind::Processes => process_usage::tally_process_tree(pid).tasks,
        LimitKind::Disk => process_usage::bytes_written(pid),
        LimitKind::CpuRate
        | LimitKind::CpuTime
        | LimitKind::WallTime
        | LimitKind::OpenFiles
        | LimitKind::Output
        | LimitKind::Fuel => 0,
    }
}

impl Executions {
    /// Notes one that has been started; answers its number.
    pub(crate) fn begin(&self, program: KnownProgram) -> u64 {
        let state = &mut *lock(&self.0);
        state.next += 1;
        let account = ExecutionAccount { program, keeper: None, cpu: Duration::ZERO, misses: 0 };
        state.running.insert(state.next, account);
        state.next
    }

    /// Notes the number of the program of one.
    pub(crate) fn start(&self, number: u64, pid: u32) {
        if let Some(account) = lock(&self.0).running.get_mut(&number) {
            account.program = KnownProgram::Number(pid);
        }
    }

    /// Notes the end of one, and what it is charged with at the least. Idempotent.
    pub(crate) fn end(&self, number: u64, cpu: Span) {
        let state = &mut *lock(&self.0);
        if let Some(account) = state.running.remove(&number) {
            state.ended += 1;
            state.ended_cpu += account.cpu.max(cpu.into());
        }
    }

    /// Processor time that all executions but this one have used since the sandbox began, as a lower bound:
    /// an execution that is charged with the rest of the sandbox's is charged with all of its own.
    pub(crate) fn cpu_of_others(&self, first: i32, number: Option<u64>) -> Span {
        let state = &mut *lock(&self.0);
        let others = state.running.iter_mut().filter(|(other, _)| Some(**other) != number);
        let running: Duration = others.map(|(_, account)| account.count_cpu(first)).sum();
        (state.ended_cpu + running).into()
    }

    /// Processor time of this one's own processes, as far as they can be told apart.
    pub(crate) fn cpu_of(&self, first: i32, number: u64) -> Option<Span> {
        let account = &mut lock(&self.0).running;
        let account = account.get_mut(&number)?;
        account.find_keeper(first)?;
        Some(account.count_cpu(first).into())
    }

    /// Whether it can be told now what all but this one have used.
    pub(crate) fn are_others_accountable(&self, first: i32, number: u64) -> bool {
        let state = &mut *lock(&self.0);
        let mut others = state.running.iter_mut().filter(|(other, _)| **other != number);
        others.all(|(_, account)| account.is_accountable(first))
    }

    /// How many have ended since the sandbox began.
    pub(crate) fn count_ended(&self) -> u64 {
        lock(&self.0).ended
    }

    /// Whether this one is known to have written so many bytes.
    pub(crate) fn has_written(&self, first: i32, number: u64, bytes: u64) -> bool {
        let state = &mut *lock(&self.0);
        let account = state.running.get_mut(&number);
        let written = account.and_then(|account| account.measure_amount(first, LimitKind::Disk));
        written.is_some_and(|written| written >= bytes)
    }

    /// Whether no other one runs.
    pub(crate) fn is_alone(&self, number: u64) -> bool {
        lock(&self.0).running.keys().all(|other| *other == number)
    }

    /// Whether no other one uses more of what there is a limit on, and what those that have ended left does not
    /// either: that may be about to go. Where none can be told apart it is the latest.
    ///
    /// Of what was written not all can be told apart: one that is not known for half of the limit is no more to
    /// blame than the others, and then the latest is.
    pub(crate) fn is_to_blame(
        &self,
        first: i32,
        number: u64,
        (limit, allowed): (LimitKind, u64),
    ) -> bool {
        let state = &mut *lock(&self.0);
        let latest = state.running.keys().next_back().copied();
        let amounts = state.running.iter_mut();
        let known: BTreeMap<u64, u64> = amounts
            .filter_map(|(at, account)| Some((*at, account.measure_amount(first, limit)?)))
            .collect();
        let most = known.iter().map(|(at, amount)| (*amount, *at)).max();
        let Some((amount, largest)) = most else { return latest == Some(number) };
        if limit == LimitKind::Disk && amount < allowed / 2 {
            return latest == Some(number);
        }
        // Written bytes stay counted for the parent that reaped the writer, long after the writer's end.
        let left = match limit == LimitKind::Disk {
            true => 0,
            false => amount_below(first, limit).saturating_sub(known.values().sum()),
        };
        largest == number && amount >= left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_is_not_charged_for_what_others_used() {
        let executions = Executions::default();
        let (one, two) =
            (executions.begin(KnownProgram::Unknown), executions.begin(KnownProgram::Unknown));
        assert!(!executions.is_alone(one));
        executions.end(two, Span::secs(3));
        executions.end(two, Span::secs(3));
        assert!(executions.is_alone(one));
        assert_eq!(executions.cpu_of_others(1, Some(one)), Span::secs(3));
    }

    #[test]
    fn where_nothing_can_be_told_apart_the_latest_is_to_blame() {
        let executions = Executions::default();
        let (one, two) =
            (executions.begin(KnownProgram::Unknown), executions.begin(KnownProgram::Unknown));
        assert!(executions.is_to_blame(1, two, (LimitKind::Memory, 0)));
        assert!(!executions.is_to_blame(1, one, (LimitKind::Memory, 0)));
        executions.end(two, Span::millis(0));
        assert!(executions.is_to_blame(1, one, (LimitKind::Memory, 0)));
    }
}
