//! Which engines live: each that has opened a record holds a locked file, as every sandbox has a lease. The
//! kernel frees the lock when the engine dies, so that the next one knows whose records have no end, and closes
//! them. Never closes a record of an engine that lives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustix::fs::OFlags;
use stockade_core::{EngineId, Error, ErrorCode, Result, SandboxId};
use stockade_fs::{Directory, Locked, Sharing, StateDir, fresh_id};

use crate::engine::{EngineInner, lock_mutex};
use crate::journal::{Event, Filter, Journal};
use crate::output_log::OutputLogs;

/// Attempts to create a file: before it is locked, another engine can take it for a dead engine's.
const MAX_ENTER_ATTEMPTS: usize = 8;

/// The engines of one state directory.
#[derive(Debug, Clone)]
pub(crate) struct Engines(Arc<Directory>);

/// The locked file of one engine: this one's, or a dead one's while its records are being closed.
#[derive(Debug)]
pub(crate) struct EnginePresence {
    dir: Arc<Directory>,
    id: EngineId,
    _lock: Locked,
}

impl Engines {
    pub(crate) fn open(state: &StateDir) -> Result<Self> {
        Ok(Self(Arc::new(state.subdirectory("engines")?)))
    }

    /// Makes an engine known, from now until its file is removed or its process ends.
    pub(crate) fn register_engine(&self) -> Result<EnginePresence> {
        for _ in 0..MAX_ENTER_ATTEMPTS {
            let id: EngineId = fresh_id()?;
            let entered = self.0.open(id.as_str(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
            let entered = entered.and_then(|file| Locked::attempt(file, Sharing::Exclusive));
            match entered.map_err(|error| self.failed(error))? {
                Ok(lock) if !is_removed(&lock).map_err(|error| self.failed(error))? => {
                    return Ok(EnginePresence { dir: Arc::clone(&self.0), id, _lock: lock });
                }
                Ok(_) | Err(_) => {}
            }
        }
        Err(self.failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// The engines that have died and left their file, each for one taker only.
    fn claim_dead(&self) -> Result<Vec<EnginePresence>> {
        let failed = |error| self.failed(error);
        let mut dead = Vec::new();
        for name in self.0.names().map_err(failed)? {
            let Ok(id) = name.parse::<EngineId>() else { continue };
            let file = match self.0.open(&name, OFlags::RDWR) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            let Ok(lock) = Locked::attempt(file, Sharing::Exclusive).map_err(failed)? else {
                continue;
            };
            if !is_removed(&lock).map_err(failed)? {
                dead.push(EnginePresence { dir: Arc::clone(&self.0), id, _lock: lock });
            }
        }
        Ok(dead)
    }

    fn failed(&self, error: io::Error) -> Error {
        let message = format!("`{}` cannot be used", self.0.path().display());
        Error::new(ErrorCode::StateUnavailable, "make the engine known", message)
            .remedy("make the directory writable for this user, with some space left")
            .source(error)
    }
}

impl EnginePresence {
    /// Ends it: no record of this engine is open. The name goes before the lock.
    pub(crate) fn end_presence(self) -> io::Result<()> {
        self.dir.remove(self.id.as_str())
    }
}

fn is_removed(lock: &Locked) -> io::Result<bool> {
    Ok(rustix::fs::fstat(lock.file())?.st_nlink == 0)
}

impl EngineInner {
    /// The id under which this engine opens records.
    pub(crate) fn engine_id(&self) -> Result<EngineId> {
        let mut presence = lock_mutex(&self.presence);
        match &*presence {
            Some(entered) => Ok(entered.id.clone()),
            None => Ok(presence.insert(self.engines.register_engine()?).id.clone()),
        }
    }

    /// Closes the records of engines that have died: how and when those executions ended is not known.
    /// Where something of a sandbox may still stand, its record stays open for the next engine.
    pub(crate) async fn close_records_of_the_dead(&self) -> Result<()> {
        let dead = self.engines.claim_dead()?;
        if dead.is_empty() {
            return Ok(());
        }
        let leases = self.leases.list()?.leases;
        let standing: BTreeSet<SandboxId> = leases.into_iter().map(|lease| lease.body.id).collect();
        let (journal, logs) = (Arc::clone(&self.journal), self.output_logs.clone());
        let closing =
            tokio::task::spawn_blocking(move || close_records(&journal, &logs, dead, &standing));
        closing.await.unwrap_or_else(|join| {
            Err(Error::new(ErrorCode::JournalUnavailable, "close records", "the writer ended")
                .source(join))
        })
    }
}

fn close_records(
    journal: &Journal,
    logs: &OutputLogs,
    dead: Vec<EnginePresence>,
    standing: &BTreeSet<SandboxId>,
) -> Result<()> {
    let mut dead: BTreeMap<EngineId, EnginePresence> =
        dead.into_iter().map(|presence| (presence.id.clone(), presence)).collect();
    for job in journal.jobs(Filter::default())? {
        let job = job?;
        let Event::Started { job: id, sandbox, engine: Some(engine), .. } = &job.started.event
        else {
            continue;
        };
        if job.stopped.is_some() || !dead.contains_key(engine) {
            continue;
        }
        if standing.contains(sandbox) {
            dead.remove(engine);
        } else {
            let log = logs.reference(id);
            journal.append(Event::EndUnknown { job: id.clone(), log })?;
        }
    }
    for presence in dead.into_values() {
        // One that stays is looked at again, and has nothing open then.
        let _ = presence.end_presence();
    }
    Ok(())
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        // With a record open, it is as if this engine had died.
        if lock_mutex(&self.running).is_empty()
            && let Some(presence) = lock_mutex(&self.presence).take()
        {
            let _ = presence.end_presence();
        }
    }
}
