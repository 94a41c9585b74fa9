//! Watches one process from its start to its end: passes its output on, enforces wall time and the
//! output cap, and ends it when asked. Knows nothing of sandboxes, journals or tenants.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes as Data;
use stockade_core::{
    EffectiveLimits, Ending, Exit, ExitStatus, LimitKind, Process, ProcessControl, ProcessEvent,
    ProcessEvents, Stdin, StreamId, StreamReport, Unsent, Usage,
};
use tokio::sync::watch;

use crate::history::History;
use crate::output_log::OutputLogWriter;

/// How long a killed process may take to report its end before it counts as not confirmed.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// How many events are taken before timers are looked at.
const EVENTS_AT_ONCE: u64 = 32;

/// More than any host has or does: what a backend counted beyond it was not counted.
const MAX_PROCESSORS: u32 = 4096;
const MAX_MEMORY_BYTES: u64 = 1 << 46;
/// How much earlier than here another host may have begun to count.
const MAX_START_DELAY: Duration = Duration::from_secs(60);
const MAX_OUTPUT_PER_SECOND: u64 = 64 << 30;

/// What became of the process.
#[derive(Debug)]
pub(crate) struct SupervisedEnd {
    pub ending: Ending,
    pub usage: Usage,
    pub stdout: StreamReport,
    pub stderr: StreamReport,
    /// The limits that it ran into and was not ended for.
    pub limits_reached: Vec<LimitKind>,
    /// Whether it failed after it had tried to reach another host without a network.
    pub network_unreachable: bool,
    /// Whether the backend reported how it ended. If not, what is left of it is unknown, and only
    /// destroying the sandbox makes sure (C-11).
    pub confirmed: bool,
}

/// Where output goes: to the readers there are, and to those who come after the end.
pub(crate) struct Sink<'a> {
    pub history: &'a History,
    pub log: Option<OutputLogWriter>,
}

/// Passes output on up to the cap; counts and drops the rest (C-12).
struct Pump<'a> {
    output: Sink<'a>,
    control: &'a dyn ProcessControl,
    room: u64,
    started: Instant,
    /// Whether it was said that nothing more is wanted.
    discarding: bool,
    stdout: StreamReport,
    stderr: StreamReport,
}

impl Pump<'_> {
    async fn accept(&mut self, stream: StreamId, mut data: Data) {
        let passed = usize::try_from(self.room).unwrap_or(usize::MAX).min(data.len());
        let dropped = data.len() - passed;
        data.truncate(passed);
        self.room -= passed as u64;
        let report = match stream {
            StreamId::Stdout => &mut self.stdout,
            StreamId::Stderr => &mut self.stderr,
        };
        report.bytes += passed as u64;
        report.dropped += dropped as u64;
        if passed > 0 {
            if let Some(log) = &mut self.output.log {
                log.write(stream, &data);
            }
            self.output.history.push(stream, data).await;
        }
        if dropped > 0 && !std::mem::replace(&mut self.discarding, true) {
            self.control.discard_output().await;
        }
    }

    /// Counts what was dropped where it was written. The number is the guest's word, and no larger than any
    /// program can write.
    fn count(&mut self, unsent: Unsent) {
        let most = MAX_OUTPUT_PER_SECOND.saturating_mul(self.started.elapsed().as_secs() + 1);
        self.stdout.dropped = self.stdout.dropped.saturating_add(unsent.stdout.min(most));
        self.stderr.dropped = self.stderr.dropped.saturating_add(unsent.stderr.min(most));
    }

    /// Reads events until the end. Cancel-safe: it may be polled again after being left half-way.
    async fn drive_events(&mut self, events: &mut dyn ProcessEvents) -> Exit {
        for count in 1u64.. {
            // A flood is always ready: the timers beside it have to be looked at all the same.
            if count.is_multiple_of(EVENTS_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            match events.next().await {
                Some(ProcessEvent::Output(stream, data)) => self.accept(stream, data).await,
                Some(ProcessEvent::Exit(exit)) => {
                    self.count(exit.unsent);
                    return exit;
                }
                None => break,
            }
        }
        ExitStatus::Lost("its events ended without an exit".into()).into()
    }
}

/// Watches the process to its end.
pub(crate) async fn supervise_process(
    process: Process,
    stdin: Stdin,
    limits: &EffectiveLimits,
    output: Sink<'_>,
    cancelled: watch::Receiver<bool>,
) -> SupervisedEnd {
    let started = Instant::now();
    let Process { mut events, control } = process;
    let room = limits.output.map_or(u64::MAX, |cap| cap.0);
    let (stdout, stderr) = (StreamReport::default(), StreamReport::default());
    let control = control.as_ref();
    let history = output.history;
    let mut pump = Pump { output, control, room, started, discarding: false, stdout, stderr };
    let (exit, stopped) = {
        let drive = pump.drive_events(events.as_mut());
        tokio::pin!(drive);
        tokio::select! {
            // An end that has been reported wins over a timer that fires at the same moment.
            biased;
            exit = &mut drive => (Some(exit), None),
            ending = wait_for_stop_reason(limits, control, cancelled) => {
                history.stop_holding();
                let ended = kill_process(control, &mut drive).await;
                (ended, Some(ending))
            }
            never = feed_stdin(stdin, control) => match never {},
        }
    };
    let confirmed = exit.as_ref().is_some_and(|exit| !matches!(exit.status, ExitStatus::Lost(_)));
    let exit = exit.unwrap_or_else(|| ExitStatus::Lost("its end was not confirmed".into()).into());
    let usage = build_usage(started.elapsed(), limits, &exit);
    SupervisedEnd {
        ending: stopped.unwrap_or_else(|| ending_of(exit.status)),
        usage,
        stdout: pump.stdout,
        stderr: pump.stderr,
        limits_reached: exit.limits_reached,
        network_unreachable: exit.network_unreachable,
        confirmed,
    }
}

