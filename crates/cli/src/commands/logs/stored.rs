//! The output of a program that has ended, as its log keeps it and its record tells how it ended.

use stockade_core::{BackendName, Boundary, Error, ErrorCode, JobId, Outcome, Result, SandboxId};
use stockade_engine::{
    Event, Filter, Job, Journal, JournalOptions, OutputEvent, OutputLogBounds, OutputLogReader,
    OutputLogs, StateDir,
};

use crate::args::prefix::by_prefix;
use crate::config::Settings;
use crate::terminal::stdio_loop::ProgramEvents;

const LOGS_OPERATION: &str = "logs";

/// A program that has ended.
pub struct Stored {
    /// Its record.
    pub job: JobId,
    /// The sandbox it ran in.
    pub sandbox: SandboxId,
    /// Who built its walls, and what they were.
    pub walls: (BackendName, Boundary),
    /// What is not known about its end.
    pub unknown: Option<&'static str>,
    /// What it wrote.
    pub events: StoredEvents,
}

/// What it wrote, and how it ended.
pub struct StoredEvents {
    reader: Option<OutputLogReader>,
    outcome: Option<Outcome>,
    /// How many bytes were read or are known to be missing.
    position: u64,
}

impl Stored {
    /// Finds a program by its sandbox and perhaps its job, or by its job alone; the newest that fits.
    pub fn find(settings: &Settings, id: &SandboxId, job: Option<&JobId>) -> Result<Option<Self>> {
        let state = StateDir::open(settings.state_dir()?)?;
        let journal = Journal::open(&state, JournalOptions::default())?;
        let Some(found) = look_up_job(&journal, id, job)? else { return Ok(None) };
        let logs = OutputLogs::open(&state, OutputLogBounds::default())?;
        Self::open(found, &logs)
    }

    fn open(found: Job, logs: &OutputLogs) -> Result<Option<Self>> {
        let Event::Started { job, sandbox, backend, boundary, .. } = found.started.event else {
            return Ok(None);
        };
        let reader = logs.read(&job)?;
        let (outcome, unknown) = match found.stopped.map(|record| record.event) {
            Some(Event::Stopped { outcome, log, .. }) => {
                check_output_kept(&job, &outcome, log.is_some(), reader.is_some())?;
                (Some(outcome), None)
            }
            Some(_) => (None, Some("it ended at an unknown time: its engine died before it")),
            None => (None, Some("how it ended is not known yet")),
        };
        let events = StoredEvents { reader, outcome, position: 0 };
        Ok(Some(Self { job, sandbox, walls: (backend, boundary), unknown, events }))
    }
}

/// Refuses output that is not there, unless there was none.
fn check_output_kept(job: &JobId, outcome: &Outcome, was_kept: bool, is_kept: bool) -> Result<()> {
    let silent = written_output_bytes(outcome) == 0;
    let (message, remedy) = match (was_kept, is_kept) {
        _ if silent || is_kept => return Ok(()),
        (true, _) => (
            format!("the output of job `{job}` is no longer kept"),
            "logs are kept for seven days, and up to 1 GiB of all",
        ),
        (false, _) => (
            format!("the output of job `{job}` was not kept"),
            "only output of `run --detach`, and of `exec` without a terminal, is",
        ),
    };
    Err(Error::new(ErrorCode::NotFound, LOGS_OPERATION, message).remedy(remedy))
}

fn written_output_bytes(outcome: &Outcome) -> u64 {
    outcome.stdout.bytes.saturating_add(outcome.stderr.bytes)
}

fn look_up_job(journal: &Journal, id: &SandboxId, job: Option<&JobId>) -> Result<Option<Job>> {
    let exact = Filter { sandbox: Some(id.clone()), job: job.cloned(), ..Filter::default() };
    match (pick_newest_job(journal.jobs(exact)?)?, job, id.as_str().parse()) {
        (Some(found), ..) => return Ok(Some(found)),
        (None, None, Ok(id)) => {
            if let Some(found) = journal.job(&id)? {
                return Ok(Some(found));
            }
        }
        (None, ..) => {}
    }
    by_beginning(journal, id.as_str(), job.map(JobId::as_str))
}

/// The newest job of the sandbox whose id begins so, or else the job whose own does.
fn by_beginning(journal: &Journal, id: &str, job: Option<&str>) -> Result<Option<Job>> {
    let all: Vec<Job> = journal.jobs(Filter::default())?.collect::<Result<_>>()?;
    let sandboxes = || all.iter().filter_map(|job| job.started.event.sandbox());
    let jobs = |all: &[Job]| -> Vec<JobId> {
        all.iter().filter_map(|job| job.started.event.job().cloned()).collect()
    };
    let Some(sandbox) = by_prefix("sandboxes", id, sandboxes(), LOGS_OPERATION)?.cloned() else {
        if job.is_some() {
            return Ok(None);
        }
        let meant = by_prefix("jobs", id, jobs(&all), LOGS_OPERATION)?;
        return Ok(all.into_iter().find(|job| job.started.event.job() == meant.as_ref()));
    };
    let mut inside = all;
    inside.retain(|job| job.started.event.sandbox() == Some(&sandbox));
    if let Some(given) = job {
        let meant = by_prefix("jobs", given, jobs(&inside), LOGS_OPERATION)?;
        inside.retain(|job| job.started.event.job() == meant.as_ref());
    }
    pick_newest_job(inside.into_iter().map(Ok))
}

fn pick_newest_job(jobs: impl Iterator<Item = Result<Job>>) -> Result<Option<Job>> {
    let mut newest: Option<Job> = None;
    for found in jobs {
        let found = found?;
        if newest.as_ref().is_none_or(|newest| newest.started.seq < found.started.seq) {
            newest = Some(found);
        }
    }
    Ok(newest)
}

impl ProgramEvents for StoredEvents {
    async fn next(&mut self) -> Result<Option<OutputEvent>> {
        if let Some(reader) = &mut self.reader {
            if let Some(event) = reader.next_event()? {
                return Ok(Some(event));
            }
            self.position = reader.position();
            self.reader = None;
        }
        let total = self.outcome.as_ref().map_or(0, written_output_bytes);
        let missing = total.saturating_sub(self.position);
        if missing > 0 {
            // The log could not be written to its end.
            self.position = total;
            return Ok(Some(OutputEvent::Gap { events: 0, bytes: missing }));
        }
        Ok(self.outcome.take().map(OutputEvent::End))
    }
}
