//! `stockade run`: one command in a sandbox of its own, of which nothing is left when this returns.

use clap::Args;
use stockade_backends::native::Native;
use stockade_core::{Command, Result};
use stockade_engine::{Execution, Subscription};

use crate::args::SpecArgs;
use crate::attend::{End, attend, collect, conclude, relay};
use crate::capture::{self, Captured};
use crate::command::CommandArgs;
use crate::config::Settings;
use crate::interrupts::{self, Interrupts};
use crate::lasting;
use crate::output::Output;
use crate::printer::Printer;
use crate::registry;
use crate::terminal::{self, Raw};

/// What to run and in what.
#[derive(Debug, Args)]
#[command(override_usage = "stockade run [OPTIONS] -- CMD [ARGS]...\n       \
                            stockade run [OPTIONS] --shell LINE")]
pub struct RunArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Do not wait: print the sandbox's id and the job's, and let the command run on. The sandbox
    /// ends with it.
    #[arg(long, help_heading = "Command")]
    detach: bool,
    #[command(flatten)]
    command: CommandArgs,
}

/// Runs the command; answers its exit code.
pub async fn run(args: RunArgs, native: Native, printer: &Printer) -> Result<i32> {
    let command = args.command.command()?;
    let workspace = args.spec.workspace()?;
    let settings = Settings::load(Some(&workspace), printer)?;
    let mut spec = args.spec.spec(workspace, &settings)?;
    args.command.adjust(&mut spec);
    if printer.is_json() {
        capture::check(&spec, &command)?;
    }
    if args.detach {
        return lasting::create::detached(spec, command, printer).await;
    }
    terminal::require(&command)?;
    let mut interrupts = Interrupts::listen()?;
    let opened = printer.patiently(
        "looking for what earlier commands left",
        registry::engine_with(native, &settings, &spec.backend),
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
        return session.captured(printer).await;
    }
    session.streamed(printer).await
}

/// Runs a program on this terminal in a fresh sandbox; answers its exit code.
pub async fn interactive(spec: SpecArgs, program: Vec<String>, printer: &Printer) -> Result<i32> {
    let command = CommandArgs { interactive: true, terminal: true, shell: None, program };
    run(RunArgs { spec, detach: false, command }, Native::new(), printer).await
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
            attend(&*self.execution, &mut self.interrupts, &self.command, relay).await
        };
        let released = self.execution.close().await;
        drop(self.raw.take());
        let code = conclude(end?, output, &mut self.interrupts, printer).await?;
        released.map(|()| code)
    }

    /// Everything as one JSON object at the end.
    async fn captured(mut self, printer: &Printer) -> Result<i32> {
        let mut captured = Captured::default();
        let end = {
            let collect = collect(&mut self.follower, &mut captured);
            attend(&*self.execution, &mut self.interrupts, &self.command, collect).await
        };
        let released = self.execution.close().await;
        let forced = match end? {
            End::Forced(signal) => Some(interrupts::exit_code(signal)),
            End::Over(_) | End::Unread => None,
        };
        released?;
        let outcome = self.execution.outcome().await;
        let code = forced.unwrap_or_else(|| outcome.exit_code());
        printer.json(&captured.report(&self.execution, outcome));
        Ok(code)
    }
}
