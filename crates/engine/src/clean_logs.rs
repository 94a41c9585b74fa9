//! Removes the output logs of jobs that were pruned from the journal. Logs of jobs that it still knows stay, for
//! `stockade logs`: they have bounds of their own. Never removes a log that is being written.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, SystemTime};

use stockade_core::{JobId, Result};
use stockade_fs::{CacheUsage, Cleaning, Locked, Sharing};

use crate::journal::{Event, Filter, Journal};
use crate::output_log::OutputLogs;

const CLEAN_OPERATION: &str = "clean the logs";

impl OutputLogs {
    /// Removes the logs of jobs that the journal has no record of, unless they were written to within this time.
    pub fn clean(
        &self,
        journal: &Journal,
        unused_for: Duration,
        cleaning: Cleaning,
    ) -> Result<CacheUsage> {
        let failed = |error| self.failed(CLEAN_OPERATION, error);
        let logs = self.chunks_by_job().map_err(failed)?;
        // After the logs were listed: a job is recorded before it writes anything.
        let recorded = find_recorded(journal, &logs)?;
        let mut usage = CacheUsage::default();
        for (job, chunks) in &logs {
            let Some((written, bytes)) = self.measure(job, chunks).map_err(failed)? else {
                continue;
            };
            usage.entries += 1;
            usage.bytes += bytes;
            if recorded.contains(job) || is_younger(written, unused_for) {
                continue;
            }
            if self.is_being_written(job).map_err(failed)? {
                usage.in_use += 1;
                continue;
            }
            if cleaning == Cleaning::Remove {
                self.remove(job, chunks).map_err(failed)?;
            }
            usage.freed_entries += 1;
            usage.freed_bytes += bytes;
        }
        Ok(usage)
    }

    fn is_being_written(&self, job: &JobId) -> io::Result<bool> {
        let Some(first) = self.open_chunk(job, 0)? else { return Ok(false) };
        Ok(Locked::attempt(first, Sharing::Exclusive)?.is_err())
    }
}

/// Those of the logs whose jobs are in the journal.
fn find_recorded(journal: &Journal, logs: &BTreeMap<JobId, Vec<u64>>) -> Result<BTreeSet<JobId>> {
    let mut recorded = BTreeSet::new();
    if logs.is_empty() {
        return Ok(recorded);
    }
    for job in journal.jobs(Filter::default())? {
        if let Event::Started { job, .. } = job?.started.event
            && logs.contains_key(&job)
        {
            recorded.insert(job);
        }
    }
    Ok(recorded)
}

/// Whether this was within the time. What is in the future was just now.
fn is_younger(written: SystemTime, unused_for: Duration) -> bool {
    written.elapsed().unwrap_or_default() < unused_for
}

#[cfg(test)]
mod tests {
    use stockade_core::StreamId;
    use stockade_fs::StateDir;

    use super::*;
    use crate::journal::JournalOptions;
    use crate::output_log::OutputLogBounds;

    #[test]
    fn logs_without_a_record_go_unless_they_are_being_written_or_young() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path().join("state")).unwrap();
        let journal = Journal::open(&state, JournalOptions::default()).unwrap();
        let logs = OutputLogs::open(&state, OutputLogBounds::default()).unwrap();
        let write = |job: &str| {
            let mut writer = logs.writer(&job.parse().unwrap());
            writer.write(StreamId::Stdout, b"text");
            writer
        };
        let written = write("written");
        drop(write("old"));
        let clean = |unused_for, cleaning| {
            let usage = logs.clean(&journal, unused_for, cleaning).unwrap();
            (usage.entries, usage.in_use, usage.freed_entries)
        };
        assert_eq!(clean(Duration::from_secs(3600), Cleaning::Remove), (2, 0, 0));
        assert_eq!(clean(Duration::ZERO, Cleaning::Preview), (2, 1, 1));
        assert_eq!(clean(Duration::ZERO, Cleaning::Remove), (2, 1, 1));
        assert_eq!(clean(Duration::ZERO, Cleaning::Remove), (1, 1, 0));
        drop(written);
        assert_eq!(clean(Duration::ZERO, Cleaning::Remove), (1, 0, 1));
    }
}
