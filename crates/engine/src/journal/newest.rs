//! Reading from the end: the newest records are what most readers want, however long the journal is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use stockade_core::{JobId, Result};
use stockade_fs::Directory;

use super::event::Event;
use super::fault::{During, JournalFault};
use super::read::{Filter, Job, READ_OPERATION};
use super::record::{MAX_LINE, Record};
use super::verify::Damage;
use super::walk::JournalSnapshot;

/// Chunk that is read at once.
const READ_CHUNK_BYTES: u64 = 1 << 16;

/// Executions whose start fits a filter, the latest start first. The decisions on them are left out.
pub struct NewestJobs<'a> {
    lines: Option<Backward<'a>>,
    filter: Filter,
    /// Ends whose start has not come yet.
    stopped: BTreeMap<JobId, Record>,
}

impl<'a> NewestJobs<'a> {
    pub(super) fn new(dir: &'a Directory, filter: Filter) -> Result<Self, JournalFault> {
        let lines = Some(Backward::new(dir)?);
        Ok(Self { lines, filter, stopped: BTreeMap::new() })
    }

    fn advance(&mut self) -> Result<Option<Job>, JournalFault> {
        let Some(lines) = &mut self.lines else { return Ok(None) };
        while let Some(line) = lines.next()? {
            let record: Record = match serde_json::from_slice(&line) {
                Ok(record) => record,
                Err(_) => return Err(lines.damaged(Damage::Malformed)),
            };
            if self.filter.is_before(record.time) && self.stopped.is_empty() {
                return Ok(None);
            }
            match record.event.job().cloned() {
                Some(job) if record.event.is_end() => {
                    self.stopped.insert(job, record);
                }
                Some(job) if matches!(record.event, Event::Started { .. }) => {
                    let stopped = self.stopped.remove(&job);
                    if self.filter.admits(&record) {
                        return Ok(Some(Job { decided: None, started: record, stopped }));
                    }
                }
                Some(_) | None => {}
            }
        }
        Ok(None)
    }
}

impl Iterator for NewestJobs<'_> {
    type Item = Result<Job>;

    /// Ends after the first error.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().map_err(|fault| fault.during(READ_OPERATION)).transpose();
        if !matches!(next, Some(Ok(_))) {
            self.lines = None;
        }
        next
    }
}

/// Every line of a snapshot, the last one first.
pub(super) struct Backward<'a> {
    dir: &'a Directory,
    snapshot: JournalSnapshot,
    /// The segment that is read.
    segment: u32,
    lines: Option<BackwardLines>,
}

impl<'a> Backward<'a> {
    pub(super) fn new(dir: &'a Directory) -> Result<Self, JournalFault> {
        let snapshot = JournalSnapshot::take(dir)?;
        let segment = snapshot.head.segment + 1;
        Ok(Self { dir, snapshot, segment, lines: None })
    }

    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, JournalFault> {
        loop {
            if let Some(lines) = &mut self.lines {
                let name = || self.dir.path_of(&self.snapshot.name(self.segment));
                match lines.next().during("read", name)? {
                    Some(line) if line.len() >= MAX_LINE => {
                        return Err(self.damaged(Damage::Malformed));
                    }
                    Some(line) => return Ok(Some(line)),
                    None => {}
                }
            }
            if self.segment <= self.snapshot.first {
                return Ok(None);
            }
            self.segment -= 1;
            self.lines = match self.snapshot.file(self.dir, self.segment)? {
                Some(Some((file, limit))) => {
                    let name = || self.dir.path_of(&self.snapshot.name(self.segment));
                    Some(BackwardLines::new(file, limit).during("read", name)?)
                }
                Some(None) => None,
                None => return Err(self.damaged(Damage::Removed)),
            };
        }
    }

    pub(super) fn damaged(&self, what: Damage) -> JournalFault {
        JournalFault::Damaged { file: self.dir.path_of(&self.snapshot.name(self.segment)), what }
    }
}

/// The lines of one file, the last one first.
pub(super) struct BackwardLines {
    file: File,
    /// Where in the file `held` begins.
    from: u64,
    held: Vec<u8>,
}

impl BackwardLines {
    pub(super) fn new(file: File, limit: u64) -> io::Result<Self> {
        let from = file.metadata()?.len().min(limit);
        Ok(Self { file, from, held: Vec::new() })
    }

    /// Without its newline. One that is too long comes in part.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let end = self.held.len().saturating_sub(1);
            if let Some(before) = self.held[..end].iter().rposition(|byte| *byte == b'\n') {
                return Ok(Some(trim_newline(self.held.split_off(before + 1))));
            }
            if self.from == 0 || self.held.len() > MAX_LINE {
                self.from = 0;
                let first = std::mem::take(&mut self.held);
                return Ok((!first.is_empty()).then(|| trim_newline(first)));
            }
            self.read_block()?;
        }
    }

    fn read_block(&mut self) -> io::Result<()> {
        let size = self.from.min(READ_CHUNK_BYTES);
        let mut block = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        self.from -= size;
        self.file.read_exact_at(&mut block, self.from)?;
        block.append(&mut self.held);
        self.held = block;
        Ok(())
    }
}

fn trim_newline(mut line: Vec<u8>) -> Vec<u8> {
    line.pop_if(|last| *last == b'\n');
    line
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_lines_backward(text: &str, limit: u64) -> Vec<String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let mut lines = BackwardLines::new(file, limit).unwrap();
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(String::from_utf8(line).unwrap());
        }
        found
    }

    #[test]
    fn lines_come_last_first_across_blocks_and_no_further_than_the_head() {
        assert_eq!(read_lines_backward("", u64::MAX), [""; 0]);
        assert_eq!(read_lines_backward("a\nb\n", u64::MAX), ["b", "a"]);
        assert_eq!(read_lines_backward("a\nb\nc\n", 4), ["b", "a"]);
        let long = "x".repeat(READ_CHUNK_BYTES as usize - 1);
        let text = format!("first\n{long}\nlast\n");
        assert_eq!(read_lines_backward(&text, u64::MAX), ["last", long.as_str(), "first"]);
    }
}
