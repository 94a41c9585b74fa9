//! Reading records back. Nothing is judged here: a reader that must know whether what it reads is
//! what was written verifies first.

use std::collections::BTreeMap;
use std::iter::FusedIterator;

use serde::Serialize;
use stockade_core::{Error, JobId, Result, SandboxId, TenantName};

use super::event::Event;
use super::fault::Fault;
use super::record::Record;
use super::verify::Damage;
use super::walk::{Place, Shape, Walk};

pub(super) const READ: &str = "read the journal";

/// Which records: those that name everything given here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this execution.
    pub job: Option<JobId>,
    /// Of this sandbox. A stop names its job only.
    pub sandbox: Option<SandboxId>,
    /// Of this tenant.
    pub tenant: Option<TenantName>,
}

/// Records in the order they were written, as of the instant the iterator was made.
pub struct Records<'a> {
    walk: Option<Walk<'a>>,
    filter: Filter,
    line: Vec<u8>,
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// The record of its start.
    pub started: Record,
    /// The record of its end; absent while it runs, and for good if its engine died.
    pub stopped: Option<Record>,
}

/// Executions in the order they ended, then those that have not, in the order they started.
pub struct Jobs<'a> {
    records: Records<'a>,
    filter: Filter,
    open: BTreeMap<JobId, Record>,
    left: Option<std::vec::IntoIter<Record>>,
}

impl Filter {
    fn admits(&self, event: &Event) -> bool {
        fn fits<T: PartialEq>(asked: Option<&T>, named: Option<&T>) -> bool {
            asked.is_none() || asked == named
        }
        fits(self.job.as_ref(), event.job())
            && fits(self.sandbox.as_ref(), event.sandbox())
            && fits(self.tenant.as_ref(), event.tenant())
    }
}

impl<'a> Records<'a> {
    pub(super) fn new(walk: Walk<'a>, filter: Filter) -> Self {
        Self { walk: Some(walk), filter, line: Vec::new() }
    }

    fn advance(&mut self) -> Result<Option<Record>, Fault> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        while let Some(place) = walk.next(&mut self.line)? {
            let record = parse(walk, place, &self.line)?;
            if self.filter.admits(&record.event) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

fn parse(walk: &Walk<'_>, place: Place, line: &[u8]) -> Result<Record, Fault> {
    let what = match place.shape {
        Shape::Whole => match serde_json::from_slice(line) {
            Ok(record) => return Ok(record),
            Err(_) => Damage::Malformed,
        },
        Shape::TooLong => Damage::Malformed,
        Shape::Torn => Damage::Truncated,
        Shape::Absent => Damage::Removed,
    };
    Err(walk.damaged(what))
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    /// Ends after the first error.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().map_err(|fault| fault.during(READ)).transpose();
        if !matches!(next, Some(Ok(_))) {
            self.walk = None;
        }
        next
    }
}

impl FusedIterator for Records<'_> {}

impl<'a> Jobs<'a> {
    pub(super) fn new(walk: Walk<'a>, filter: Filter) -> Self {
        let of_job = Filter { job: filter.job.clone(), ..Filter::default() };
        let records = Records::new(walk, of_job);
        Self { records, filter, open: BTreeMap::new(), left: None }
    }

    /// Takes one record in; an execution that it ends comes out.
    fn take(&mut self, record: Record) -> Option<Job> {
        match &record.event {
            Event::Started { job, .. } => {
                if self.filter.admits(&record.event) {
                    self.open.insert(job.clone(), record);
                }
                None
            }
            Event::Stopped { job, .. } => {
                let started = self.open.remove(job)?;
                Some(Job { started, stopped: Some(record) })
            }
            Event::Created { .. }
            | Event::Destroyed { .. }
            | Event::Refused { .. }
            | Event::WorkspaceAcquired { .. }
            | Event::WorkspaceReleased { .. }
            | Event::Rotated { .. } => None,
        }
    }

    fn unfinished(&mut self) -> Option<Job> {
        let open = &mut self.open;
        let left = self.left.get_or_insert_with(|| {
            let mut records: Vec<Record> = std::mem::take(open).into_values().collect();
            records.sort_by_key(|record| record.seq);
            records.into_iter()
        });
        left.next().map(|started| Job { started, stopped: None })
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
