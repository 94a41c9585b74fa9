//! `stockade run`: one command in a sandbox of its own, of which nothing is left when this returns.

use std::convert::Infallible;

use clap::Args;
use stockade_core::{Command, Outcome, Result, SandboxSpec, Signal, Stdin};
use stockade_engine::{Choice, Engine, Execution, OutputEvent, Subscription};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::SpecArgs;
use crate::capture::{self, Captured};
use crate::command::CommandArgs;
use crate::config::Settings;
use crate::input;
use crate::interrupts::{self, Interrupts};
use crate::output::{Output, Stop};
use crate::printer::Printer;
use crate::reasons::reasons;
use crate::registry;
use crate::terminal::{self, Raw};

/// What a command that writes to a closed pipe ends with everywhere.
const CLOSED_PIPE: i32 = 128 + 13;

/// What to run and in what.
#[derive(Debug, Args)]
#[command(override_usage = "stockade run [OPTIONS] -- CMD [ARGS]...\n       \
                            stockade run [OPTIONS] --shell LINE")]
pub struct RunArgs {
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    command: CommandArgs,
}

/// How it came to an end.
enum End {
    /// By itself, or by a limit.
    Over(Outcome),
    /// The caller would not wait any longer.
    Forced(Signal),
    /// Nobody reads the output any more.
    Unread,
}

/// Runs the command; answers its exit code.
pub async fn run(args: RunArgs, printer: &Printer) -> Result<i32> {
    let command = args.command.command()?;
    let workspace = args.spec.workspace()?;
    let settings = Settings::load(Some(&workspace), printer)?;
    let mut spec = args.spec.spec(workspace, &settings)?;
    args.command.adjust(&mut spec);
    if printer.is_json() {
        capture::check(&spec, &command)?;
    }
    terminal::require(&command)?;
    let mut interrupts = Interrupts::listen()?;
    let opened = printer.patiently(
        "looking for what earlier commands left",
        registry::engine(&settings, &spec.backend),
    );
    let engine = match interrupts.unless(opened).await {
        Ok(engine) => engine?,
        Err(signal) => return Ok(interrupts::exit_code(signal)),
    };
    let raw = command.terminal.map(|_| Raw::enter()).transpose()?;
    let starting = printer
        .patiently("building the sandbox", engine.run_followed(spec.clone(), command.clone()));
    let (execution, follower) = match interrupts.unless(starting).await {
        Ok(started) => started?,
        Err(signal) => {
            engine.close().await?;
            return Ok(interrupts::exit_code(signal));
        }
    };
    let session = Session { execution, follower, interrupts, command, raw };
    if printer.is_json() {
        return session.captured(&engine, &spec, printer).await;
    }
    session.streamed(printer).await
}

struct Session {
    execution: Execution,
    follower: Subscription,
    interrupts: Interrupts,
    command: Command,
    raw: Option<Raw>,
}

impl Session {
    /// Output as it comes, and the reasons at the end.
    async fn streamed(mut self, printer: &Printer) -> Result<i32> {
        let mut output = Output::default();
        let end = {
            let follower = &mut self.follower;
            let relay = relay(follower, &mut output);
            attend(&self.execution, &mut self.interrupts, &self.command, relay).await
        };
        let released = self.execution.close().await;
        drop(self.raw.take());
        let code = self.conclude(end?, output, printer).await?;
        released.map(|()| code)
    }

    async fn conclude(&mut self, end: End, mut output: Output, printer: &Printer) -> Result<i32> {
        match end {
            End::Forced(signal) => Ok(interrupts::exit_code(signal)),
            End::Unread => Ok(CLOSED_PIPE),
            End::Over(outcome) => {
                let written = tokio::select! {
                    written = output.finish() => written,
                    signal = self.interrupts.next() => return Ok(interrupts::exit_code(signal)),
                };
                match written {
                    Ok(()) => {}
                    Err(Stop::Closed) => return Ok(CLOSED_PIPE),
                    Err(Stop::Failed(error)) => return Err(error),
                }
                reasons(&outcome).iter().for_each(|reason| printer.note(reason));
                Ok(outcome.exit_code())
            }
        }
    }

    /// Everything as one JSON object at the end.
    async fn captured(
        mut self,
        engine: &Engine,
        spec: &SandboxSpec,
        printer: &Printer,
    ) -> Result<i32> {
        let mut captured = Captured::default();
        let end = {
            let collect = collect(&mut self.follower, &mut captured);
            attend(&self.execution, &mut self.interrupts, &self.command, collect).await
        };
        let released = self.execution.close().await;
        let forced = match end? {
            End::Forced(signal) => Some(interrupts::exit_code(signal)),
            End::Over(_) | End::Unread => None,
        };
        released?;
        let outcome = self.execution.outcome().await;
        let choice = taken(engine, spec).await;
        let code = forced.unwrap_or_else(|| outcome.exit_code());
        printer.json(&captured.report(&self.execution, choice, outcome));
        Ok(code)
    }
}

/// Sees the program through while its output is looked after.
async fn attend(
    execution: &Execution,
    interrupts: &mut Interrupts,
    command: &Command,
    output: impl Future<Output = Result<End>>,
) -> Result<End> {
    tokio::select! {
        end = output => end,
        signal = interrupts.conduct(execution) => Ok(End::Forced(signal)),
        never = feed(execution, command) => match never? {},
        never = follow_size(execution, command) => match never? {},
    }
}

async fn relay(follower: &mut Subscription, output: &mut Output) -> Result<End> {
    while let Some(event) = follower.next().await {
        match event {
            OutputEvent::Output { stream, data, .. } => match output.write(stream, data).await {
                Ok(()) => {}
                Err(Stop::Closed) => return Ok(End::Unread),
                Err(Stop::Failed(error)) => return Err(error),
            },
            // A follower is waited for, so only a program that is being ended leaves gaps.
            OutputEvent::Gap { .. } => {}
            OutputEvent::End(outcome) => return Ok(End::Over(outcome)),
        }
    }
    std::future::pending().await
}

async fn collect(follower: &mut Subscription, captured: &mut Captured) -> Result<End> {
    while let Some(event) = follower.next().await {
        match event {
            OutputEvent::Output { stream, data, .. } => captured.take(stream, &data),
            OutputEvent::Gap { .. } => {}
            OutputEvent::End(outcome) => return Ok(End::Over(outcome)),
        }
    }
    std::future::pending().await
}

async fn feed(execution: &Execution, command: &Command) -> Result<Infallible> {
    match command.stdin {
        Stdin::Stream => input::feed(execution).await,
        Stdin::None | Stdin::Bytes(_) => std::future::pending().await,
    }
}

async fn follow_size(execution: &Execution, command: &Command) -> Result<Infallible> {
    if command.terminal.is_none() {
        return std::future::pending().await;
    }
    let Ok(mut changes) = signal(SignalKind::window_change()) else {
        return std::future::pending().await;
    };
    loop {
        changes.recv().await;
        let _ = execution.resize(terminal::size()).await;
    }
}

/// The backend and boundary that the spec was given.
async fn taken(engine: &Engine, spec: &SandboxSpec) -> Option<Choice> {
    engine.explain(spec).await.choices.into_iter().find(|choice| choice.taken)
}
