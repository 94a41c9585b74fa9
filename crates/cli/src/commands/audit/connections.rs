//! The connections to other hosts that were made while a job ran.

use serde::Serialize;
use stockade_core::Result;
use stockade_engine::{Event, Filter, Job, Journal, Record};

use crate::report::connections::describe_connection;

/// The most connections of one job that are shown.
const MAX_SHOWN_CONNECTIONS: usize = 50;

/// A job with its connections.
#[derive(Debug, Serialize)]
pub struct ShownJob {
    /// Its records.
    #[serde(flatten)]
    pub job: Job,
    /// What was connected to while it ran.
    #[serde(flatten)]
    pub connections: JobConnections,
}

/// The connections of a job's sandbox that began while it ran.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobConnections {
    connections: Vec<Record>,
    connections_omitted: u64,
}

impl JobConnections {
    /// Looks them up. Records are written when connections end, so some of them stand behind the end of the job.
    pub fn find(journal: &Journal, job: &Job) -> Result<Self> {
        let (begin, end) = (job.started.time, job.stopped.as_ref().map(|stopped| stopped.time));
        let sandbox = job.started.event.sandbox().cloned();
        let filter = Filter { sandbox, since: Some(begin), ..Filter::default() };
        let mut found = Self::default();
        for record in journal.records(filter)? {
            let record = record?;
            if matches!(record.event, Event::Destroyed { .. }) {
                break;
            }
            let Event::Connection { begun, .. } = &record.event else { continue };
            if *begun < begin || end.is_some_and(|end| *begun > end) {
                continue;
            }
            if found.connections.len() < MAX_SHOWN_CONNECTIONS {
                found.connections.push(record);
            } else {
                found.connections_omitted += 1;
            }
        }
        Ok(found)
    }

    /// One line for each.
    pub fn lines(&self) -> Vec<String> {
        let described = self.connections.iter().filter_map(|it| describe_connection(&it.event));
        let omitted = (self.connections_omitted > 0)
            .then(|| format!("{} more (`stockade logs ID --net`)", self.connections_omitted));
        described.chain(omitted).collect()
    }
}
