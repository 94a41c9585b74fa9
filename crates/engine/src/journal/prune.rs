//! Removing finished files by age and size. What is removed is said in the chain itself, with the hash of
//! the last record that went: so verification tells a recorded removal from an unrecorded one.

use std::time::SystemTime;

use rustix::fs::OFlags;
use stockade_core::{Bytes, Result};
use stockade_fs::LOCK_TIMEOUT;

use super::event::Event;
use super::fault::{During, JournalFault};
use super::newest::BackwardLines;
use super::record::{self, ChainLink};
use super::verify::Damage;
use super::walk::list_archived_segments;
use super::writer::JournalWriter;
use super::{Journal, archive_file_name};

/// Which finished files go: the oldest first, as long as one of these holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prune {
    /// Their last record is older than this.
    pub before: Option<SystemTime>,
    /// All files together are larger than this.
    pub larger_than: Option<Bytes>,
}

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrunedSegments {
    /// How many files.
    pub files: u32,
    /// How large they were.
    pub bytes: u64,
}

/// A finished file.
struct FinishedSegment {
    segment: u32,
    bytes: u64,
    written: SystemTime,
}

impl Journal {
    /// What would be removed.
    pub fn prunable(&self, which: Prune) -> Result<PrunedSegments> {
        self.prune_when(which, false)
    }

    /// Removes it. The file that is written to stays.
    pub fn prune(&self, which: Prune) -> Result<PrunedSegments> {
        self.prune_when(which, true)
    }

    fn prune_when(&self, which: Prune, meant: bool) -> Result<PrunedSegments> {
        self.remove(which, meant).map_err(|fault| fault.during("prune the journal"))
    }

    fn remove(&self, which: Prune, meant: bool) -> Result<PrunedSegments, JournalFault> {
        let lock = self.lock(LOCK_TIMEOUT)?;
        let mut writer = JournalWriter::resume(&self.dir, &self.options, &lock)?;
        let finished = self.finished()?;
        let going = select_removable(which, &finished, writer.bytes());
        let Some(last) = going.last().filter(|_| meant) else { return Ok(sum_removed(going)) };
        let link = self.last_link(last.segment)?;
        let event = Event::Pruned { segment: last.segment, last: link.seq, hash: link.hash };
        writer.append(&record::encode_event(&event)?.ok_or(JournalFault::TooLong)?)?;
        // Killed in between it leaves newer ones of them, which verification takes as they are.
        for file in going {
            let name = archive_file_name(file.segment);
            self.dir.remove(&name).during("remove", || self.dir.path_of(&name))?;
        }
        Ok(sum_removed(going))
    }

    /// The oldest first, up to the first gap.
    fn finished(&self) -> Result<Vec<FinishedSegment>, JournalFault> {
        let mut found: Vec<FinishedSegment> = Vec::new();
        for segment in list_archived_segments(&self.dir)? {
            if found.last().is_some_and(|before| before.segment + 1 != segment) {
                break;
            }
            let name = archive_file_name(segment);
            let path = || self.dir.path_of(&name);
            let file = self.dir.open(&name, OFlags::RDONLY).during("open", path)?;
            let about = file.metadata().during("look at", path)?;
            let written = about.modified().during("look at", path)?;
            found.push(FinishedSegment { segment, bytes: about.len(), written });
        }
        Ok(found)
    }

    fn last_link(&self, segment: u32) -> Result<ChainLink, JournalFault> {
        let name = archive_file_name(segment);
        let path = || self.dir.path_of(&name);
        let file = self.dir.open(&name, OFlags::RDONLY).during("open", path)?;
        let line = BackwardLines::new(file, u64::MAX).and_then(|mut lines| lines.next());
        let line = line.during("read", path)?.unwrap_or_default();
        ChainLink::read(&line).map_err(|what: Damage| JournalFault::Damaged { file: path(), what })
    }
}

/// Those of the oldest that go.
fn select_removable(
    which: Prune,
    finished: &[FinishedSegment],
    current: u64,
) -> &[FinishedSegment] {
    let mut left = current + finished.iter().map(|file| file.bytes).sum::<u64>();
    let goes = |file: &&FinishedSegment| {
        let old = which.before.is_some_and(|before| file.written < before);
        let large = which.larger_than.is_some_and(|most| left > most.0);
        left -= file.bytes;
        old || large
    };
    let number = finished.iter().take_while(goes).count();
    &finished[..number]
}

fn sum_removed(files: &[FinishedSegment]) -> PrunedSegments {
    let bytes = files.iter().map(|file| file.bytes).sum();
    PrunedSegments { files: u32::try_from(files.len()).unwrap_or(u32::MAX), bytes }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_oldest_go_by_age_or_by_size_and_none_behind_one_that_stays() {
        let file = |segment, seconds| {
            let written = UNIX_EPOCH + Duration::from_secs(seconds);
            FinishedSegment { segment, bytes: 10, written }
        };
        let files = [file(1, 100), file(2, 200), file(3, 250)];
        let number = |before: Option<u64>, larger_than: Option<u64>| {
            let before = before.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            let which = Prune { before, larger_than: larger_than.map(Bytes) };
            select_removable(which, &files, 5).len()
        };
        assert_eq!(number(None, None), 0);
        assert_eq!(number(Some(160), None), 1);
        assert_eq!(number(Some(300), None), 3);
        assert_eq!(number(None, Some(35)), 0);
        assert_eq!(number(None, Some(34)), 1);
        assert_eq!(number(None, Some(0)), 3);
        assert_eq!(number(Some(160), Some(20)), 2);
    }
}
