//! The audit journal: what was run for whom, behind which walls, and how it ended (C-40).
//!
//! JSON lines, each holding the hash of the one before, written by any number of processes. A record
//! that was reported as written is in the kernel's hands and survives the engine; nothing that was
//! reported is ever changed or moved here, and removed only on request, which is recorded too. Secrets have no place in it (C-41).

mod event;
mod fault;
mod follow;
mod head;
mod newest;
mod prune;
mod read;
mod record;
mod tail;
mod usage;
mod verify;
mod walk;
mod workspaces;
mod writer;

use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use stockade_core::{Bytes, JobId, Result};
use stockade_fs::{Directory, LOCK_TIMEOUT, Locked, Sharing, StateDir, draft_name};

pub use event::{EgressVerdict, Event};
pub use follow::Follower;
pub use newest::NewestJobs;
pub use prune::{Prune, PrunedSegments};
pub use read::{Filter, Job, Jobs, Records};
pub use record::{ContentHash, Record};
pub use usage::{TenantUsage, UsageSummary};
pub use verify::{Break, Damage, Verdict};

use fault::{During, JournalFault, VERIFY_OPERATION};
use head::{HEAD_FILE, Head};
use walk::JournalWalk;
use writer::JournalWriter;

/// File of the segment that is written to.
const CURRENT_SEGMENT_FILE: &str = "journal.jsonl";
const RECORD_OPERATION: &str = "record";

/// The name of a finished segment.
fn archive_file_name(segment: u32) -> String {
    format!("journal-{segment:06}.jsonl")
}

/// How the journal is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalOptions {
    /// When a file has grown to this, a new one is begun.
    pub segment_bytes: Bytes,
    /// Whether each record is flushed to the disk. If not, it survives the engine's death but may be
    /// lost with the machine's power; the journal then counts as broken, since nothing tells a power
    /// loss from a cut.
    pub sync: bool,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { segment_bytes: Bytes::mib(64), sync: false }
    }
}

/// What the writer of a record gets. Kept elsewhere, it proves later that the record was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The record's number.
    pub seq: u64,
    /// Its hash, which stands for everything before it too.
    pub hash: ContentHash,
}

/// The audit journal of one state directory. Any number of threads and processes may use it at once.
#[derive(Debug)]
pub struct Journal {
    dir: Directory,
    options: JournalOptions,
}

impl Journal {
    /// Opens the journal, beginning one where there is none.
    pub fn open(state: &StateDir, options: JournalOptions) -> Result<Self> {
        let dir = state.subdirectory("journal")?;
        create_head(&dir).map_err(|fault| fault.during("open the journal"))?;
        Ok(Self { dir, options })
    }

    /// Opens the journal of the state directory at a path, which is made if need be.
    pub fn open_in(state_dir: impl AsRef<Path>, options: JournalOptions) -> Result<Self> {
        Self::open(&StateDir::open(state_dir)?, options)
    }

    /// Records one event. When this returns, the record survives the end of this process.
    ///
    /// - Blocks for microseconds; while other writers are at it, for up to 5 s, then fails with
    ///   `too-slow`.
    /// - If it fails, nothing was recorded and nothing may be run (C-40). A later call heals what a
    ///   failed write left.
    pub fn append(&self, event: Event) -> Result<Receipt> {
        self.append_within(&event, LOCK_TIMEOUT).map_err(|fault| fault.during(RECORD_OPERATION))
    }

    /// Records one event if no other writer is at it this instant, else does nothing: for callers
    /// that must not wait.
    pub fn try_append(&self, event: &Event) -> Result<Option<Receipt>> {
        match self.append_within(event, Duration::ZERO) {
            Err(JournalFault::Locked { .. }) => Ok(None),
            other => other.map(Some).map_err(|fault| fault.during(RECORD_OPERATION)),
        }
    }

