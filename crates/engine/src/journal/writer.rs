//! Writing under the lock: heal what a dead writer left, rotate, append, move the head.
//!
//! The order makes a death at any instant harmless. A record is written before the head moves, so it
//! is found beyond the head. A rotation moves the head before it renames, so the head always tells
//! which segment `journal.jsonl` is, or that the rename is still due. Nothing that the head covers is
//! ever written again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::OFlags;
use stockade_fs::{Directory, Locked, Timestamp};

use super::event::Event;
use super::fault::{During, JournalFault};
use super::head::{HEAD_FILE, Head};
use super::record::{self, ContentHash};
use super::tail::Tail;
use super::verify::Damage;
use super::{CURRENT_SEGMENT_FILE, JournalOptions, Receipt, archive_file_name};

/// One turn at the journal: exists only while the lock is held.
pub(super) struct JournalWriter<'a> {
    dir: &'a Directory,
    options: &'a JournalOptions,
    lock: &'a Locked,
    head: Head,
    current: File,
}

impl<'a> JournalWriter<'a> {
    /// Takes up the journal where it ends, healed.
    pub(super) fn resume(
        dir: &'a Directory,
        options: &'a JournalOptions,
        lock: &'a Locked,
    ) -> Result<Self, JournalFault> {
        let head = Head::read(lock.file()).during("read", || dir.path_of(HEAD_FILE))?;
        let head = head.ok_or_else(|| build_damage_fault(dir, HEAD_FILE, Damage::Malformed))?;
        let mut writer = Self { dir, options, lock, head, current: open_current(dir, head)? };
        writer.heal_tail()?;
        writer.announce_rotation()?;
        Ok(writer)
    }

    /// Adds one event, in a new segment if this one is full.
    pub(super) fn append(&mut self, event: &[u8]) -> Result<Receipt, JournalFault> {
        let (line, hash) = self.build_line(event);
        if !self.is_full(line.len() as u64) {
            return self.write_record(&line, hash);
        }
        self.rotate_segment()?;
        let (line, hash) = self.build_line(event);
        self.write_record(&line, hash)
    }

    /// How large the current segment is.
    pub(super) fn bytes(&self) -> u64 {
        self.head.offset
    }

    fn build_line(&self, event: &[u8]) -> (Vec<u8>, ContentHash) {
        record::build_line(self.head.hash, self.head.seq.saturating_add(1), Timestamp::now(), event)
    }

    fn is_full(&self, more: u64) -> bool {
        self.head.offset > 0 && self.head.offset.saturating_add(more) > self.options.segment_bytes.0
    }

    fn heal_tail(&mut self) -> Result<(), JournalFault> {
        let tail = Tail::of(&self.current, self.head).during("read", || self.current_path())?;
        match tail {
            Tail::None => Ok(()),
            Tail::Torn => {
                let offset = self.head.offset;
                self.current.set_len(offset).during("heal", || self.current_path())
            }
            Tail::Whole(link, length) => self.move_head(self.head.after(link.hash, length)),
            Tail::Damaged(what) => Err(build_damage_fault(self.dir, CURRENT_SEGMENT_FILE, what)),
        }
    }

    fn rotate_segment(&mut self) -> Result<(), JournalFault> {
        self.move_head(self.head.rotated())?;
        self.current = open_current(self.dir, self.head)?;
        if self.options.sync {
            self.dir.sync().during("flush", || self.dir.path_of("."))?;
        }
        self.announce_rotation()
    }

    /// The first record of every later segment. A writer may have died just before writing it.
    fn announce_rotation(&mut self) -> Result<(), JournalFault> {
        if !self.head.awaits_rotation() {
            return Ok(());
        }
        let event = serde_json::to_vec(&Event::Rotated { segment: self.head.segment - 1 })?;
        let (line, hash) = self.build_line(&event);
        self.write_record(&line, hash).map(|_| ())
    }

    fn write_record(&mut self, line: &[u8], hash: ContentHash) -> Result<Receipt, JournalFault> {
        let next = self.head.after(hash, line.len() as u64);
        let done = self.write(line).and_then(|()| self.move_head(next));
        if let Err(fault) = done {
            self.undo_write();
            return Err(fault);
        }
        Ok(Receipt { seq: next.seq, hash })
    }

    /// The caller hears that nothing was recorded, so nothing should be. The head goes back first: it
    /// must never speak of a record that is not there. Where this fails too, the next writer heals.
    fn undo_write(&self) {
        if self.head.write(self.lock.file()).is_ok() {
            let _ = self.current.set_len(self.head.offset);
        }
    }

    fn write(&self, line: &[u8]) -> Result<(), JournalFault> {
        let path = || self.current_path();
        self.current.write_all_at(line, self.head.offset).during("write", path)?;
        self.flush(&self.current, CURRENT_SEGMENT_FILE)
    }

    fn move_head(&mut self, head: Head) -> Result<(), JournalFault> {
        head.write(self.lock.file()).during("write", || self.dir.path_of(HEAD_FILE))?;
        self.flush(self.lock.file(), HEAD_FILE)?;
        self.head = head;
        Ok(())
    }

    fn flush(&self, file: &File, name: &str) -> Result<(), JournalFault> {
        if !self.options.sync {
            return Ok(());
        }
        file.sync_data().during("flush", || self.dir.path_of(name))
    }

    fn current_path(&self) -> PathBuf {
        self.dir.path_of(CURRENT_SEGMENT_FILE)
    }
}

/// Opens the segment the head speaks of, after a rename that may still be due.
fn open_current(dir: &Directory, head: Head) -> Result<File, JournalFault> {
    let path = || dir.path_of(CURRENT_SEGMENT_FILE);
    if rename_is_due(dir, head)? {
        dir.rename(CURRENT_SEGMENT_FILE, &archive_file_name(head.segment - 1))
            .during("rename", path)?;
    }
    let fresh = if head.offset == 0 { OFlags::CREATE } else { OFlags::empty() };
    match dir.open(CURRENT_SEGMENT_FILE, OFlags::RDWR | fresh) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && head.offset > 0 => {
            Err(build_damage_fault(dir, CURRENT_SEGMENT_FILE, Damage::Removed))
        }
        opened => opened.during("open", path),
    }
}

/// Whether `journal.jsonl` is still the segment before the one the head speaks of.
pub(super) fn rename_is_due(dir: &Directory, head: Head) -> Result<bool, JournalFault> {
    if !head.awaits_rotation() {
        return Ok(false);
    }
    let before = archive_file_name(head.segment - 1);
    Ok(!dir.exists(&before).during("look for", || dir.path_of(&before))?)
}

fn build_damage_fault(dir: &Directory, name: &str, what: Damage) -> JournalFault {
    JournalFault::Damaged { file: dir.path_of(name), what }
}
