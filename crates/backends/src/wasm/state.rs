//! What belongs to one running program: its view of WASI, and what it has used of its limits. The host
//! functions and the engine's own hooks decide by it.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stockade_core::{ExitStatus, LimitKind, Signal};
use wasmtime::{ResourceLimiterAsync, Result};
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{WasiCtxView, WasiView, async_trait};

use super::account::ResourceAccount;
use super::check::MAX_TABLE_ENTRIES;
use super::engine::LARGEST_MEMORY;
use super::executor::ProgramThread;

/// Memory that one table element takes.
const TABLE_ELEMENT_BYTES: u64 = 16;
/// Limit of each of a program's instances, memories and tables.
const MAX_PROGRAM_PARTS: usize = 256;

/// Memory of a program up to which it may stay on its caller's thread: filling all of it is one
/// instruction, which is not interrupted.
const INLINE_MEMORY_BYTES: u64 = 8 << 20;

/// Number of standard streams: input, output and errors.
pub(super) const STDIO_STREAMS: usize = 3;

/// One running program.
pub(super) struct StoreState {
    pub wasi: WasiP1Ctx,
    pub meter: Meter,
    pub descriptors: Descriptors,
    /// Whether nothing of the host's time may be seen.
    pub fixed: bool,
    /// How it ended, for callers that ask afterwards.
    pub ended: Arc<OnceLock<ExitStatus>>,
}

impl WasiView for StoreState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi.ctx()
    }
}

impl StoreState {
    /// Processor time as the program may see it.
    pub(super) fn processor_time(&self) -> Duration {
        if self.fixed { Duration::ZERO } else { self.meter.cpu_time() }
    }

    /// Whether a component may open no further file.
    pub(super) fn is_full(&mut self) -> bool {
        let files = self.wasi.ctx().table.iter_mut().filter(|entry| entry.is::<Descriptor>());
        files.count() + STDIO_STREAMS >= self.descriptors.most
    }
}

/// Why a program was ended, where the machine's own traps do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum StopReason {
    #[error("it exited with {0}")]
    Exit(i32),
    #[error("it raised {0}")]
    Raised(Signal),
    #[error("it went beyond its {0} limit")]
    Limit(LimitKind),
}

/// The files a program has open.
pub(super) struct Descriptors {
    open: BTreeSet<u32>,
    most: usize,
    /// Those it was given: its three streams and the directories.
    given: usize,
}

impl Descriptors {
    pub(super) fn new(most: Option<u32>, given: usize) -> Self {
        Self { open: BTreeSet::new(), most: most.map_or(usize::MAX, |most| most as usize), given }
    }

    /// Whether one more would be too many.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() + self.given >= self.most
    }

    pub(super) fn record_open(&mut self, number: u32) {
        self.open.insert(number);
    }

    pub(super) fn record_close(&mut self, number: u32) {
        self.open.remove(&number);
    }

    /// One took the number of another, which is closed by that.
    pub(super) fn record_renumber(&mut self, from: u32, to: u32) {
        if self.open.remove(&from) {
            self.open.insert(to);
        }
    }

    /// Whether a number is a file's, and not that of a stream it was given.
    pub(super) fn is_file(&self, number: u32) -> bool {
        self.open.contains(&number)
    }
}

/// Memory, processor time and disk of one program, on its sandbox's account.
pub(super) struct Meter {
    pub account: Arc<ResourceAccount>,
    pub thread: Arc<ProgramThread>,
    cpu_most: Option<Duration>,
    held: u64,
    peak: u64,
    refused: bool,
}

impl Meter {
    /// Starts to count.
    pub(super) fn start(
        account: Arc<ResourceAccount>,
        thread: Arc<ProgramThread>,
        cpu_most: Option<Duration>,
    ) -> Self {
        thread.restart_clock();
        Self { account, thread, cpu_most, held: 0, peak: 0, refused: false }
    }

    /// Counts from here on anew, for another call.
    pub(super) fn restart_clock(&mut self) {
        self.thread.restart_clock();
        self.refused = false;
    }

    /// Processor time so far.
    pub(super) fn cpu_time(&self) -> Duration {
        self.thread.cpu_time()
    }

    /// Fails when the processor time is used up.
    pub(super) fn check_cpu_time(&self) -> Result<()> {
        match self.cpu_most {
            Some(most) if self.cpu_time() > most => {
                Err(StopReason::Limit(LimitKind::CpuTime).into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The most memory it had at once.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Whether it was refused memory.
    pub(super) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Whether something may grow. Decided as a whole before anything is taken: what was granted and
    /// fails in the machine, for want of the host's memory, is given back when the program ends.
    fn reserve_growth(
        &mut self,
        (now, then): (usize, usize),
        most: Option<usize>,
        largest: usize,
        unit: u64,
    ) -> bool {
        // The bound is the same where instances come from a pool that has one and where they do not.
        if then <= largest && most.is_some_and(|most| then > most) {
            // Its own bound, which it was compiled with: no limit of the sandbox's.
            return false;
        }
        let more = (then.saturating_sub(now) as u64).saturating_mul(unit);
        let granted = then <= largest && self.account.take_memory(more);
        if granted {
            self.held += more;
            self.peak = self.peak.max(self.held);
        }
        self.refused |= !granted;
        granted
    }

    /// A program that has grown large leaves its caller's thread.
    async fn leave_caller_if_large(&self) {
        if self.held > INLINE_MEMORY_BYTES {
            self.thread.wait_for_own_thread().await;
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.account.give_memory(self.held);
    }
}

#[async_trait]
impl ResourceLimiterAsync for Meter {
    async fn memory_growing(
        &mut self,
        now: usize,
        then: usize,
        most: Option<usize>,
    ) -> Result<bool> {
        let granted = self.reserve_growth((now, then), most, LARGEST_MEMORY, 1);
        self.leave_caller_if_large().await;
        Ok(granted)
    }

    async fn table_growing(
        &mut self,
        now: usize,
        then: usize,
        most: Option<usize>,
    ) -> Result<bool> {
        let largest = usize::try_from(MAX_TABLE_ENTRIES).unwrap_or(usize::MAX);
        let granted = self.reserve_growth((now, then), most, largest, TABLE_ELEMENT_BYTES);
        self.leave_caller_if_large().await;
        Ok(granted)
    }

    fn instances(&self) -> usize {
        MAX_PROGRAM_PARTS
    }

    fn tables(&self) -> usize {
        MAX_PROGRAM_PARTS
    }

    fn memories(&self) -> usize {
        MAX_PROGRAM_PARTS
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use stockade_core::Limits;

    use super::*;

    #[test]
    fn a_program_with_much_memory_does_not_stay_on_its_callers_thread() {
        let account = Arc::new(ResourceAccount::new(&Limits::defaults()));
        let thread = ProgramThread::callers();
        let mut meter = Meter::start(account, Arc::clone(&thread), None);
        let mut context = Context::from_waker(Waker::noop());
        let little = pin!(meter.memory_growing(0, 1 << 20, None)).poll(&mut context);
        assert!(matches!(little, Poll::Ready(Ok(true))));
        {
            let mut much = pin!(meter.memory_growing(1 << 20, 64 << 20, None));
            assert!(much.as_mut().poll(&mut context).is_pending());
            thread.leave_thread();
            thread.arrive_on_thread();
            assert!(matches!(much.poll(&mut context), Poll::Ready(Ok(true))));
        }
        assert_eq!(meter.peak(), 64 << 20);
    }
}
