//! The head: how far the journal goes. It makes records cut off the end visible, and its file is the
//! lock that writers take.
//!
//! It is rewritten in place, never replaced: all writers must lock the same file, and an overwrite
//! of a few bytes works on a full disk too.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::record::{ChainLink, ContentHash};

/// File of the head.
pub(super) const HEAD_FILE: &str = "head";
const HEAD_TEXT_BYTES: usize = 161;

/// The last record, and where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The last record's number.
    pub(super) seq: u64,
    /// The segment that is written to.
    pub(super) segment: u32,
    /// Where the next record goes in it.
    pub(super) offset: u64,
    /// The last record's hash.
    pub(super) hash: ContentHash,
}

impl Head {
    /// Head of a journal without records.
    pub(super) const EMPTY_JOURNAL: Self =
        Self { seq: 0, segment: 1, offset: 0, hash: ContentHash::GENESIS_HASH };

    /// The head after one more record.
    pub(super) fn after(self, hash: ContentHash, length: u64) -> Self {
        let seq = self.seq.saturating_add(1);
        Self { seq, offset: self.offset.saturating_add(length), hash, ..self }
    }

    /// Whether this record is the next one.
    pub(super) fn is_followed_by(self, link: &ChainLink) -> bool {
        link.prev == self.hash && Some(link.seq) == self.seq.checked_add(1)
    }

    /// The head of a new segment that has no record yet.
    pub(super) fn rotated(self) -> Self {
        Self { segment: self.segment.saturating_add(1), offset: 0, ..self }
    }

    /// Whether the segment is a later one without any record yet.
    pub(super) fn awaits_rotation(self) -> bool {
        self.segment > 1 && self.offset == 0
    }

    /// The head in a file, or nothing if the file does not hold one.
    pub(super) fn read(file: &File) -> io::Result<Option<Self>> {
        let mut text = [0; HEAD_TEXT_BYTES + 1];
        let mut filled = 0;
        while filled < text.len() {
            match file.read_at(&mut text[filled..], filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(Self::parse(&text[..filled]))
    }

    pub(super) fn write(self, file: &File) -> io::Result<()> {
        file.write_all_at(self.text().as_bytes(), 0)
    }

    fn text(self) -> String {
        let Self { seq, segment, offset, hash } = self;
        format!(
            "stockade-journal 1 seq {seq:020} segment {segment:010} offset {offset:020} hash {hash}\n"
        )
    }

    /// Strict: what would not be written like this is not a head.
    fn parse(text: &[u8]) -> Option<Self> {
        let words: Vec<&str> = std::str::from_utf8(text).ok()?.split_ascii_whitespace().collect();
        let [_, _, _, seq, _, segment, _, offset, _, hash] = words[..] else { return None };
        let head = Self {
            seq: seq.parse().ok()?,
            segment: segment.parse().ok()?,
            offset: offset.parse().ok()?,
            hash: ContentHash::from_hex(hash.as_bytes())?,
        };
        (head.text().as_bytes() == text && head.segment > 0).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_and_nothing_else_does() {
        let head =
            Head { seq: u64::MAX, segment: u32::MAX, offset: 7, hash: ContentHash::GENESIS_HASH };
        let text = head.text();
        assert_eq!(text.len(), HEAD_TEXT_BYTES);
        assert_eq!(Head::parse(text.as_bytes()), Some(head));
        for wrong in [&text[1..], &text[..HEAD_TEXT_BYTES - 1], "", &text.replace(' ', "\t")] {
            assert_eq!(Head::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