/// How long it ran. Another host that has ended it for its wall time began to count before its start was known here, and
/// has counted all of it. One that claims to have counted much more is not believed.
fn measure_wall(elapsed: Duration, limits: &EffectiveLimits, exit: &Exit) -> Duration {
    let limit = match (&exit.status, limits.wall_time) {
        (ExitStatus::LimitExceeded(LimitKind::WallTime), Some(limit)) => Duration::from(limit),
        _ => return elapsed,
    };
    if limit.saturating_sub(elapsed) > MAX_START_DELAY { elapsed } else { elapsed.max(limit) }
}

/// What it used, as far as that is known. A number that no host could have counted is not one: the other end
/// of a pipe may say anything.
fn build_usage(elapsed: Duration, limits: &EffectiveLimits, exit: &Exit) -> Usage {
    let wall = measure_wall(elapsed, limits, exit);
    let most_cpu = (elapsed + Duration::from_secs(1)).saturating_mul(MAX_PROCESSORS);
    let cpu = exit.cpu_time.filter(|used| Duration::from(*used) <= most_cpu);
    let memory = exit.peak_memory.filter(|peak| peak.0 <= MAX_MEMORY_BYTES);
    Usage { fuel: exit.fuel, ..Usage::new(wall.into(), cpu, memory) }
}

/// Resolves when the process has to be ended from outside.
async fn wait_for_stop_reason(
    limits: &EffectiveLimits,
    control: &dyn ProcessControl,
    mut cancelled: watch::Receiver<bool>,
) -> Ending {
    tokio::select! {
        () = wait_for_wall_limit(limits, control) => Ending::TimedOut,
        // A closed channel means that no caller is left that could want it.
        _ = cancelled.wait_for(|cancelled| *cancelled) => Ending::Cancelled,
    }
}

/// Resolves when its time is over, unless it has ended before.
async fn wait_for_wall_limit(limits: &EffectiveLimits, control: &dyn ProcessControl) {
    if let Some(wall) = limits.wall_time {
        tokio::select! {
            biased;
            () = control.ended() => {}
            () = tokio::time::sleep(wall.into()) => return,
        }
    }
    std::future::pending().await
}

async fn kill_process(
    control: &dyn ProcessControl,
    drive: impl Future<Output = Exit> + Unpin,
) -> Option<Exit> {
    let killed = async {
        // Whether it worked is told by the exit, not by the answer.
        let _ = control.kill().await;
        std::future::pending::<Infallible>().await
    };
    let end = async {
        tokio::select! {
            exit = drive => exit,
            never = killed => match never {},
        }
    };
    tokio::time::timeout(KILL_GRACE, end).await.ok()
}

/// Feeds the bytes a command came with. Errors do not matter: a program need not read its input.
async fn feed_stdin(stdin: Stdin, control: &dyn ProcessControl) -> Infallible {
    if let Stdin::Bytes(bytes) = stdin {
        let _ = control.write_stdin(bytes.into()).await;
        let _ = control.close_stdin().await;
    }
    std::future::pending().await
}

