//! How a file looked: enough to tell whether it has changed since.

use rustix::fs::{FileType, Stat};

use super::Side;

/// What kind of thing it is. Fifos, sockets and devices mean nothing elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StampKind {
    File,
    Directory,
    Symlink,
}

/// How it looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStamp {
    pub kind: StampKind,
    pub mode: u32,
    details: Option<Details>,
}

/// What a directory has not: its own changes with what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Details {
    size: i64,
    inode: u64,
    modified: (i64, u64),
    /// When anything about it changed, names and permissions included.
    changed: (i64, u64),
}

/// Permission bits that are copied: set-user-ID, set-group-ID and sticky are not.
pub(super) const PERMISSION_BITS: u32 = 0o777;

impl FileStamp {
    /// Nothing for what does not travel.
    pub fn of(stat: &Stat, side: Side) -> Option<Self> {
        let kind = stamp_kind(stat)?;
        let changed = (stat.st_ctime, stat.st_ctime_nsec);
        let details = Details {
            size: stat.st_size,
            inode: stat.st_ino,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: if side == Side::Far { changed } else { (0, 0) },
        };
        // A link has no permissions of its own.
        let mode = if kind == StampKind::Symlink {
            PERMISSION_BITS
        } else {
            stat.st_mode & PERMISSION_BITS
        };
        Some(Self { kind, mode, details: (kind != StampKind::Directory).then_some(details) })
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.details.as_ref().map_or(0, |details| u64::try_from(details.size).unwrap_or(0))
    }
}

pub(super) fn stamp_kind(stat: &Stat) -> Option<StampKind> {
    let found = FileType::from_raw_mode(stat.st_mode);
    let known = [
        (FileType::RegularFile, StampKind::File),
        (FileType::Directory, StampKind::Directory),
        (FileType::Symlink, StampKind::Symlink),
    ];
    known.into_iter().find(|(kind, _)| *kind == found).map(|(_, kind)| kind)
}
