//! A workspace that exists twice. Each end remembers how its own copy looked when the two were last the
//! same, sends what has changed since, and takes what the other one sends.
//!
//! What arrives never leads out of the tree, never follows a link, and never replaces what has changed
//! here meanwhile: that is a conflict, and is named.

mod beneath;
mod pack;
mod place;
mod scan;
mod stamp;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use stamp::Stamp;

/// Paths from the root, and how each looked.
type Manifest = BTreeMap<OsString, Stamp>;

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
        Self::At { path: shown(path), source: source.into() }
    }
}

/// A path as people can read it, whatever bytes it is made of.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// One of the two copies.
pub struct Tree {
    root: OwnedFd,
    side: Side,
    /// How it looked when the copies were last the same.
    base: Manifest,
    /// Whom new files belong to, where that is not who makes them.
    owner: Option<(u32, u32)>,
    /// How many bytes may arrive at once.
    most: u64,
}

impl Tree {
    /// A copy, of which nothing has been sent or taken yet.
    pub fn open(path: &Path, side: Side, most: u64) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        let found = std::fs::metadata(path)?;
        let own = rustix::process::geteuid();
        let owner =
            (own.is_root() && found.uid() != own.as_raw()).then(|| (found.uid(), found.gid()));
        Ok(Self { root, side, base: Manifest::new(), owner, most })
    }

    /// Writes what has changed here since the copies were last the same; nothing if nothing has.
    pub fn send(&mut self, out: impl Write) -> Result<(), TreeError> {
        let now = scan::scan(&self.root, self.side)?;
        pack::pack(self, &now, out)?;
        self.base = now;
        Ok(())
    }

    /// Takes what has changed in the other copy. Answers the paths that had changed here too, which
    /// are left as they are.
    pub fn take(&mut self, input: impl Read) -> Result<BTreeSet<String>, TreeError> {
        place::place(self, input)
    }
}