fn ending_of(status: ExitStatus) -> Ending {
    match status {
        ExitStatus::Exited(code) => Ending::Exited(code),
        ExitStatus::Signalled(signal) => Ending::Signalled(signal),
        ExitStatus::StartFailed(failure) => Ending::StartFailed(failure),
        // Another side that holds the same time was a moment earlier.
        ExitStatus::LimitExceeded(LimitKind::WallTime) => Ending::TimedOut,
        ExitStatus::LimitExceeded(limit) => Ending::LimitExceeded(limit),
        ExitStatus::Lost(reason) => Ending::Lost(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use stockade_core::{Limits, Result, Signal, Span};

    use super::*;
    use crate::history::HistoryBounds;

    /// A program that has ended, and whose exit takes its time.
    struct Late(Duration);

    #[async_trait]
    impl ProcessEvents for Late {
        async fn next(&mut self) -> Option<ProcessEvent> {
            tokio::time::sleep(self.0).await;
            Some(ProcessEvent::Exit(ExitStatus::Exited(0).into()))
        }
    }

    struct Over(bool);

    #[async_trait]
    impl ProcessControl for Over {
        async fn kill(&self) -> Result<()> {
            Ok(())
        }

        async fn ended(&self) {
            if !self.0 {
                std::future::pending().await
            }
        }
    }

    async fn supervise_hung_process(over: bool) -> Ending {
        let events = Box::new(Late(Duration::from_secs(60)));
        let process = Process { events, control: Arc::new(Over(over)) };
        let limits = EffectiveLimits { wall_time: Some(Span::secs(1)), ..Limits::default() };
        let history = History::new(HistoryBounds::default());
        let (_wanted, cancelled) = watch::channel(false);
        let output = Sink { history: &history, log: None };
        supervise_process(process, Stdin::None, &limits, output, cancelled).await.ending
    }

    /// A program whose output is always ready, until it is killed.
    #[derive(Clone, Default)]
    struct Flood(Arc<AtomicBool>);

    #[async_trait]
    impl ProcessEvents for Flood {
        async fn next(&mut self) -> Option<ProcessEvent> {
            // As everything of tokio's does that can be waited for.
            tokio::task::consume_budget().await;
            Some(match self.0.load(Ordering::Relaxed) {
                true => ProcessEvent::Exit(ExitStatus::Signalled(Signal::KILL).into()),
                false => ProcessEvent::Output(StreamId::Stdout, Data::from_static(b"x")),
            })
        }
    }

    #[async_trait]
    impl ProcessControl for Flood {
        async fn kill(&self) -> Result<()> {
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_flood_that_is_never_waited_for_ends_with_the_wall_time() {
        let flood = Flood::default();
        let process = Process { events: Box::new(flood.clone()), control: Arc::new(flood) };
        let limits = EffectiveLimits {
            wall_time: Some(Span::millis(20)),
            output: Some(stockade_core::Bytes(10)),
            ..Limits::default()
        };
        let history = History::new(HistoryBounds::default());
        let (_wanted, cancelled) = watch::channel(false);
        let output = Sink { history: &history, log: None };
        let ended = supervise_process(process, Stdin::None, &limits, output, cancelled).await;
        assert_eq!((ended.ending, ended.confirmed), (Ending::TimedOut, true));
    }

    /// A program behind a peer that neither sends events nor replies to requests.
    struct Silent;

    #[async_trait]
    impl ProcessEvents for Silent {
        async fn next(&mut self) -> Option<ProcessEvent> {
            std::future::pending().await
        }
    }

    #[async_trait]
    impl ProcessControl for Silent {
        async fn kill(&self) -> Result<()> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_answers_the_kill_ends_with_the_wall_time_unconfirmed() {
        let process = Process { events: Box::new(Silent), control: Arc::new(Silent) };
        let limits = EffectiveLimits { wall_time: Some(Span::secs(60)), ..Limits::default() };
        let history = History::new(HistoryBounds::default());
        let (_wanted, cancelled) = watch::channel(false);
        let begun = tokio::time::Instant::now();
        let output = Sink { history: &history, log: None };
        let ended = supervise_process(process, Stdin::None, &limits, output, cancelled).await;
        assert_eq!((ended.ending, ended.confirmed), (Ending::TimedOut, false));
        assert_eq!(begun.elapsed(), Duration::from_secs(60) + KILL_GRACE);
    }

    #[test]
    fn what_another_host_has_ended_for_its_wall_time_ran_that_long() {
        let limits = EffectiveLimits { wall_time: Some(Span::millis(700)), ..Limits::default() };
        let wall = |elapsed, status: ExitStatus| {
            measure_wall(Duration::from_millis(elapsed), &limits, &status.into()).as_millis()
        };
        let timed_out = ExitStatus::LimitExceeded(LimitKind::WallTime);
        assert_eq!(wall(698, timed_out.clone()), 700);
        assert_eq!(wall(900, timed_out.clone()), 900);
        assert_eq!(wall(698, ExitStatus::Exited(0)), 698);
        let limits = EffectiveLimits { wall_time: Some(Span::secs(86_400)), ..Limits::default() };
        let exit = Exit { cpu_time: Some(Span::secs(86_400)), ..timed_out.into() };
        let told = build_usage(Duration::from_secs(1), &limits, &exit);
        assert_eq!((told.wall_ms, told.cpu_ms), (1000, None), "it was there for a second");
    }

    #[test]
    fn numbers_that_nobody_can_have_counted_are_left_out() {
        let claimed = |cpu, peak| Exit {
            cpu_time: Some(Span::millis(cpu)),
            peak_memory: Some(stockade_core::Bytes(peak)),
            ..ExitStatus::Exited(0).into()
        };
        let (second, limits) = (Duration::from_secs(1), EffectiveLimits::default());
        let told = build_usage(second, &limits, &claimed(u64::MAX, u64::MAX));
        assert_eq!((told.cpu_ms, told.peak_memory_bytes), (None, None));
        let told = build_usage(second, &limits, &claimed(1500, 4096));
        assert_eq!((told.cpu_ms, told.peak_memory_bytes), (Some(1500), Some(4096)));
    }

    #[tokio::test(start_paused = true)]
    async fn bringing_back_what_a_program_has_left_is_not_its_time() {
        assert_eq!(supervise_hung_process(true).await, Ending::Exited(0));
        assert_eq!(supervise_hung_process(false).await, Ending::TimedOut);
    }
}
