//! `stockade logs`: what a command in a sandbox has written, as long as the sandbox lives.

use clap::Args;
use stockade_core::{JobId, Outcome, Result, SandboxId};
use stockade_engine::OutputEvent;

use super::exec::open;
use super::remote::Remote;
use crate::attend::{CLOSED_PIPE, Events};
use crate::capture::Captured;
use crate::output::{Output, Stop};
use crate::printer::Printer;
use crate::reasons::reasons;

/// Most output that one object holds.
const MOST_HELD: usize = 64 << 20;

/// Whose output to show.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The sandbox.
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Wait for more until the command ends.
    #[arg(short, long)]
    follow: bool,
    /// The job, as `exec --detach` printed it; the newest unless told otherwise.
    #[arg(long, value_name = "JOB")]
    job: Option<JobId>,
}

/// Shows it: standard output and error, each where it belongs.
pub async fn logs(args: &LogsArgs, printer: &Printer) -> Result<i32> {
    let connection = open(&args.id, "logs", printer).await?;
    let remote = Remote::logs(connection, args.job.clone(), args.follow).await?;
    if printer.is_json() {
        return captured(remote, &args.id, printer).await;
    }
    let mut output = Output::default();
    match streamed(remote, &mut output, printer).await {
        Ok(outcome) => {
            let outcome = outcome?;
            outcome.iter().flat_map(reasons).for_each(|reason| printer.note(&reason));
            Ok(0)
        }
        Err(Stop::Closed) => Ok(CLOSED_PIPE),
        Err(Stop::Failed(error)) => Err(error),
    }
}

async fn streamed(
    mut remote: Remote,
    output: &mut Output,
    printer: &Printer,
) -> Result<Result<Option<Outcome>>, Stop> {
    let mut last = Ok(None);
    loop {
        match remote.events.next().await {
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

async fn captured(mut remote: Remote, id: &SandboxId, printer: &Printer) -> Result<i32> {
    let (mut captured, mut held, mut missing, mut outcome) = (Captured::default(), 0, 0, None);
    while let Some(event) = remote.events.next().await? {
        match event {
            OutputEvent::Output { data, .. } if held + data.len() > MOST_HELD => {
                missing += data.len() as u64;
            }
            OutputEvent::Output { stream, data, .. } => {
                held += data.len();
                captured.take(stream, &data);
            }
            OutputEvent::Gap { bytes, .. } => missing += bytes,
            OutputEvent::End(end) => outcome = Some(end),
        }
    }
    let mut report = captured.report_of(&remote, id, outcome);
    report.missing_bytes = Some(missing);
    printer.json(&report);
    Ok(0)
}
