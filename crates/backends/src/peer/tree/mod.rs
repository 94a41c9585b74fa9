//! A workspace that exists twice. Each end remembers how its own copy looked when the two were last the
//! same, sends what has changed since, and takes what the other one sends.
//!
//! What arrives never leads out of the tree, never follows a link, and never replaces what has changed
//! here meanwhile: that is a conflict, and is named.

mod beneath;
mod draft;
mod holes;
mod pack;
mod scan;
mod stamp;
#[cfg(test)]
mod tests;
mod unpack;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use stamp::FileStamp;

/// Paths from the root, and how each looked.
type TreeManifest = BTreeMap<OsString, FileStamp>;

/// Most entries of a tree: both ends keep them in memory.
const MAX_TREE_ENTRIES: usize = 1_000_000;
/// Most bytes of all paths of a tree together, which both ends keep too.
const MAX_TOTAL_PATH_BYTES: usize = 64 << 20;
/// Most conflicts that are reported: with more, the two ends have diverged long before.
const MAX_CONFLICTS: usize = 4096;
/// Overhead of an archive beside the files in it: its headers.
const ARCHIVE_OVERHEAD_BYTES: u64 = 256 << 20;

/// Which of the two copies this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The caller's own directory. Links to its files that come and go elsewhere are no change.
    Near,
    /// The copy, in which the guest works.
    Far,
}

/// Why a tree could not be sent or taken.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The operating system would not.
    #[error("`{path}`: {source}")]
    At {
        /// Where.
        path: String,
        /// What it said.
        source: io::Error,
    },
    /// What arrived is no archive.
    #[error("the archive cannot be read: {0}")]
    Archive(#[from] io::Error),
    /// What arrived is not to be had.
    #[error("`{path}` {what}")]
    Refused {
        /// Where.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// More than a workspace may have.
    #[error("there is more of it than {0}")]
    TooLarge(String),
}

impl TreeError {
    fn at(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::At { path: escape_path(path), source: source.into() }
    }
}

/// A path in readable form, also where its bytes are not text.
fn escape_path(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// What had changed in this copy too, and was left as it is: which entry of the archive, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The number of the entry.
    pub entry: u32,
    /// Its path, as people can read it.
    pub path: String,
}

/// What was sent and not yet taken over there.
struct SentManifest {
    /// How everything looked.
    now: TreeManifest,
    /// The path of each entry.
    entries: Vec<OsString>,
}

/// One of the two copies.
pub struct Tree {
    root: OwnedFd,
    side: Side,
    /// How it looked when the copies were last the same.
    base: TreeManifest,
    sent: Option<SentManifest>,
    /// Owner of new files, where that is not this process's user.
    owner: Option<(u32, u32)>,
    /// How much larger it may get by what arrives at once.
    growth: u64,
    /// Whether what arrives next is all of the other copy.
    awaits_all: bool,
}

impl Tree {
    /// A copy, of which nothing has been sent or taken yet.
    pub fn open(path: &Path, side: Side, growth: u64) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        let found = std::fs::metadata(path)?;
        let own = rustix::process::geteuid();
        let owner =
            (own.is_root() && found.uid() != own.as_raw()).then(|| (found.uid(), found.gid()));
        Ok(Self {
            root,
            side,
            base: TreeManifest::new(),
            sent: None,
            owner,
            growth,
            awaits_all: false,
        })
    }

    /// Writes what has changed here since the copies were last the same; nothing if nothing has. They
    /// are the same again only once it was [taken over](Self::agreed).
    pub fn send(&mut self, out: impl Write) -> Result<(), TreeError> {
        self.sent = None;
        let now = scan::scan_tree(&self.root, self.side)?;
        let entries = pack::pack_changes(self, &now, out)?;
        self.sent = Some(SentManifest { now, entries });
        Ok(())
    }

    /// What was sent last was taken over there, but for these entries: what is here is still a change.
    /// Answers the paths of those.
    pub fn agreed(&mut self, except: &[u32]) -> BTreeSet<String> {
        let Some(SentManifest { mut now, entries }) = self.sent.take() else {
            return BTreeSet::new();
        };
        let named = |entry: &u32| entries.get(usize::try_from(*entry).ok()?);
        let left: BTreeSet<_> = except.iter().filter_map(named).collect();
        for path in &left {
            match self.base.remove(*path) {
                Some(before) => now.insert((*path).clone(), before),
                None => now.remove(*path),
            };
        }
        self.base = now;
        left.into_iter().map(|path| escape_path(Path::new(path))).collect()
    }

    /// The other copy is one that nothing is known of: what is sent next is everything.
    pub fn forget(&mut self) {
        self.base.clear();
    }

    /// The other copy is one that nothing is known of, and this one is to become the same, as it looks
    /// now: what is taken next is everything, and what is not in it goes.
    pub fn give_way(&mut self) -> Result<(), TreeError> {
        self.base = scan::scan_tree(&self.root, self.side)?;
        self.awaits_all = true;
        Ok(())
    }

    /// Whether it still has to become the same.
    pub fn gives_way(&self) -> bool {
        self.awaits_all
    }

    /// Takes what has changed in the other copy. Answers what had changed here too, which is left as it
    /// is.
    pub fn take(&mut self, input: impl Read) -> Result<Vec<Conflict>, TreeError> {
        unpack::place_archive(self, input)
    }

    /// The longest archive that can be in order: everything there is and may get, and its own words.
    fn max_archive_bytes(&self) -> u64 {
        let sizes = self.base.values().map(FileStamp::size);
        sizes.fold(self.growth.saturating_add(ARCHIVE_OVERHEAD_BYTES), u64::saturating_add)
    }
}

/// Counts what is remembered, so that it has an end.
#[derive(Default)]
struct Count {
    entries: usize,
    paths: usize,
}

impl Count {
    fn add_path(&mut self, path: &Path) -> Result<(), TreeError> {
        self.entries += 1;
        self.paths += path.as_os_str().len();
        if self.entries > MAX_TREE_ENTRIES {
            return Err(TreeError::TooLarge(format!("{MAX_TREE_ENTRIES} files")));
        }
        if self.paths > MAX_TOTAL_PATH_BYTES {
            return Err(TreeError::TooLarge(format!(
                "{MAX_TOTAL_PATH_BYTES} bytes in the paths of its files"
            )));
        }
        Ok(())
    }
}
