//! The loop between this process's standard streams and a program: output goes out, input, signals and
//! terminal sizes go in. The same for a program of this process's engine and one behind a supervisor.

use std::convert::Infallible;

use bytes::Bytes;
use stockade_core::{Command, Outcome, Result, Signal, Stdin, TerminalSize};
use stockade_engine::{OutputEvent, Subscription, Watcher};
use tokio::signal::unix::{SignalKind, signal};

use crate::report::capture::Captured;
use crate::report::reasons::describe_outcome;
use crate::terminal;
use crate::terminal::input;
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::output::{OutputStop, TerminalOutput};
use crate::terminal::printer::Printer;

/// What a command that writes to a closed pipe ends with everywhere.
pub const CLOSED_PIPE: i32 = 128 + 13;

/// How to influence a program, wherever it runs.
pub trait ProgramControl {
    /// Sends a signal to it and its descendants.
    async fn signal(&self, signal: Signal) -> Result<()>;
    /// Feeds it input, waiting while it does not read.
    async fn write_stdin(&self, data: Bytes) -> Result<()>;
    /// Ends its input.
    async fn close_stdin(&self) -> Result<()>;
    /// Changes its terminal's size.
    async fn resize(&self, size: TerminalSize) -> Result<()>;
}

/// What a program does, in order, wherever it runs.
pub trait ProgramEvents {
    /// The next event; nothing after the end.
    async fn next(&mut self) -> Result<Option<OutputEvent>>;
}

impl ProgramControl for Watcher {
    async fn signal(&self, signal: Signal) -> Result<()> {
        Self::signal(self, signal).await
    }

    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        Self::write_stdin(self, data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        Self::close_stdin(self).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        Self::resize(self, size).await
    }
}

impl ProgramEvents for Subscription {
    async fn next(&mut self) -> Result<Option<OutputEvent>> {
        Ok(Self::next(self).await)
    }
}

/// How it came to an end.
pub enum ProgramEnd {
    /// By itself, or by a limit.
    Over(Box<Outcome>),
    /// The caller would not wait any longer.
    Forced(Signal),
    /// No reader of the output is left.
    Unread,
}

/// Sees the program through while its output is looked after.
pub async fn attend_program(
    program: &impl ProgramControl,
    interrupts: &mut Interrupts,
    command: &Command,
    output: impl Future<Output = Result<ProgramEnd>>,
) -> Result<ProgramEnd> {
    tokio::select! {
        end = output => end,
        signal = interrupts.conduct(program) => Ok(ProgramEnd::Forced(signal)),
        signal = feed_input(program, command) => signal.map(ProgramEnd::Forced),
        never = follow_size(program, command) => match never? {},
    }
}

/// Writes output as it comes.
pub async fn relay_output(
    events: &mut impl ProgramEvents,
    output: &mut TerminalOutput,
) -> Result<ProgramEnd> {
    while let Some(event) = events.next().await? {
        match event {
            OutputEvent::Output { stream, data, .. } => match output.write(stream, data).await {
                Ok(()) => {}
                Err(OutputStop::Closed) => return Ok(ProgramEnd::Unread),
                Err(OutputStop::Failed(error)) => return Err(error),
            },
            // A follower is waited for, so only a program that is being ended leaves gaps.
            OutputEvent::Gap { .. } => {}
            OutputEvent::End(outcome) => return Ok(ProgramEnd::Over(Box::new(outcome))),
        }
    }
    std::future::pending().await
}

/// Holds output until the end.
pub async fn collect_output(
    events: &mut impl ProgramEvents,
    captured: &mut Captured,
) -> Result<ProgramEnd> {
    while let Some(event) = events.next().await? {
        match event {
            OutputEvent::Output { stream, data, .. } => captured.take(stream, &data),
            OutputEvent::Gap { .. } => {}
            OutputEvent::End(outcome) => return Ok(ProgramEnd::Over(Box::new(outcome))),
        }
    }
    std::future::pending().await
}

/// Waits until all output is written, says what the exit code alone does not, and answers that code.
pub async fn conclude_program(
    end: ProgramEnd,
    mut output: TerminalOutput,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<i32> {
    let outcome = match end {
        ProgramEnd::Forced(signal) => return Ok(interrupts::exit_code(signal)),
        ProgramEnd::Unread => return Ok(CLOSED_PIPE),
        ProgramEnd::Over(outcome) => *outcome,
    };
    let written = tokio::select! {
        written = output.finish() => written,
        signal = interrupts.next() => return Ok(interrupts::exit_code(signal)),
    };
    match written {
        Ok(()) => {}
        Err(OutputStop::Closed) => return Ok(CLOSED_PIPE),
        Err(OutputStop::Failed(error)) => return Err(error),
    }
    describe_outcome(&outcome).iter().for_each(|reason| printer.note(reason));
    Ok(outcome.exit_code())
}

/// Passes input on. Returns only if that was the keys of a terminal that is gone, and the program has
/// not ended for it.
async fn feed_input(program: &impl ProgramControl, command: &Command) -> Result<Signal> {
    match command.stdin {
        Stdin::Stream => input::feed_stdin(program).await?,
        Stdin::None | Stdin::Bytes(_) => std::future::pending().await,
    }
    if command.terminal.is_none() {
        return std::future::pending().await;
    }
    let _ = program.signal(Signal::HUP).await;
    tokio::time::sleep(interrupts::GRACE_PERIOD).await;
    Ok(Signal::HUP)
}

async fn follow_size(program: &impl ProgramControl, command: &Command) -> Result<Infallible> {
    if command.terminal.is_none() {
        return std::future::pending().await;
    }
    let Ok(mut changes) = signal(SignalKind::window_change()) else {
        return std::future::pending().await;
    };
    loop {
        changes.recv().await;
        let _ = program.resize(terminal::read_terminal_size()).await;
    }
}
