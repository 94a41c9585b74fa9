//! A command that is waited for.

use std::time::Duration;

use serde::Serialize;
use stockade_core::{
    DeniedHost, Ending, LimitKind, NO_NETWORK_HINT, Outcome, StartFailure, StreamId,
    describe_denied_hosts, describe_observed_rules,
};

use super::{approve_command, cut};
use crate::arguments::Bash;
use crate::place::{ToolJob, ToolPlace};
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// Interval between progress notifications of a command that takes long.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// The answer: always all of these.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Executed {
    command: String,
    working_directory: String,
    execution_environment: &'static str,
    sandbox_session_id: Option<String>,
    sandbox_provider_id: Option<String>,
    stdout: String,
    stderr: String,
    exit_code: i32,
    ended_by: &'static str,
    timed_out: bool,
    truncated: bool,
    signal: Option<String>,
    limit_exceeded: Option<LimitKind>,
    network_denied: Vec<DeniedHost>,
    duration_ms: u64,
    job_id: String,
}

pub(super) async fn run_command(
    session: &ToolSession,
    place: &ToolPlace,
    args: &Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let (job, command, line) = approve_command(session, place, args, call).await?;
    let _asked = session.options.hosts.register(&place.id, &call.ask);
    // The handle stays here: if this future is dropped, the command is killed with it (C-15).
    let (execution, job) = place.start(job, command, line).await?;
    let outcome = tokio::select! {
        outcome = job.ended() => outcome,
        () = call.cancelled.wait() => {
            let _ = execution.close().await;
            return Err(ToolError::cancelled());
        }
        () = report_progress(&job, call) => job.ended().await,
    };
    build_answer(place, args, &job, &outcome)
}

/// Tells now and then how it goes, for as long as it is waited for.
async fn report_progress(job: &ToolJob, call: &Call) {
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let line = cut::last_line(&job.state().newest);
        call.progress.say(format!("{} s: {line}", job.started.elapsed().as_secs())).await;
    }
}

fn build_answer(
    place: &ToolPlace,
    args: &Bash,
    job: &ToolJob,
    outcome: &Outcome,
) -> Result<ToolAnswer, ToolError> {
    let (stdout, stdout_cut) = cut::cut_output(job, StreamId::Stdout)?;
    let (mut stderr, stderr_cut) = cut::cut_output(job, StreamId::Stderr)?;
    let (exit_code, signal, limit_exceeded) = split_ending(&outcome.ending);
    if let Some(note) = describe_outcome(outcome) {
        let is_open_line = !stderr.is_empty() && !stderr.ends_with('\n');
        stderr.push_str(if is_open_line { "\n" } else { "" });
        stderr.push_str(&note);
    }
    let executed = Executed {
        command: job.line.clone(),
        working_directory: place.directory(args.working_directory.as_ref()),
        execution_environment: if place.local { "local" } else { "sandbox" },
        sandbox_session_id: (!place.local).then(|| place.id.to_string()),
        sandbox_provider_id: (!place.local).then(|| place.backend.to_string()),
        stdout,
        stderr,
        exit_code,
        ended_by: ended_by(&outcome.ending),
        timed_out: outcome.ending == Ending::TimedOut,
        truncated: stdout_cut || stderr_cut || outcome.truncated(),
        signal,
        limit_exceeded,
        network_denied: outcome.network_denied.clone(),
        duration_ms: outcome.usage.wall_ms,
        job_id: job.watcher.job().to_string(),
    };
    ToolAnswer::data(&executed)
}

/// Exit code, signal and limit, each from the mechanism (C-16).
pub(super) fn split_ending(ending: &Ending) -> (i32, Option<String>, Option<LimitKind>) {
    match ending {
        Ending::Exited(code) => (*code, None, None),
        Ending::Signalled(signal) => (-1, Some(signal.name()), None),
        Ending::LimitExceeded(limit) => (-1, None, Some(*limit)),
        Ending::StartFailed(_)
        | Ending::TimedOut
        | Ending::Cancelled
        | Ending::Killed
        | Ending::Refused(_)
        | Ending::Lost(_) => (-1, None, None),
    }
}

/// Notice in the output of a command that was stopped.
const STOPPED_NOTICE: &str =
    "stockade: the command was stopped, and every process of it was killed\n";

/// Notice in the output of a command whose sandbox was ended.
const KILLED_NOTICE: &str =
    "stockade: the sandbox was ended with the command in it, by another process\n";

/// How it ended, in one word.
pub(super) const fn ended_by(ending: &Ending) -> &'static str {
    match ending {
        Ending::Exited(_) => "exit",
        Ending::Signalled(_) => "signal",
        Ending::LimitExceeded(_) => "limit",
        Ending::TimedOut => "timeout",
        Ending::Cancelled => "stopped",
        Ending::Killed => "killed",
        Ending::Refused(_) => "refused",
        Ending::StartFailed(_) => "not-started",
        Ending::Lost(_) => "lost",
    }
}

/// What a program could not say itself: that it never ran, was stopped or was lost, which hosts it was denied, and
/// which rules would have been enough for it.
pub(super) fn describe_outcome(outcome: &Outcome) -> Option<String> {
    let denied = describe_denied_hosts(&outcome.network_denied);
    let observed = outcome.network_observed.as_deref().map(describe_observed_rules);
    let closed = outcome.network_unreachable.then(|| NO_NETWORK_HINT.to_owned());
    let network = denied.into_iter().chain(closed).chain(observed);
    let network = network.map(|sentence| format!("stockade: {sentence}\n"));
    let notes: String = describe_ending(&outcome.ending).into_iter().chain(network).collect();
    (!notes.is_empty()).then_some(notes)
}

fn describe_ending(ending: &Ending) -> Option<String> {
    match ending {
        Ending::StartFailed(failure) => Some(start_failure(failure)),
        Ending::Lost(reason) => Some(format!("stockade: the command was lost: {reason}\n")),
        Ending::Cancelled => Some(STOPPED_NOTICE.to_owned()),
        Ending::Killed => Some(KILLED_NOTICE.to_owned()),
        Ending::Refused(reason) => Some(format!("stockade: the command was refused: {reason}\n")),
        Ending::Exited(_) | Ending::Signalled(_) | Ending::LimitExceeded(_) | Ending::TimedOut => {
            None
        }
    }
}

fn start_failure(failure: &StartFailure) -> String {
    format!("stockade: the command was not started: {}\n", failure.detail())
}

#[cfg(test)]
mod tests {
    use stockade_core::{StreamReport, Usage};

    use super::*;

    #[test]
    fn what_the_network_denied_is_one_sentence_with_the_flag() {
        let denied = DeniedHost {
            host: "nothere.example".into(),
            port: Some(443),
            request: None,
            allow_with: Some("nothere.example".into()),
            reason: "no rule".into(),
        };
        let mut outcome = Outcome {
            ending: Ending::Exited(6),
            stdout: StreamReport::default(),
            stderr: StreamReport::default(),
            usage: Usage::default(),
            limits: Vec::new(),
            limits_reached: Vec::new(),
            network_denied: Vec::new(),
            network_unreachable: false,
            network_observed: None,
        };
        assert_eq!(describe_outcome(&outcome), None);
        outcome.network_denied.push(denied);
        let told = "the network denied nothere.example:443 (allow with --net nothere.example)";
        assert_eq!(describe_outcome(&outcome), Some(format!("stockade: {told}\n")));
        outcome.ending = Ending::Cancelled;
        let both = format!("{STOPPED_NOTICE}stockade: {told}\n");
        assert_eq!(describe_outcome(&outcome), Some(both));
    }
}
