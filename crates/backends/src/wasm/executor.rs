//! Where a program runs: at first on its caller's thread, since waking another one takes longer than most
//! short programs do. It never waits there and never stays: what may take long first waits for a thread of
//! its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Where one program runs, and the processor time it has used there.
pub(super) struct ProgramThread {
    own: AtomicBool,
    /// What it used on the thread it has left, in nanoseconds.
    before: AtomicU64,
    /// What the clock of its thread showed when it came to it, likewise.
    since: AtomicU64,
}

impl ProgramThread {
    /// That of a program which begins on its caller's thread.
    pub(super) fn callers() -> Arc<Self> {
        Self::new(false)
    }

    /// That of a program which has this thread to itself.
    pub(super) fn own() -> Arc<Self> {
        Self::new(true)
    }

    fn new(own: bool) -> Arc<Self> {
        Arc::new(Self { own: own.into(), before: AtomicU64::new(0), since: AtomicU64::new(0) })
    }

    /// Waits for a thread of its own. No waker is registered: the thread that takes a program over polls it
    /// at once.
    pub(super) fn wait_for_own_thread(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let thread = Arc::clone(self);
        poll_fn(move |_| if thread.is_own() { Poll::Ready(()) } else { Poll::Pending })
    }

    /// Whether it has a thread to itself.
    pub(super) fn is_own(&self) -> bool {
        self.own.load(Ordering::Acquire)
    }

    /// Leaves the thread of its caller.
    pub(super) fn leave_thread(&self) {
        self.before.store(self.used_nanoseconds(), Ordering::Relaxed);
    }

    /// Arrives at a thread of its own.
    pub(super) fn arrive_on_thread(&self) {
        self.since.store(thread_time(), Ordering::Relaxed);
        self.own.store(true, Ordering::Release);
    }

    /// Begins to count, or begins anew.
    pub(super) fn restart_clock(&self) {
        self.before.store(0, Ordering::Relaxed);
        self.since.store(thread_time(), Ordering::Relaxed);
    }

    /// Processor time so far, asked for on the thread it runs on.
    pub(super) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.used_nanoseconds())
    }

    fn used_nanoseconds(&self) -> u64 {
        let here = thread_time().saturating_sub(self.since.load(Ordering::Relaxed));
        self.before.load(Ordering::Relaxed) + here
    }
}

/// Processor time of this thread, in nanoseconds.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let time = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses processor time.
    fn burn_cpu(thread: &ProgramThread, until: Duration) {
        while thread.cpu_time() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn processor_time_counts_on_both_threads_and_for_nobody_else() {
        let thread = ProgramThread::callers();
        burn_cpu(&thread, Duration::from_millis(2));
        thread.restart_clock();
        burn_cpu(&thread, Duration::from_millis(3));
        thread.leave_thread();
        assert!(!thread.is_own());
        let other = Arc::clone(&thread);
        let there = std::thread::spawn(move || {
            let others = ProgramThread::own();
            others.restart_clock();
            burn_cpu(&others, Duration::from_millis(20));
            other.arrive_on_thread();
            let at_first = other.cpu_time();
            burn_cpu(&other, at_first + Duration::from_millis(4));
            (at_first, other.cpu_time())
        });
        let (at_first, at_last) = there.join().unwrap();
        assert!((3..20).contains(&at_first.as_millis()), "{at_first:?}");
        assert!(at_last >= Duration::from_millis(7), "{at_last:?}");
        assert!(thread.is_own());
    }
}
