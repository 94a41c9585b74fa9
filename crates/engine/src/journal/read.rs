//! Reading records back. Nothing is judged here: a reader that must know whether what it reads is
//! what was written verifies first.

use std::collections::BTreeMap;
use std::iter::FusedIterator;

use serde::Serialize;
use stockade_core::{BackendName, Error, JobId, Result, SandboxId, TenantName};
use stockade_fs::Timestamp;

use super::event::Event;
use super::fault::JournalFault;
use super::record::Record;
use super::verify::Damage;
use super::walk::{JournalWalk, LinePlace, LineShape};

pub(super) const READ_OPERATION: &str = "read the journal";

/// Which records: those that name everything given here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this execution.
    pub job: Option<JobId>,
    /// Of this sandbox. A stop names its job only.
    pub sandbox: Option<SandboxId>,
    /// Of this tenant.
    pub tenant: Option<TenantName>,
    /// About this backend.
    pub backend: Option<BackendName>,
    /// Written at this instant or later.
    pub since: Option<Timestamp>,
    /// Written before this instant.
    pub until: Option<Timestamp>,
}

/// Records in the order they were written, as of the instant the iterator was made.
pub struct Records<'a> {
    walk: Option<JournalWalk<'a>>,
    filter: Filter,
    line: Vec<u8>,
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// The record of the decision that let it through; absent where no decision was required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<Record>,
    /// The record of its start.
    pub started: Record,
    /// The record of its end; absent while it runs, and until another engine has found that its own died.
    pub stopped: Option<Record>,
}

/// Executions in the order they ended, then those that have not, in the order they started.
pub struct Jobs<'a> {
    records: Records<'a>,
    filter: Filter,
    /// Decisions whose execution has not started yet.
    decided: BTreeMap<JobId, Record>,
    open: BTreeMap<JobId, OpenJob>,
    left: Option<std::vec::IntoIter<OpenJob>>,
}

/// An execution that has not ended yet.
struct OpenJob {
    decided: Option<Record>,
    started: Record,
}

impl Filter {
    /// Whether a record is one of them.
    pub fn admits(&self, record: &Record) -> bool {
        fn fits<T: PartialEq>(asked: Option<&T>, named: Option<&T>) -> bool {
            asked.is_none() || asked == named
        }
        let event = &record.event;
        fits(self.job.as_ref(), event.job())
            && fits(self.sandbox.as_ref(), event.sandbox())
            && fits(self.tenant.as_ref(), event.tenant())
            && fits(self.backend.as_ref(), event.backend())
            && !self.is_before(record.time)
            && self.until.is_none_or(|until| record.time < until)
    }

    /// Whether an instant lies before all of them.
    pub(super) fn is_before(&self, time: Timestamp) -> bool {
        self.since.is_some_and(|since| time < since)
    }
}

impl<'a> Records<'a> {
    pub(super) fn new(walk: JournalWalk<'a>, filter: Filter) -> Self {
        Self { walk: Some(walk), filter, line: Vec::new() }
    }

    fn advance(&mut self) -> Result<Option<Record>, JournalFault> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        while let Some(place) = walk.next(&mut self.line)? {
            let record = parse_record(walk, place, &self.line)?;
            if self.filter.admits(&record) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

fn parse_record(
    walk: &JournalWalk<'_>,
    place: LinePlace,
    line: &[u8],
) -> Result<Record, JournalFault> {
    let what = match place.shape {
        LineShape::Whole => match serde_json::from_slice(line) {
            Ok(record) => return Ok(record),
            Err(_) => Damage::Malformed,
        },
        LineShape::TooLong => Damage::Malformed,
        LineShape::Torn => Damage::Truncated,
        LineShape::Absent => Damage::Removed,
    };
    Err(walk.damaged(what))
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    /// Ends after the first error.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().map_err(|fault| fault.during(READ_OPERATION)).transpose();
        if !matches!(next, Some(Ok(_))) {
            self.walk = None;
        }
        next
    }
}

impl FusedIterator for Records<'_> {}

impl<'a> Jobs<'a> {
    pub(super) fn new(walk: JournalWalk<'a>, filter: Filter) -> Self {
        let of_job = Filter { job: filter.job.clone(), ..Filter::default() };
        let records = Records::new(walk, of_job);
        Self { records, filter, decided: BTreeMap::new(), open: BTreeMap::new(), left: None }
    }

    /// Takes one record in; an execution that it ends comes out.
    fn take(&mut self, record: Record) -> Option<Job> {
        match &record.event {
            Event::Started { job, .. } => {
                let (job, decided) = (job.clone(), self.decided.remove(job));
                if self.filter.admits(&record) {
                    self.open.insert(job, OpenJob { decided, started: record });
                }
                None
            }
            Event::Stopped { job, .. } | Event::EndUnknown { job, .. } => {
                let OpenJob { decided, started } = self.open.remove(job)?;
                Some(Job { decided, started, stopped: Some(record) })
            }
            Event::Decided { job: Some(job), .. } => {
                // Later ones are about what it is told while it runs.
                if !self.open.contains_key(job) {
                    self.decided.insert(job.clone(), record);
                }
                None
            }
            Event::Created { .. }
            | Event::Prepared { .. }
            | Event::Captured { .. }
            | Event::Restored { .. }
            | Event::Destroyed { .. }
            | Event::Decided { job: None, .. }
            | Event::Refused { .. }
            | Event::WorkspaceAcquired { .. }
            | Event::WorkspaceReleased { .. }
            | Event::Connection { .. }
            | Event::ConnectionsOmitted { .. }
            | Event::SecretRenewal { .. }
            | Event::RulesReplaced { .. }
            | Event::Pruned { .. }
            | Event::Rotated { .. } => None,
        }
    }

    fn unfinished(&mut self) -> Option<Job> {
        let open = &mut self.open;
        let left = self.left.get_or_insert_with(|| {
            let mut left: Vec<OpenJob> = std::mem::take(open).into_values().collect();
            left.sort_by_key(|open| open.started.seq);
            left.into_iter()
        });
        left.next().map(|OpenJob { decided, started }| Job { decided, started, stopped: None })
    }
}

impl Iterator for Jobs<'_> {
    type Item = Result<Job, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(record) = self.records.next() {
            match record.map(|record| self.take(record)) {
                Ok(None) => {}
                Ok(Some(job)) => return Some(Ok(job)),
                Err(error) => return Some(Err(error)),
            }
        }
        self.unfinished().map(Ok)
    }
}