    fn append_within(&self, event: &Event, patience: Duration) -> Result<Receipt, JournalFault> {
        if matches!(event, Event::Rotated { .. } | Event::Pruned { .. }) {
            return Err(JournalFault::NotForCallers);
        }
        let event = record::encode_event(event)?.ok_or(JournalFault::TooLong)?;
        let lock = self.lock(patience)?;
        JournalWriter::resume(&self.dir, &self.options, &lock)?.append(&event)
    }

    fn lock(&self, waited: Duration) -> Result<Locked, JournalFault> {
        let path = || self.dir.path_of(HEAD_FILE);
        let file = self.dir.open(HEAD_FILE, OFlags::RDWR).during("open", path)?;
        let locked = Locked::within(file, Sharing::Exclusive, waited).during("lock", path)?;
        locked.ok_or_else(|| JournalFault::Locked { file: path(), waited })
    }

    /// Checks every record, in bounded memory, without holding writers up.
    pub fn verify(&self) -> Result<Verdict> {
        verify::verify_journal(&self.dir).map_err(|fault| fault.during(VERIFY_OPERATION))
    }

    /// Checks the journal in a directory, which may be a copy. Nothing is written.
    pub fn verify_dir(path: impl AsRef<Path>) -> Result<Verdict> {
        let path = path.as_ref();
        let dir = Directory::existing(path).during("open", || path.to_owned());
        let verdict = dir.and_then(|dir| verify::verify_journal(&dir));
        verdict.map_err(|fault| fault.during(VERIFY_OPERATION))
    }

    /// The records that fit the filter, oldest first.
    pub fn records(&self, filter: Filter) -> Result<Records<'_>> {
        Ok(Records::new(self.open_walk()?, filter))
    }

    /// The executions whose start fits the filter.
    pub fn jobs(&self, filter: Filter) -> Result<Jobs<'_>> {
        Ok(Jobs::new(self.open_walk()?, filter))
    }

    /// The same, the one that started last first: quick however long the journal is.
    pub fn newest_jobs(&self, filter: Filter) -> Result<NewestJobs<'_>> {
        NewestJobs::new(&self.dir, filter).map_err(|fault| fault.during(read::READ_OPERATION))
    }

    /// What tenants have used, by what has ended within the times of a filter. Bounded: it says whether it is complete.
    pub fn usage(&self, filter: Filter) -> Result<UsageSummary> {
        UsageSummary::read(&self.dir, filter).map_err(|fault| fault.during(read::READ_OPERATION))
    }

    /// One execution.
    pub fn job(&self, job: &JobId) -> Result<Option<Job>> {
        let filter = Filter { job: Some(job.clone()), ..Filter::default() };
        self.jobs(filter)?.next().transpose()
    }

    fn open_walk(&self) -> Result<JournalWalk<'_>> {
        JournalWalk::new(&self.dir).map_err(|fault| fault.during(read::READ_OPERATION))
    }
}

/// Makes the head of an empty journal, unless there is one. It appears whole or not at all.
fn create_head(dir: &Directory) -> Result<(), JournalFault> {
    let path = || dir.path_of(HEAD_FILE);
    if dir.exists(HEAD_FILE).during("look for", path)? {
        return Ok(());
    }
    // Listed before the head is made: another process may begin the same journal just now.
    let names = dir.names().during("list", || dir.path_of("."))?;
    let has_records = names.iter().any(|name| walk::is_segment(name));
    if has_records && !dir.exists(HEAD_FILE).during("look for", path)? {
        return Err(JournalFault::Damaged { file: path(), what: Damage::Removed });
    }
    let draft = draft_name(HEAD_FILE);
    let made = link_head(dir, &draft).during("create", path);
    dir.remove(&draft).during("clean up", || dir.path_of(&draft))?;
    made
}

fn link_head(dir: &Directory, draft: &str) -> std::io::Result<()> {
    let file = dir.open(draft, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    Head::EMPTY_JOURNAL.write(&file)?;
    file.sync_data()?;
    match dir.link(draft, HEAD_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}
