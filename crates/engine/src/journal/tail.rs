//! What lies beyond the head. A writer that dies leaves at most one record there, whole or torn: the next
//! writer takes it over or cuts it off. Anything else did not come from a writer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::head::Head;
use super::record::{ChainLink, MAX_LINE};
use super::verify::Damage;

/// What the current segment holds beyond the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing.
    None,
    /// The beginning of a record that was never reported as written.
    Torn,
    /// One whole record that follows the head's, and its length.
    Whole(ChainLink, u64),
    /// Something no writer leaves, or less than the head says.
    Damaged(Damage),
}

impl Tail {
    /// Looks at the current segment. The caller holds the lock.
    pub(super) fn of(current: &File, head: Head) -> io::Result<Self> {
        let size = current.metadata()?.len();
        match size.checked_sub(head.offset) {
            None => Ok(Self::Damaged(Damage::Truncated)),
            Some(0) => Ok(Self::None),
            Some(length) if length > MAX_LINE as u64 => Ok(Self::Damaged(Damage::Malformed)),
            Some(length) => {
                let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
                current.read_exact_at(&mut bytes, head.offset)?;
                Ok(Self::judge(&bytes, head))
            }
        }
    }

    fn judge(bytes: &[u8], head: Head) -> Self {
        match bytes.iter().position(|byte| *byte == b'\n') {
            None => Self::Torn,
            Some(end) if end + 1 < bytes.len() => Self::Damaged(Damage::Changed),
            Some(end) => match ChainLink::read(&bytes[..end]) {
                Ok(link) if head.is_followed_by(&link) => Self::Whole(link, bytes.len() as u64),
                Ok(_) => Self::Damaged(Damage::Changed),
                Err(damage) => Self::Damaged(damage),
            },
        }
    }
}
