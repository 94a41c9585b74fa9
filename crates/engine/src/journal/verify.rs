//! Whether the journal is what was written: every line against its hash, every hash against the next
//! record, the last one against the head.
//!
//! Files that were removed on purpose are accounted for by the record of that.
//!
//! What this cannot see: a journal replaced as a whole, or truncated together with its head, by an attacker
//! who recomputes all hashes. Receipts kept elsewhere show that.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use stockade_fs::Directory;

use super::fault::JournalFault;
use super::head::{HEAD_FILE, Head};
use super::record::{ChainLink, ContentHash, is_rotation, parse_pruned};
use super::walk::{JournalWalk, LinePlace, LineShape, list_archived_segments};

/// What verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum Verdict {
    /// Everything is as it was written.
    Clean {
        /// How many records there are.
        records: u64,
        /// The last one's hash: kept elsewhere, it proves later that nothing was replaced.
        head: ContentHash,
    },
    /// It was changed outside its writers.
    Broken(Break),
}

/// Where the journal is broken first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Break {
    /// The file's name.
    pub segment: String,
    /// The line in it, from 1.
    pub line: u64,
    /// The number of the record that belongs there.
    pub seq: u64,
    /// What happened to it.
    pub what: Damage,
}

/// What happened to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Damage {
    /// Its bytes are not those that were written.
    Changed,
    /// It is gone, and later ones are there.
    Removed,
    /// It is there, but not in its place.
    Reordered,
    /// It and everything after it in its file is gone, in whole or in part.
    Truncated,
    /// It is not a record.
    Malformed,
}

impl Break {
    pub(super) fn of_head(seq: u64, what: Damage) -> Self {
        Self { segment: HEAD_FILE.to_owned(), line: 1, seq, what }
    }
}

/// Verifies the journal in a directory.
pub(super) fn verify_journal(dir: &Directory) -> Result<Verdict, JournalFault> {
    loop {
        let before = list_archived_segments(dir)?.first().copied();
        let verdict = match JournalCheck::new(dir).and_then(JournalCheck::run) {
            Err(JournalFault::Broken(place)) => Verdict::Broken(place),
            other => other?,
        };
        // Files that were removed on purpose meanwhile are looked at without them.
        if verdict.is_clean() || list_archived_segments(dir)?.first().copied() == before {
            return Ok(verdict);
        }
    }
}

struct JournalCheck<'a> {
    walk: JournalWalk<'a>,
    /// The last record that is as it was written.
    last: Head,
    /// The place of that record.
    at: (u32, u64),
    /// The last record before the oldest segment, by that one's word.
    floor: Head,
    /// The last record of each segment: its number and its hash.
    ends: BTreeMap<u32, (u64, ContentHash)>,
    /// What the newest record of a removal says.
    pruned: Option<(u32, u64, ContentHash)>,
}

impl<'a> JournalCheck<'a> {
    fn new(dir: &'a Directory) -> Result<Self, JournalFault> {
        let (last, ends) = (Head::EMPTY_JOURNAL, BTreeMap::new());
        Ok(Self { walk: JournalWalk::new(dir)?, last, at: (1, 0), floor: last, ends, pruned: None })
    }

    fn run(mut self) -> Result<Verdict, JournalFault> {
        let mut line = Vec::new();
        while let Some(place) = self.walk.next(&mut line)? {
            self.begin_at(place, &line);
            match self.check_line(place, &line) {
                Ok(link) => {
                    self.last = self.last.after(link.hash, 0);
                    self.at = (place.segment, place.line);
                    self.ends.insert(place.segment, (link.seq, link.hash));
                    self.pruned = parse_pruned(&line).or(self.pruned);
                }
                Err(FoundBreak::Here(what)) => {
                    return Ok(self.build_broken_verdict(place.segment, place.line, what));
                }
                Err(FoundBreak::Gap) => return self.explain_gap(place),
            }
        }
        Ok(self.finish())
    }

    /// Where earlier segments were removed, the oldest that is left says what it follows. Whether that was so is
    /// said by the record of the removal.
    fn begin_at(&mut self, place: LinePlace, line: &[u8]) {
        let oldest = place.segment == self.walk.snapshot.first && place.line == 1;
        if let (true, true, Ok(link)) = (oldest, place.segment > 1, ChainLink::read(line)) {
            let seq = link.seq.saturating_sub(1);
            self.floor = Head { seq, hash: link.prev, ..Head::EMPTY_JOURNAL };
            self.last = self.floor;
        }
    }

