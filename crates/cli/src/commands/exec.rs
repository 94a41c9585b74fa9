//! `stockade exec`: one more command in a sandbox that lives on.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use stockade_core::{
    Bytes, Command, Ending, Error, ErrorCode, Feature, Limits, Result, SandboxId, SandboxPath,
    Span, Stdin, User,
};

use crate::args::command::CommandArgs;
use crate::args::env;
use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::remote::Remote;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::report::capture::Captured;
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::output::TerminalOutput;
use crate::terminal::printer::Printer;
use crate::terminal::stdio_loop::{
    ProgramEnd, ProgramEvents, attend_program, collect_output, conclude_program, relay_output,
};
use crate::terminal::streams::Attachment;
use crate::terminal::{self, Raw};

const EXEC_OPERATION: &str = "exec";
/// Wall time of a command at a terminal that has no limit: the sandbox's own lifetime ends it all the same.
const TERMINAL_WALL_TIME: Span = Span::secs(365 * 86_400);
/// Timeout for the last events of a program that was cancelled.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(7);

/// What to run, and where.
#[derive(Debug, Args)]
#[command(override_usage = "stockade exec [OPTIONS] ID -- CMD [ARGS]...\n       \
                            stockade exec [OPTIONS] ID --shell LINE")]
pub struct ExecArgs {
    /// The sandbox.
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Run in the background: print the job's id. `stockade logs` shows its output.
    #[arg(short, long)]
    detach: bool,
    /// Timeout, at most the sandbox's. [default: the sandbox's; none with --detach]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Output that is passed on, at most the sandbox's. [default: the sandbox's]
    #[arg(long, value_name = "SIZE")]
    max_output: Option<Bytes>,
    /// Set an environment variable, or pass on yours of that name, over those of the sandbox.
    #[arg(short, long, value_name = "K=V|K")]
    env: Vec<String>,
    /// Set environment variables from a file, one K=V per line.
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Working directory of the command. [default: the sandbox's]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<SandboxPath>,
    /// Run as this numeric user and group.
    #[arg(short, long, value_name = "UID[:GID]")]
    user: Option<User>,
    #[command(flatten)]
    command: CommandArgs,
}

impl ExecArgs {
    fn build_command(&self, fitting: Attachment) -> Result<Command> {
        if self.command.is_empty() {
            return Err(Error::new(ErrorCode::Invalid, EXEC_OPERATION, "no command is given")
                .remedy("use `stockade exec ID -- CMD ARGS`, or --shell LINE"));
        }
        Ok(Command {
            env: env::gather_variables(&self.env_file, &self.env)?,
            dir: self.workdir.clone(),
            user: self.user,
            detached: self.detach,
            wall_time: self.timeout,
            output: self.max_output,
            ..self.command.command(fitting)?
        })
    }
}

/// Runs the command; answers its exit code.
pub async fn exec(args: ExecArgs, printer: &Printer) -> Result<i32> {
    if args.detach {
        let command = args.build_command(Attachment::Nothing)?;
        return exec_detached(&args.id, command, printer).await;
    }
    let mut command = args.build_command(Attachment::of_streams(printer.is_json()))?;
    let connection = connect_supervisor(&args.id, EXEC_OPERATION, printer).await?;
    let done = exec_attached(connection, command.clone(), printer).await;
    match done {
        Err(error) if args.command.can_lose_terminal(&command) && lacks_terminal(&error) => {
            command.terminal = None;
            let connection = connect_supervisor(&args.id, EXEC_OPERATION, printer).await?;
            exec_attached(connection, command, printer).await
        }
        done => done,
    }
}

/// Whether a command was refused, and so not started, because its sandbox has no terminals.
fn lacks_terminal(error: &Error) -> bool {
    let refusals = error.refusals().map(|refusals| refusals.0.as_slice()).unwrap_or_default();
    refusals.iter().any(|refusal| refusal.feature == Some(Feature::Terminal))
}

/// Connects to a sandbox's supervisor.
pub async fn connect_supervisor(
    id: &SandboxId,
    operation: &'static str,
    printer: &Printer,
) -> Result<SupervisorConnection> {
    let settings = Settings::load(None, printer)?;
    SandboxDirectory::open(&settings)?.reach(id, operation).await
}

async fn exec_detached(id: &SandboxId, command: Command, printer: &Printer) -> Result<i32> {
    if command.stdin != Stdin::None {
        let message = "--detach has no input: it excludes -i and -t";
        return Err(
            Error::new(ErrorCode::Invalid, EXEC_OPERATION, message).remedy("leave one of them out")
        );
    }
    let connection = connect_supervisor(id, EXEC_OPERATION, printer).await?;
    let Remote { job, sandbox, .. } = Remote::exec(connection, command, true).await?;
    if printer.is_json() {
        printer.json(&json!({ "sandbox": sandbox, "job": job }));
    } else {
        printer.data(&format!("{job}\n"));
    }
    Ok(0)
}

/// Runs a command and stays with it to its end.
pub async fn exec_attached(
    connection: SupervisorConnection,
    command: Command,
    printer: &Printer,
) -> Result<i32> {
    let command = fit_command(command, printer)?;
    terminal::require_terminal(&command, connection.operation)?;
    let mut interrupts = Interrupts::listen()?;
    let mut remote = Remote::exec(connection, command.clone(), false).await?;
    let raw = command.terminal.map(|_| Raw::enter()).transpose()?;
    if printer.is_json() {
        return exec_captured(remote, &command, interrupts, printer).await;
    }
    let mut output = TerminalOutput::default();
    let relay = relay_output(&mut remote.events, &mut output);
    let end = attend_program(&remote.control, &mut interrupts, &command, relay).await;
    see_off(&mut remote, &end).await;
    drop(raw);
    if matches!(&end, Ok(ProgramEnd::Over(outcome)) if outcome.ending == Ending::Cancelled) {
        printer.note("ended: the sandbox was ended with everything in it");
    }
    conclude_program(end?, output, &mut interrupts, printer).await
}

/// A terminal needs time and a name; one object at the end needs a bound, and has no terminal.
fn fit_command(mut command: Command, printer: &Printer) -> Result<Command> {
    if command.terminal.is_none() {
        if printer.is_json() {
            command.output = command.output.or(Limits::defaults().output);
        }
        return Ok(command);
    }
    if printer.is_json() {
        let message = "--json and -t exclude each other";
        return Err(
            Error::new(ErrorCode::Invalid, EXEC_OPERATION, message).remedy("leave one of them out")
        );
    }
    command.wall_time = command.wall_time.or(Some(TERMINAL_WALL_TIME));
    if let (Ok(name), Ok(kind)) = ("TERM".parse(), std::env::var("TERM")) {
        command.env.entry(name).or_insert(kind);
    }
    Ok(command)
}

async fn exec_captured(
    mut remote: Remote,
    command: &Command,
    mut interrupts: Interrupts,
    printer: &Printer,
) -> Result<i32> {
    let mut captured = Captured::default();
    let collect = collect_output(&mut remote.events, &mut captured);
    let end = attend_program(&remote.control, &mut interrupts, command, collect).await;
    see_off(&mut remote, &end).await;
    let (outcome, code) = match end? {
        ProgramEnd::Over(outcome) => {
            let code = outcome.exit_code();
            (Some(*outcome), code)
        }
        ProgramEnd::Forced(signal) => (None, interrupts::exit_code(signal)),
        ProgramEnd::Unread => (None, 0),
    };
    printer.json(&captured.report_of(&remote, outcome));
    Ok(code)
}

/// A program that did not end by itself is ended, and its end waited for: then nothing of it is left.
async fn see_off(remote: &mut Remote, end: &Result<ProgramEnd>) {
    if matches!(end, Ok(ProgramEnd::Over(_))) {
        return;
    }
    let _ = remote.control.cancel().await;
    let rest = async { while let Ok(Some(_)) = remote.events.next().await {} };
    let _ = tokio::time::timeout(CANCEL_TIMEOUT, rest).await;
}
