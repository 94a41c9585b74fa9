//! Watches one process from its start to its end: passes its output on, enforces wall time and the
//! output cap, and ends it when asked. Knows nothing of sandboxes, journals or tenants.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes as Data;
use stockade_core::{
    EffectiveLimits, Ending, Exit, ExitStatus, Process, ProcessControl, ProcessEvent,
    ProcessEvents, Stdin, StreamId, StreamReport, Unsent, Usage,
};
use tokio::sync::watch;

use crate::history::History;
use crate::output_log::OutputLogWriter;

/// How long a killed process may take to report its end before it counts as not confirmed.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// What became of the process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub ending: Ending,
    pub usage: Usage,
    pub stdout: StreamReport,
    pub stderr: StreamReport,
    /// Whether the backend reported how it ended. If not, nobody knows what of it is left, and only
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
    /// Whether it was said that nothing more is wanted.
    hushed: bool,
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
        if dropped > 0 && !std::mem::replace(&mut self.hushed, true) {
            self.control.hush().await;
        }
    }

    /// Counts what was dropped where it was written. The number is the guest's word.
    fn count(&mut self, unsent: Unsent) {
        self.stdout.dropped = self.stdout.dropped.saturating_add(unsent.stdout);
        self.stderr.dropped = self.stderr.dropped.saturating_add(unsent.stderr);
    }

    /// Reads events until the end. Cancel-safe: it may be polled again after being left half-way.
    async fn drive(&mut self, events: &mut dyn ProcessEvents) -> Exit {
        loop {
            match events.next().await {
                Some(ProcessEvent::Output(stream, data)) => self.accept(stream, data).await,
                Some(ProcessEvent::Exit(exit)) => {
                    self.count(exit.unsent);
                    return exit;
                }
                None => return ExitStatus::Lost("its events ended without an exit".into()).into(),
            }
        }
    }
}

/// Watches the process to its end.
pub(crate) async fn supervise(
    process: Process,
    stdin: Stdin,
    limits: &EffectiveLimits,
    output: Sink<'_>,
    cancelled: watch::Receiver<bool>,
) -> Ended {
    let started = Instant::now();
    let Process { mut events, control } = process;
    let room = limits.output.map_or(u64::MAX, |cap| cap.0);
    let (stdout, stderr) = (StreamReport::default(), StreamReport::default());
    let control = control.as_ref();
    let history = output.history;
    let mut pump = Pump { output, control, room, hushed: false, stdout, stderr };
    let (exit, stopped) = {
        let drive = pump.drive(events.as_mut());
        tokio::pin!(drive);
        tokio::select! {
            // An end that has been reported wins over a timer that fires at the same moment.
            biased;
            exit = &mut drive => (Some(exit), None),
            ending = stop(limits, control, cancelled) => {
                history.stop_holding();
                let ended = kill(control, &mut drive).await;
                (ended, Some(ending))
            }
            never = feed(stdin, control) => match never {},
        }
    };
    let confirmed = exit.as_ref().is_some_and(|exit| !matches!(exit.status, ExitStatus::Lost(_)));
    let exit = exit.unwrap_or_else(|| ExitStatus::Lost("its end was not confirmed".into()).into());
    let usage = Usage::new(started.elapsed().into(), exit.cpu_time, exit.peak_memory);
    let usage = Usage { fuel: exit.fuel, ..usage };
    let ending = stopped.unwrap_or_else(|| ending_of(exit.status));
    Ended { ending, usage, stdout: pump.stdout, stderr: pump.stderr, confirmed }
}

/// Resolves when the process has to be ended from outside.
async fn stop(
    limits: &EffectiveLimits,
    control: &dyn ProcessControl,
    mut cancelled: watch::Receiver<bool>,
) -> Ending {
    tokio::select! {
        () = expired(limits, control) => Ending::TimedOut,
        // A closed channel means that nobody is left who could want it.
        _ = cancelled.wait_for(|cancelled| *cancelled) => Ending::Cancelled,
    }
}

/// Resolves when its time is over, unless it has ended before.
async fn expired(limits: &EffectiveLimits, control: &dyn ProcessControl) {
    if let Some(wall) = limits.wall_time {
        tokio::select! {
            biased;
            () = control.ended() => {}
            () = tokio::time::sleep(wall.into()) => return,
        }
    }
    std::future::pending().await
}

async fn kill(
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
async fn feed(stdin: Stdin, control: &dyn ProcessControl) -> Infallible {
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
        ExitStatus::LimitExceeded(limit) => Ending::LimitExceeded(limit),
        ExitStatus::Lost(reason) => Ending::Lost(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use stockade_core::{Limits, Result, Span};

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

    async fn ending(over: bool) -> Ending {
        let events = Box::new(Late(Duration::from_secs(60)));
        let process = Process { events, control: Arc::new(Over(over)) };
        let limits = EffectiveLimits { wall_time: Some(Span::secs(1)), ..Limits::default() };
        let history = History::new(HistoryBounds::default());
        let (_wanted, cancelled) = watch::channel(false);
        let output = Sink { history: &history, log: None };
        supervise(process, Stdin::None, &limits, output, cancelled).await.ending
    }

    #[tokio::test(start_paused = true)]
    async fn bringing_back_what_a_program_has_left_is_not_its_time() {
        assert_eq!(ending(true).await, Ending::Exited(0));
        assert_eq!(ending(false).await, Ending::TimedOut);
    }
}
