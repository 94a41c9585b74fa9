//! What happens from now on: jobs as they end, or every record as it is written. Ends when no reader is left.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use stockade_core::{EgressRule, JobId, Result};
use stockade_engine::{Event, Job, Journal, Record};

use super::select::SelectArgs;
use super::{describe_result, format_command_line, to_the_second};
use crate::report::connections::describe_connection;
use crate::terminal::printer::{Printer, on_one_line};

/// Poll interval of the journal.
const JOURNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Prints jobs as they end.
pub fn follow_jobs(journal: &Journal, select: &SelectArgs, printer: &Printer) -> Result<i32> {
    let mut started = BTreeMap::new();
    follow_records(journal, |record| {
        let Some(job) = find_ended_job(journal, &mut started, record)? else { return Ok(true) };
        if !select.filter().admits(&job.started) || !select.admits(&job) {
            return Ok(true);
        }
        Ok(if printer.is_json() {
            printer.stream_json(&job)
        } else {
            printer.stream(&format_job_line(&job, printer))
        })
    })
}

/// The job that a record ends.
fn find_ended_job(
    journal: &Journal,
    started: &mut BTreeMap<JobId, Record>,
    record: Record,
) -> Result<Option<Job>> {
    let Some(id) = record.event.job().cloned() else { return Ok(None) };
    if matches!(record.event, Event::Started { .. }) {
        started.insert(id, record);
        return Ok(None);
    }
    if !record.event.is_end() {
        return Ok(None);
    }
    match started.remove(&id) {
        Some(begun) => Ok(Some(Job { decided: None, started: begun, stopped: Some(record) })),
        // It began before anybody followed.
        None => journal.job(&id),
    }
}

fn format_job_line(job: &Job, printer: &Printer) -> String {
    let Event::Started { job: id, command, .. } = &job.started.event else { return String::new() };
    let (tone, how) = describe_result(job);
    let when = job.stopped.as_ref().map(|record| to_the_second(record.time)).unwrap_or_default();
    format!(
        "{when}  {id}  {}  {}\n",
        printer.tone(tone, &how),
        on_one_line(&format_command_line(command))
    )
}

/// Prints every record.
pub fn print_records(journal: &Journal, printer: &Printer) -> Result<i32> {
    follow_records(journal, |record| {
        Ok(if printer.is_json() {
            printer.stream_json(&record)
        } else {
            printer.stream(&format_record(&record))
        })
    })
}

fn format_record(record: &Record) -> String {
    let event = serde_json::to_value(&record.event).unwrap_or_default();
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let subject = ["job", "sandbox", "workspace", "tenant"].map(text);
    let subject = subject.iter().find(|text| !text.is_empty()).map_or("", String::as_str);
    let detail = match &record.event {
        Event::Started { command, .. } => format_command_line(command),
        Event::Stopped { outcome, .. } => super::describe_ending(&outcome.ending),
        Event::Refused { refusals, .. } => refusals.join("; "),
        Event::Created { backend, .. } | Event::Prepared { backend, .. } => backend.to_string(),
        Event::Decided { tool, allowed, .. } => {
            format!("{tool} {}", if *allowed { "allowed" } else { "denied" })
        }
        Event::WorkspaceAcquired { root, .. } => root.clone(),
        Event::Captured { snapshot, .. } | Event::Restored { snapshot, .. } => snapshot.to_string(),
        Event::Destroyed { detail, .. } => detail.clone().unwrap_or_default(),
        Event::Connection { .. } | Event::ConnectionsOmitted { .. } => {
            describe_connection(&record.event).unwrap_or_default()
        }
        Event::RulesReplaced { old, new, .. } => {
            format!("{} instead of {}", join_rules(new), join_rules(old))
        }
        Event::SecretRenewal { secret, cause, failure, .. } => match failure {
            None => format!("{secret} was asked for again {cause}"),
            Some(failure) => format!("{secret} was asked for again {cause}, in vain: {failure}"),
        },
        Event::EndUnknown { .. }
        | Event::WorkspaceReleased { .. }
        | Event::Pruned { .. }
        | Event::Rotated { .. } => String::new(),
    };
    let (when, kind) = (to_the_second(record.time), text("kind"));
    format!("{when}  {kind:<17}  {subject}  {}\n", on_one_line(&detail))
}

fn join_rules(rules: &[EgressRule]) -> String {
    rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Hands on what is recorded from now on, until told to stop.
fn follow_records(journal: &Journal, mut take: impl FnMut(Record) -> Result<bool>) -> Result<i32> {
    let mut follower = journal.follow()?;
    loop {
        let news = follower.news()?;
        let quiet = news.is_empty();
        for record in news {
            if !take(record)? {
                return Ok(0);
            }
        }
        if quiet {
            sleep(JOURNAL_POLL_INTERVAL);
        }
    }
}