    /// Whether everything that is missing before the oldest segment was removed on purpose.
    fn removal_is_recorded(&self) -> bool {
        let first = self.walk.snapshot.first;
        let Some((segment, last, hash)) = self.pruned else { return first == 1 };
        let known = match segment + 1 == first {
            true => Some((self.floor.seq, self.floor.hash)),
            false => self.ends.get(&segment).copied(),
        };
        first == 1 || (segment + 1 >= first && known == Some((last, hash)))
    }

    fn check_line(&self, place: LinePlace, line: &[u8]) -> Result<ChainLink, FoundBreak> {
        match place.shape {
            LineShape::Whole => {}
            LineShape::Absent => return Err(FoundBreak::Here(Damage::Removed)),
            LineShape::TooLong => return Err(FoundBreak::Here(Damage::Malformed)),
            LineShape::Torn => return Err(FoundBreak::Here(self.classify_torn_line(place))),
        }
        let link = ChainLink::read(line).map_err(FoundBreak::Here)?;
        let expected = self.last.seq + 1;
        if link.seq > expected {
            return Err(FoundBreak::Gap);
        }
        let moved = place.segment > 1 && place.line == 1 && !is_rotation(line, place.segment - 1);
        if link.seq < expected || moved {
            return Err(FoundBreak::Here(Damage::Reordered));
        }
        if link.prev != self.last.hash {
            return Err(FoundBreak::Here(Damage::Changed));
        }
        Ok(link)
    }

    /// A last line without its newline was cut, unless the file is as long as it should be.
    fn classify_torn_line(&self, place: LinePlace) -> Damage {
        let snapshot = &self.walk.snapshot;
        let cut = snapshot.damage == Some(Damage::Truncated);
        if place.segment == snapshot.head.segment && !cut {
            return Damage::Changed;
        }
        Damage::Truncated
    }

    /// Later records follow directly: the missing one was moved, or it is gone.
    fn explain_gap(mut self, place: LinePlace) -> Result<Verdict, JournalFault> {
        let moved = self.comes_later(self.last.seq + 1)?;
        if moved {
            return Ok(self.build_broken_verdict(place.segment, place.line, Damage::Reordered));
        }
        if place.line > 1 || place.segment == 1 {
            return Ok(self.build_broken_verdict(place.segment, place.line, Damage::Removed));
        }
        // The segment before ends too early.
        let before = place.segment - 1;
        let lines = if self.at.0 == before { self.at.1 } else { 0 };
        Ok(self.build_broken_verdict(before, lines + 1, Damage::Truncated))
    }

    fn comes_later(&mut self, seq: u64) -> Result<bool, JournalFault> {
        let mut line = Vec::new();
        while let Some(place) = self.walk.next(&mut line)? {
            match place.shape {
                LineShape::Absent => return Ok(false),
                LineShape::Torn | LineShape::TooLong => {}
                LineShape::Whole if ChainLink::read(&line).is_ok_and(|link| link.seq == seq) => {
                    return Ok(true);
                }
                LineShape::Whole => {}
            }
        }
        Ok(false)
    }

    /// Every line is in order: now the end.
    fn finish(mut self) -> Verdict {
        if !self.removal_is_recorded() {
            self.last = Head::EMPTY_JOURNAL;
            return self.build_broken_verdict(1, 1, Damage::Removed);
        }
        let head = self.walk.snapshot.head;
        let next_line = self.walk.line + 1;
        if self.last.seq < head.seq && self.walk.snapshot.damage == Some(Damage::Truncated) {
            return self.build_broken_verdict(head.segment, next_line, Damage::Truncated);
        }
        if self.last.seq != head.seq || self.last.hash != head.hash {
            return Verdict::Broken(Break::of_head(self.last.seq, Damage::Changed));
        }
        match self.walk.snapshot.damage {
            // All records are there, so it is the head that speaks of more.
            Some(Damage::Truncated) => Verdict::Broken(Break::of_head(head.seq, Damage::Changed)),
            Some(damage) => self.build_broken_verdict(head.segment, next_line, damage),
            None => Verdict::Clean { records: head.seq, head: head.hash },
        }
    }

    fn build_broken_verdict(&self, segment: u32, line: u64, what: Damage) -> Verdict {
        let segment = self.walk.snapshot.name(segment);
        Verdict::Broken(Break { segment, line, seq: self.last.seq + 1, what })
    }
}

enum FoundBreak {
    Here(Damage),
    Gap,
}

impl Verdict {
    /// Whether everything is as it was written.
    pub fn is_clean(&self) -> bool {
        matches!(self, Self::Clean { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean { records, head } => write!(f, "clean: {records} records, head {head}"),
            Self::Broken(place) => place.fmt(f),
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, line, seq, what } = self;
        write!(f, "broken: {segment}, line {line}: record {seq} was {what}")
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Reordered => "reordered",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
        })
    }
}
