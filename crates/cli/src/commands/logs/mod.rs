//! `stockade logs`: what a command in a sandbox has written, while it runs and after its end; or what the sandbox has
//! connected to.

mod connections;
mod stored;

use clap::Args;
use stockade_core::{Error, ErrorCode, JobId, Outcome, Result, SandboxId};
use stockade_engine::OutputEvent;

use crate::config::Settings;
use crate::daemon::remote::Remote;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::report::capture::{CaptureReport, Captured};
use crate::report::reasons::describe_outcome;
use crate::terminal::output::{OutputStop, TerminalOutput};
use crate::terminal::printer::Printer;
use crate::terminal::stdio_loop::{CLOSED_PIPE, ProgramEvents};
use stored::Stored;

const LOGS_OPERATION: &str = "logs";
/// Most output that one object holds.
const MAX_HELD_BYTES: usize = 64 << 20;

/// Whose output to show.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The sandbox, or a job that has ended; the beginning of an id is enough.
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Wait for more until the command ends.
    #[arg(short, long)]
    follow: bool,
    /// The job, as printed by `exec --detach`. [default: the newest]
    #[arg(long, value_name = "JOB")]
    job: Option<JobId>,
    /// Show the sandbox's connections to other hosts instead, and further ones for as long as it runs.
    #[arg(long, conflicts_with = "job")]
    net: bool,
}

/// Shows it: standard output and error, each where it belongs.
pub async fn logs(args: &LogsArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    if args.net {
        return connections::show_connections(&args.id, &settings, printer).await;
    }
    match open_live(args, &settings).await {
        Ok(mut remote) => {
            if !printer.is_json() {
                return stream_logs(&mut remote.events, printer).await;
            }
            let held = collect_output(&mut remote.events).await?;
            show_collected(held, |captured, outcome| captured.report_of(&remote, outcome), printer);
            Ok(0)
        }
        Err(error) if is_over(&error) => show_stored_logs(args, &settings, error, printer).await,
        Err(error) => Err(error),
    }
}

async fn open_live(args: &LogsArgs, settings: &Settings) -> Result<Remote> {
    let connection = SandboxDirectory::open(settings)?.reach(&args.id, LOGS_OPERATION).await?;
    Remote::logs(connection, args.job.clone(), args.follow).await
}

/// Whether a supervisor does not have it, or is gone.
fn is_over(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::NotFound | ErrorCode::Gone)
}

async fn show_stored_logs(
    args: &LogsArgs,
    settings: &Settings,
    error: Error,
    printer: &Printer,
) -> Result<i32> {
    let Some(mut stored) = Stored::find(settings, &args.id, args.job.as_ref())? else {
        return Err(error);
    };
    if printer.is_json() {
        let held = collect_output(&mut stored.events).await?;
        let Stored { job, sandbox, walls, .. } = stored;
        show_collected(
            held,
            |captured, outcome| captured.about(job, &sandbox, walls, outcome),
            printer,
        );
        return Ok(0);
    }
    let code = stream_logs(&mut stored.events, printer).await?;
    stored.unknown.iter().for_each(|unknown| printer.note(unknown));
    Ok(code)
}

async fn stream_logs(events: &mut impl ProgramEvents, printer: &Printer) -> Result<i32> {
    let mut output = TerminalOutput::default();
    match relay_output(events, &mut output, printer).await {
        Ok(outcome) => {
            let outcome = outcome?;
            outcome.iter().flat_map(describe_outcome).for_each(|reason| printer.note(&reason));
            Ok(0)
        }
        Err(OutputStop::Closed) => Ok(CLOSED_PIPE),
        Err(OutputStop::Failed(error)) => Err(error),
    }
}

async fn relay_output(
    events: &mut impl ProgramEvents,
    output: &mut TerminalOutput,
    printer: &Printer,
) -> Result<Result<Option<Outcome>>, OutputStop> {
    let mut last = Ok(None);
    loop {
        match events.next().await {
            Ok(Some(OutputEvent::Output { stream, data, .. })) => {
                output.write(stream, data).await?;
            }
            Ok(Some(OutputEvent::Gap { bytes, .. })) => {
                printer.note(&format!("{bytes} bytes before this are no longer there"));
            }
            Ok(Some(OutputEvent::End(outcome))) => last = Ok(Some(outcome)),
            Ok(None) => break,
            Err(error) => {
                last = Err(error);
                break;
            }
        }
    }
    output.finish().await?;
    Ok(last)
}

/// Output that is held for one object, and what is missing.
#[derive(Default)]
struct HeldOutput {
    captured: Captured,
    bytes: usize,
    missing: u64,
    outcome: Option<Outcome>,
}

async fn collect_output(events: &mut impl ProgramEvents) -> Result<HeldOutput> {
    let mut held = HeldOutput::default();
    while let Some(event) = events.next().await? {
        match event {
            OutputEvent::Output { data, .. } if held.bytes + data.len() > MAX_HELD_BYTES => {
                held.missing += data.len() as u64;
            }
            OutputEvent::Output { stream, data, .. } => {
                held.bytes += data.len();
                held.captured.take(stream, &data);
            }
            OutputEvent::Gap { bytes, .. } => held.missing += bytes,
            OutputEvent::End(end) => held.outcome = Some(end),
        }
    }
    Ok(held)
}

fn show_collected(
    held: HeldOutput,
    report: impl FnOnce(Captured, Option<Outcome>) -> CaptureReport,
    printer: &Printer,
) {
    let mut report = report(held.captured, held.outcome);
    report.missing_bytes = Some(held.missing);
    printer.json(&report);
}
