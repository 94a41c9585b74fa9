//! The programs of one sandbox: what runs, and the last that have ended, for those who ask later.
//!
//! Their output is what costs memory, so it is bounded by count and by bytes.

use std::collections::VecDeque;

use stockade_core::{Error, ErrorCode, JobId, Outcome, Result};
use stockade_engine::{Timestamp, Watcher};

use crate::args::prefix::by_prefix;
use crate::daemon::message::JobInfo;

/// Most programs at once.
const MAX_RUNNING_JOBS: usize = 256;
/// Most programs that have ended.
const MAX_ENDED_JOBS: usize = 64;
/// Most output of programs that have ended.
const MAX_ENDED_OUTPUT_BYTES: u64 = 32 << 20;
/// Longest command line in a listing.
const MAX_LINE_CHARS: usize = 200;

/// The programs of one sandbox, the oldest first.
#[derive(Debug, Default)]
pub struct SupervisedJobs(VecDeque<SupervisedJob>);

#[derive(Debug)]
struct SupervisedJob {
    watcher: Watcher,
    command: String,
    started: Timestamp,
    ended: Option<EndedJob>,
}

#[derive(Debug, Clone, Copy)]
struct EndedJob {
    exit_code: i32,
    bytes: u64,
}

impl SupervisedJobs {
    /// Whether one more may be started.
    pub fn room(&self) -> Result<()> {
        if self.running() < MAX_RUNNING_JOBS {
            return Ok(());
        }
        let message = format!("{MAX_RUNNING_JOBS} programs run in it already");
        Err(Error::new(ErrorCode::TooLarge, "exec", message).remedy("wait until one has ended"))
    }

    /// Takes in a program that has started.
    pub fn add(&mut self, watcher: Watcher) {
        let command = format_command_line(watcher.command());
        self.0.push_back(SupervisedJob {
            watcher,
            command,
            started: Timestamp::now(),
            ended: None,
        });
    }

    /// Notes the end of one, and forgets the oldest where there are too many.
    pub fn finish(&mut self, job: &JobId, outcome: &Outcome) {
        let bytes = outcome.stdout.bytes.saturating_add(outcome.stderr.bytes);
        let ended = Some(EndedJob { exit_code: outcome.exit_code(), bytes });
        self.0.iter_mut().filter(|one| one.watcher.job() == job).for_each(|one| one.ended = ended);
        while self.too_much() {
            match self.0.iter().position(|one| one.ended.is_some()) {
                Some(oldest) => drop(self.0.remove(oldest)),
                None => return,
            }
        }
    }

    /// This one, by its id or the beginning of it, or the newest.
    pub fn find(&self, job: Option<&JobId>) -> Result<Option<Watcher>> {
        let Some(given) = job else {
            return Ok(self.0.back().map(|one| one.watcher.clone()));
        };
        let ids = self.0.iter().map(|one| one.watcher.job());
        let meant = by_prefix("jobs", given.as_str(), ids, "logs")?;
        let found = self.0.iter().find(|one| Some(one.watcher.job()) == meant);
        Ok(found.map(|one| one.watcher.clone()))
    }

    /// All of them, for people.
    pub fn info(&self) -> Vec<JobInfo> {
        self.0.iter().map(SupervisedJob::info).collect()
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.0.iter().filter(|one| one.ended.is_none()).count()
    }

    fn too_much(&self) -> bool {
        let ended = || self.0.iter().filter_map(|one| one.ended);
        let bytes = ended().fold(0u64, |sum, one| sum.saturating_add(one.bytes));
        // The last one stays, however much it wrote: its own history is bounded.
        ended().count() > MAX_ENDED_JOBS || (bytes > MAX_ENDED_OUTPUT_BYTES && ended().count() > 1)
    }
}

impl SupervisedJob {
    fn info(&self) -> JobInfo {
        JobInfo {
            job: self.watcher.job().clone(),
            command: self.command.clone(),
            started: self.started,
            running: self.ended.is_none(),
            exit_code: self.ended.map(|ended| ended.exit_code),
        }
    }
}

fn format_command_line(argv: &[String]) -> String {
    let whole = argv.join(" ");
    let mut shown: String = whole.chars().take(MAX_LINE_CHARS).collect();
    if shown.len() < whole.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stockade_backends::mock::{self, Mock, Script};
    use stockade_core::{BackendChoice, Command, SandboxSpec};
    use stockade_engine::{Engine, EngineConfig};

    use super::*;

    #[tokio::test]
    async fn only_the_newest_that_have_ended_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let backend = Mock::new().with_program("true", Script::default());
        let config = EngineConfig::at(state.path().join("state"));
        let engine = Engine::open(config, vec![Arc::new(backend)]).await.unwrap();
        let backend = BackendChoice::Named(mock::NAME);
        let id = engine.create(SandboxSpec { backend, ..SandboxSpec::default() }).await.unwrap();
        let mut jobs = SupervisedJobs::default();
        for _ in 0..MAX_ENDED_JOBS + 3 {
            let command = Command::program(["true"]);
            let watcher = engine.exec(&id, command).await.unwrap().detach();
            jobs.add(watcher.clone());
            jobs.finish(watcher.job(), &watcher.outcome().await);
        }
        assert_eq!((jobs.info().len(), jobs.running()), (MAX_ENDED_JOBS, 0));
        let newest = jobs.find(None).unwrap().unwrap();
        assert_eq!(jobs.info().last().unwrap().job, *newest.job());
        engine.close().await.unwrap();
    }

    #[test]
    fn a_long_command_line_is_cut() {
        assert_eq!(format_command_line(&["a".into(), "b".into()]), "a b");
        let shown = format_command_line(&["é".repeat(500)]);
        assert!(shown.ends_with('…') && shown.chars().count() == MAX_LINE_CHARS + 1);
    }
}
