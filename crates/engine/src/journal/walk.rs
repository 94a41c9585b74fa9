//! Every line of the journal in order, over all its segments, as it stood at one instant. Memory is
//! bounded by one line, and writers are held up only while the instant is taken.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Take};

use rustix::fs::OFlags;
use stockade_fs::{Directory, LOCK_TIMEOUT, Locked, Sharing};

use super::fault::{During, JournalFault};
use super::head::{HEAD_FILE, Head};
use super::record::MAX_LINE;
use super::tail::Tail;
use super::verify::{Break, Damage};
use super::writer::rename_is_due;
use super::{CURRENT_SEGMENT_FILE, archive_file_name};

/// The journal at one instant: what is appended later is not seen.
pub(super) struct JournalSnapshot {
    /// The head, a record that the next writer will take over included.
    pub(super) head: Head,
    /// The oldest segment that is there: earlier ones were removed.
    pub(super) first: u32,
    /// What is wrong beyond the head or with how far the current segment reaches.
    pub(super) damage: Option<Damage>,
    current: Option<File>,
    /// The current file is the segment before the head's: a writer died before renaming it.
    unrenamed: bool,
}

impl JournalSnapshot {
    pub(super) fn take(dir: &Directory) -> Result<Self, JournalFault> {
        let lock = lock_for_reading(dir)?;
        let head = Head::read(lock.file()).during("read", || dir.path_of(HEAD_FILE))?;
        let head = head.ok_or(JournalFault::Broken(Break::of_head(0, Damage::Malformed)))?;
        let unrenamed = rename_is_due(dir, head)?;
        let current = none_if_missing(dir.open(CURRENT_SEGMENT_FILE, OFlags::RDONLY));
        let current = current.during("open", || dir.path_of(CURRENT_SEGMENT_FILE))?;
        let current_number = if unrenamed { head.segment - 1 } else { head.segment };
        let first = list_archived_segments(dir)?
            .first()
            .map_or(current_number, |oldest| current_number.min(*oldest));
        let mut snapshot = Self { head, first, damage: None, current, unrenamed };
        snapshot.look_beyond().during("read", || dir.path_of(CURRENT_SEGMENT_FILE))?;
        drop(lock);
        Ok(snapshot)
    }

    fn look_beyond(&mut self) -> io::Result<()> {
        let Some(current) = self.current.as_ref().filter(|_| !self.unrenamed) else {
            return Ok(());
        };
        match Tail::of(current, self.head)? {
            Tail::None | Tail::Torn => {}
            Tail::Whole(link, length) => self.head = self.head.after(link.hash, length),
            Tail::Damaged(damage) => self.damage = Some(damage),
        }
        Ok(())
    }

    /// The lines of a segment; nothing if it is not there.
    fn segment(&mut self, dir: &Directory, number: u32) -> Result<Option<Segment>, JournalFault> {
        let lines = |(file, limit): (File, u64)| Segment::Lines(BufReader::new(file.take(limit)));
        let found = self.file(dir, number)?;
        Ok(found.map(|file| file.map_or(Segment::Empty, lines)))
    }

    /// The file of a segment, and how far the head covers it; nothing if it is not there, and no file if it
    /// has no record yet. To be asked for each segment once.
    pub(super) fn file(
        &mut self,
        dir: &Directory,
        number: u32,
    ) -> Result<Option<Option<(File, u64)>>, JournalFault> {
        let last = self.head.segment;
        if number == last && (self.unrenamed || self.head.offset == 0) {
            return Ok(Some(None));
        }
        let (file, limit) = if number == last {
            (self.current.take(), self.head.offset)
        } else if self.unrenamed && number + 1 == last {
            (self.current.take(), u64::MAX)
        } else {
            let name = archive_file_name(number);
            let opened = none_if_missing(dir.open(&name, OFlags::RDONLY));
            (opened.during("open", || dir.path_of(&name))?, u64::MAX)
        };
        Ok(file.map(|file| Some((file, limit))))
    }
}

fn lock_for_reading(dir: &Directory) -> Result<Locked, JournalFault> {
    let file = match dir.open(HEAD_FILE, OFlags::RDONLY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(missing_head_fault(dir)?);
        }
        opened => opened.during("open", || dir.path_of(HEAD_FILE))?,
    };
    let locked = Locked::within(file, Sharing::Shared, LOCK_TIMEOUT);
    let locked = locked.during("lock", || dir.path_of(HEAD_FILE))?;
    locked
        .ok_or_else(|| JournalFault::Locked { file: dir.path_of(HEAD_FILE), waited: LOCK_TIMEOUT })
}

