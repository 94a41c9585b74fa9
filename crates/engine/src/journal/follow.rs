//! Records as they come.

use std::os::unix::fs::FileExt;

use stockade_core::Result;

use super::Journal;
use super::fault::{During, JournalFault};
use super::record::Record;
use super::verify::Damage;
use super::walk::JournalSnapshot;

const FOLLOW_OPERATION: &str = "follow the journal";
/// Chunk that is read at once.
const READ_CHUNK_BYTES: usize = 1 << 20;

/// A reader's position in the journal.
#[derive(Debug)]
pub struct Follower<'j> {
    journal: &'j Journal,
    segment: u32,
    offset: u64,
}

impl Journal {
    /// Follows the journal from this instant on.
    pub fn follow(&self) -> Result<Follower<'_>> {
        let snapshot =
            JournalSnapshot::take(&self.dir).map_err(|fault| fault.during(FOLLOW_OPERATION))?;
        let (segment, offset) = (snapshot.head.segment, snapshot.head.offset);
        Ok(Follower { journal: self, segment, offset })
    }
}

impl Follower<'_> {
    /// What was recorded since the last call, at most about a mebibyte of it; nothing if nothing was.
    pub fn news(&mut self) -> Result<Vec<Record>> {
        self.read().map_err(|fault| fault.during(FOLLOW_OPERATION))
    }

    fn read(&mut self) -> Result<Vec<Record>, JournalFault> {
        let dir = &self.journal.dir;
        let mut snapshot = JournalSnapshot::take(dir)?;
        loop {
            let file = dir.path_of(&snapshot.name(self.segment));
            let name = || file.clone();
            let damaged = |what| JournalFault::Damaged { file: name(), what };
            let bytes = match snapshot.file(dir, self.segment)? {
                None => return Err(damaged(Damage::Removed)),
                Some(None) => Vec::new(),
                Some(Some((file, limit))) => {
                    let end = file.metadata().during("read", name)?.len().min(limit);
                    let more = usize::try_from(end.saturating_sub(self.offset))
                        .unwrap_or(READ_CHUNK_BYTES);
                    let mut bytes = vec![0; more.min(READ_CHUNK_BYTES)];
                    file.read_exact_at(&mut bytes, self.offset).during("read", name)?;
                    bytes
                }
            };
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if whole > 0 {
                self.offset += whole as u64;
                let lines = bytes[..whole - 1].split(|byte| *byte == b'\n');
                let parse = |line| serde_json::from_slice(line);
                return lines
                    .map(parse)
                    .collect::<Result<_, _>>()
                    .map_err(|_| damaged(Damage::Malformed));
            }
            if self.segment >= snapshot.head.segment {
                return Ok(Vec::new());
            }
            (self.segment, self.offset) = (self.segment + 1, 0);
        }
    }
}
