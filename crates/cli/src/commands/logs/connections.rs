//! `stockade logs ID --net`: the connections of a sandbox, as the journal has them, and those that come while it
//! runs. Ends with the sandbox, or when no reader is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stockade_core::{Error, ErrorCode, JobId, Result, SandboxId};
use stockade_engine::{Event, Filter, Journal, JournalOptions, Record, StateDir};

use super::LOGS_OPERATION;
use crate::args::prefix::by_prefix;
use crate::config::Settings;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::report::connections::describe_connection;
use crate::terminal::printer::{Printer, on_one_line};

/// Poll interval of the journal.
const JOURNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Poll interval of the lease: a sandbox whose owner was killed has no record of its end.
const LEASE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Shows them; answers the exit code.
pub async fn show_connections(
    given: &SandboxId,
    settings: &Settings,
    printer: &Printer,
) -> Result<i32> {
    let state = StateDir::open(settings.state_dir()?)?;
    let journal = Journal::open(&state, JournalOptions::default())?;
    let place = SandboxDirectory::open(settings)?;
    let sandbox = find_sandbox(&journal, given)?.ok_or_else(|| unknown_id_error(given))?;
    // From before the records are read: nothing is missed between the two.
    let mut follower = journal.follow()?;
    let mut shown = ShownConnections::of(sandbox.clone(), printer);
    for record in journal.records(shown.filter.clone())? {
        if !shown.take(&record?) {
            return Ok(0);
        }
    }
    let mut lease_check = Instant::now();
    while !shown.is_over {
        let mut is_running = true;
        if lease_check <= Instant::now() {
            is_running = place.lease(&sandbox)?.is_some_and(|lease| lease.alive);
            lease_check = Instant::now() + LEASE_POLL_INTERVAL;
        }
        let news = follower.news()?;
        match (news.is_empty(), is_running) {
            (true, false) => break,
            (true, true) => tokio::time::sleep(JOURNAL_POLL_INTERVAL).await,
            (false, _) => {}
        }
        if !news.iter().all(|record| shown.take(record)) {
            return Ok(0);
        }
    }
    shown.note_if_none();
    Ok(0)
}

/// What was shown, and what is still to be.
struct ShownConnections<'a> {
    filter: Filter,
    printer: &'a Printer,
    /// The number of the last record that was looked at.
    last: u64,
    any: bool,
    /// Whether the sandbox is gone: it connects to nothing any more.
    is_over: bool,
}

impl<'a> ShownConnections<'a> {
    fn of(sandbox: SandboxId, printer: &'a Printer) -> Self {
        let filter = Filter { sandbox: Some(sandbox), ..Filter::default() };
        Self { filter, printer, last: 0, any: false, is_over: false }
    }

    /// Takes a record in. Says whether anybody still reads.
    fn take(&mut self, record: &Record) -> bool {
        if record.seq <= self.last || !self.filter.admits(record) {
            return true;
        }
        self.last = record.seq;
        self.is_over |= matches!(record.event, Event::Destroyed { .. });
        let Some(line) = describe_connection(&record.event) else { return true };
        self.any = true;
        if self.printer.is_json() {
            return self.printer.stream_json(record);
        }
        let when: String = record.time.to_string().chars().take(19).collect();
        self.printer.stream(&format!("{}  {}\n", when.replace('T', " "), on_one_line(&line)))
    }

    fn note_if_none(&self) {
        if !self.any && !self.printer.is_json() {
            self.printer.note("the sandbox asked for no other host");
        }
    }
}

/// The sandbox with this id, or the only one whose id begins so, or that of a job.
fn find_sandbox(journal: &Journal, given: &SandboxId) -> Result<Option<SandboxId>> {
    let exact = Filter { sandbox: Some(given.clone()), ..Filter::default() };
    if journal.records(exact)?.next().transpose()?.is_some() {
        return Ok(Some(given.clone()));
    }
    let beginning = given.as_str();
    let mut sandboxes: BTreeSet<SandboxId> = BTreeSet::new();
    let mut jobs: BTreeMap<JobId, SandboxId> = BTreeMap::new();
    for record in journal.records(Filter::default())? {
        let event = record?.event;
        let Some(sandbox) = event.sandbox() else { continue };
        if sandbox.as_str().starts_with(beginning) {
            sandboxes.insert(sandbox.clone());
        }
        if let Some(job) = event.job().filter(|job| job.as_str().starts_with(beginning)) {
            jobs.insert(job.clone(), sandbox.clone());
        }
    }
    if let Some(found) = by_prefix("sandboxes", beginning, &sandboxes, LOGS_OPERATION)? {
        return Ok(Some(found.clone()));
    }
    let job = by_prefix("jobs", beginning, jobs.keys(), LOGS_OPERATION)?;
    Ok(job.and_then(|job| jobs.get(job)).cloned())
}

fn unknown_id_error(given: &SandboxId) -> Error {
    let message = format!("no record names a sandbox or job `{given}`");
    Error::new(ErrorCode::NotFound, LOGS_OPERATION, message)
        .remedy("`stockade ps` lists sandboxes, `stockade audit list` jobs")
}