/// Without a head there is no journal, unless there are records: then the head was taken away.
fn missing_head_fault(dir: &Directory) -> Result<JournalFault, JournalFault> {
    let names = dir.names().during("list", || dir.path_of("."))?;
    Ok(if names.iter().any(|name| is_segment(name)) {
        JournalFault::Broken(Break::of_head(0, Damage::Removed))
    } else {
        JournalFault::Missing(dir.path_of("."))
    })
}

/// The numbers of the finished segments, the oldest first.
pub(super) fn list_archived_segments(dir: &Directory) -> Result<Vec<u32>, JournalFault> {
    let names = dir.names().during("list", || dir.path_of("."))?;
    let number =
        |name: &String| name.strip_prefix("journal-")?.strip_suffix(".jsonl")?.parse().ok();
    let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

pub(super) fn is_segment(name: &str) -> bool {
    name.starts_with("journal") && name.ends_with(".jsonl")
}

fn none_if_missing(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// What was found at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineShape {
    /// A line with its newline.
    Whole,
    /// The end of the segment in the middle of a line.
    Torn,
    /// More bytes than a line may have.
    TooLong,
    /// No file for this segment.
    Absent,
}

/// One place in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinePlace {
    pub(super) segment: u32,
    /// From 1.
    pub(super) line: u64,
    pub(super) shape: LineShape,
}

enum Segment {
    Empty,
    Lines(BufReader<Take<File>>),
}

/// A walk over every line of a snapshot.
pub(super) struct JournalWalk<'a> {
    dir: &'a Directory,
    pub(super) snapshot: JournalSnapshot,
    /// The segment and line that were handed out last.
    pub(super) segment: u32,
    pub(super) line: u64,
    reader: Segment,
}

impl<'a> JournalWalk<'a> {
    pub(super) fn new(dir: &'a Directory) -> Result<Self, JournalFault> {
        let snapshot = JournalSnapshot::take(dir)?;
        let segment = snapshot.first.saturating_sub(1);
        Ok(Self { dir, snapshot, segment, line: 0, reader: Segment::Empty })
    }

    /// Puts the next line, without its newline, into `line`.
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<Option<LinePlace>, JournalFault> {
        loop {
            if let Some(shape) = self.read(line)? {
                self.line += 1;
                return Ok(Some(self.place(shape)));
            }
            if self.segment == self.snapshot.head.segment {
                return Ok(None);
            }
            self.segment += 1;
            self.line = 0;
            match self.snapshot.segment(self.dir, self.segment)? {
                Some(reader) => self.reader = reader,
                None => {
                    self.reader = Segment::Empty;
                    self.line = 1;
                    return Ok(Some(self.place(LineShape::Absent)));
                }
            }
        }
    }

    /// What is wrong with the line that was handed out last.
    pub(super) fn damaged(&self, what: Damage) -> JournalFault {
        JournalFault::Damaged { file: self.dir.path_of(&self.snapshot.name(self.segment)), what }
    }

    fn place(&self, shape: LineShape) -> LinePlace {
        LinePlace { segment: self.segment, line: self.line, shape }
    }

    fn read(&mut self, line: &mut Vec<u8>) -> Result<Option<LineShape>, JournalFault> {
        line.clear();
        let Segment::Lines(reader) = &mut self.reader else { return Ok(None) };
        let read = reader.take(MAX_LINE as u64).read_until(b'\n', line);
        read.during("read", || self.dir.path_of(&self.snapshot.name(self.segment)))?;
        Ok(classify_line(line))
    }
}

impl JournalSnapshot {
    /// The name of the file a segment is in.
    pub(super) fn name(&self, segment: u32) -> String {
        let last = self.head.segment;
        if segment == last || (self.unrenamed && segment + 1 == last) {
            return CURRENT_SEGMENT_FILE.to_owned();
        }
        archive_file_name(segment)
    }
}

fn classify_line(line: &mut Vec<u8>) -> Option<LineShape> {
    if line.is_empty() {
        return None;
    }
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Some(LineShape::Whole);
    }
    Some(if line.len() == MAX_LINE { LineShape::TooLong } else { LineShape::Torn })
}
