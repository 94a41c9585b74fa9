//! Commands that go on by themselves, for as long as their sandbox lives.

use std::time::Duration;

use serde::Serialize;
use stockade_core::{Ending, LimitKind, Outcome, Signal, StreamId};

use super::exec::{describe_outcome, ended_by, split_ending};
use super::{approve_command, cut};
use crate::approval::{Detail, Facts, Programs};
use crate::arguments::Bash;
use crate::place::{MAX_OUTPUT_WAIT, ToolJob, ToolPlace};
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// How a job is doing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobStatus {
    job_id: String,
    command: String,
    state: &'static str,
    exit_code: Option<i32>,
    /// How it ended: `exit`, `signal`, `limit`, `timeout`, `stopped`, `not-started` or `lost`.
    ended_by: Option<&'static str>,
    timed_out: bool,
    signal: Option<String>,
    limit_exceeded: Option<LimitKind>,
    note: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    dropped_bytes: u64,
    running_ms: u64,
}

/// A piece of what a job wrote.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Logs {
    job_id: String,
    stream: &'static str,
    offset: u64,
    next_offset: u64,
    total_bytes: u64,
    state: &'static str,
    data: String,
}

pub(super) async fn start_job(
    session: &ToolSession,
    place: &ToolPlace,
    args: &Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let (job, mut command, line) = approve_command(session, place, args, call).await?;
    command.detached = true;
    let (execution, job) = place.start(job, command, line).await?;
    execution.detach();
    if let Some(input) = &args.input {
        job.watcher.write_stdin(input.clone().into()).await?;
    }
    ToolAnswer::data(&describe_job(&job))
}

pub(super) async fn report_status(
    job: &ToolJob,
    args: &Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let end = tokio::time::timeout(wait_duration(args), job.ended());
    tokio::select! {
        // Ended or not, its state is told.
        _ = end => {}
        () = call.cancelled.wait() => return Err(ToolError::cancelled()),
    }
    ToolAnswer::data(&describe_job(job))
}

pub(super) async fn read_logs(
    job: &ToolJob,
    args: &Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let stream = StreamId::from(args.stream);
    tokio::select! {
        () = job.grown(stream, args.offset, wait_duration(args)) => {}
        () = call.cancelled.wait() => return Err(ToolError::cancelled()),
    }
    // Before the output: what is said to be over has been read to its end.
    let state = state_name(job.state().outcome.as_ref());
    let most = args.limit.unwrap_or(cut::MAX_STREAM_BYTES).min(1 << 20);
    let piece = job.read(stream, args.offset, most)?;
    let logs = Logs {
        job_id: job.watcher.job().to_string(),
        stream: cut::stream_name(stream),
        offset: piece.next - piece.data.len() as u64,
        next_offset: piece.next,
        total_bytes: piece.total,
        state,
        data: String::from_utf8_lossy(&piece.data).into_owned(),
    };
    ToolAnswer::data(&logs)
}

pub(super) async fn write_job_stdin(
    session: &ToolSession,
    place: &ToolPlace,
    job: &ToolJob,
    args: &Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let input = args.input.clone().unwrap_or_default();
    // What a program does with its input is as open as what a shell does with a line.
    let line = Programs::Opaque(format!("input to: {}", job.line));
    let details = vec![Detail::private("input", &input)];
    let facts = Facts { details, ..place.facts("bash", line, &[]) };
    session.pass(place, Some(job.watcher.job()), facts, call).await?;
    let write = async {
        if !input.is_empty() {
            job.watcher.write_stdin(input.into()).await?;
        }
        if args.close_input {
            job.watcher.close_stdin().await?;
        }
        Ok::<(), ToolError>(())
    };
    tokio::select! {
        written = write => written?,
        () = call.cancelled.wait() => return Err(ToolError::cancelled()),
    }
    ToolAnswer::data(&describe_job(job))
}

pub(super) async fn stop_job(
    job: &ToolJob,
    args: &Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    if let Some(name) = &args.signal {
        let signal = Signal::from_name(name)
            .ok_or_else(|| ToolError::field("signal", format!("`{name}` is no signal")))?;
        job.watcher.signal(signal).await?;
    } else {
        job.watcher.close().await?;
        job.ended().await;
    }
    report_status(job, args, call).await
}

pub(super) fn list_jobs(place: &ToolPlace) -> Result<ToolAnswer, ToolError> {
    let jobs: Vec<_> = place.jobs.all().iter().map(|job| describe_job(job)).collect();
    ToolAnswer::data(&serde_json::json!({ "jobs": jobs }))
}

fn wait_duration(args: &Bash) -> Duration {
    Duration::from_millis(args.wait_ms.unwrap_or(0)).min(MAX_OUTPUT_WAIT)
}

fn state_name(outcome: Option<&Outcome>) -> &'static str {
    if outcome.is_some() { "ended" } else { "running" }
}

fn describe_job(job: &ToolJob) -> JobStatus {
    let now = job.state();
    let outcome = now.outcome.as_ref();
    let (exit_code, signal, limit_exceeded) =
        outcome.map_or((-1, None, None), |outcome| split_ending(&outcome.ending));
    let running = outcome.map(|outcome| outcome.usage.wall_ms);
    let elapsed = u64::try_from(job.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    JobStatus {
        job_id: job.watcher.job().to_string(),
        command: job.line.clone(),
        state: state_name(outcome),
        exit_code: outcome.map(|_| exit_code),
        ended_by: outcome.map(|outcome| ended_by(&outcome.ending)),
        timed_out: outcome.is_some_and(|outcome| outcome.ending == Ending::TimedOut),
        signal,
        limit_exceeded,
        note: outcome.and_then(describe_outcome),
        stdout_bytes: now.kept[0],
        stderr_bytes: now.kept[1],
        dropped_bytes: outcome.map_or(0, |end| end.stdout.dropped + end.stderr.dropped),
        running_ms: running.unwrap_or(elapsed),
    }
}
