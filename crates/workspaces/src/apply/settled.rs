//! What `apply` itself did to the tree beneath. Its renames, done or undone, give files new change
//! times, and what it took away is gone; without this note the next `apply` would take both for
//! somebody else's work.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use super::intent::{Act, Action, Identity, Intent};
use crate::clock::Stamp;
use crate::fault::{Fault, Outcome, Step};
use crate::path::TreePath;
use crate::tree::{NodeKind, Tree};
use crate::whole::{self, Survives};

/// How this crate left each path it had to do with.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    left: HashMap<TreePath, Left>,
    /// What was taken away at some time, with all that was in it.
    taken: HashSet<TreePath>,
}

/// How one path was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Left {
    ino: u64,
    changed: Stamp,
}

/// The note on disk.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    left: Vec<(TreePath, Left)>,
    taken: Vec<TreePath>,
}

/// How an `apply` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Undone,
}

impl Left {
    fn of(stat: &Stat) -> Self {
        Self { ino: stat.st_ino, changed: Stamp::changed(stat) }
    }
}

impl Settled {
    pub(super) fn load(dir: &Path) -> Outcome<Self> {
        let path = file(dir);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.step("read", path.display())?,
        };
        let note: Note = serde_json::from_slice(&bytes).map_err(|error| Fault::Damaged {
            path: path.display().to_string(),
            problem: error.to_string(),
        })?;
        Ok(Self { left: note.left.into_iter().collect(), taken: note.taken.into_iter().collect() })
    }

    pub(super) fn save(self, dir: &Path) -> Outcome<()> {
        if self.left.is_empty() && self.taken.is_empty() {
            return Ok(());
        }
        let left = self.left.into_iter().collect();
        let note = Note { left, taken: self.taken.into_iter().collect() };
        whole::write(&file(dir), &note, Survives::Power)
    }

    /// Whether something changed since an instant by other hands than this crate's.
    pub(super) fn changed_since(&self, start: Stamp, path: &TreePath, stat: &Stat) -> bool {
        Stamp::changed(stat) >= start && self.left.get(path) != Some(&Left::of(stat))
    }

    /// What this crate left something at.
    pub(crate) fn there(&self) -> impl Iterator<Item = &TreePath> {
        self.left.keys()
    }

    /// Whether this crate took it away, alone or with a directory above it.
    pub(crate) fn took(&self, path: &TreePath) -> bool {
        path.is_within_any(&self.taken)
    }

    /// Notes how everything that an intent names was left, and keeps the note.
    pub(super) fn note(dir: &Path, target: &Tree, intent: &Intent, end: End) -> Outcome<()> {
        let mut settled = Self::load(dir)?;
        for action in &intent.steps {
            settled.action(target, action, end)?;
        }
        settled.save(dir)
    }

    fn action(&mut self, target: &Tree, action: &Action, end: End) -> Outcome<()> {
        let path = &action.path;
        if end == End::Done && removes_entry(&action.act) {
            self.left.remove(path);
            self.taken.insert(path.clone());
        }
        let now = target.stat(path).step("look at", path)?;
        if let Some(left) = state_after_step(&action.act, now.as_ref(), end) {
            self.left.insert(path.clone(), left);
        }
        let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_root()) else {
            return Ok(());
        };
        if let Some(stat) = target.stat(&parent).step("look at", &parent)? {
            self.left.insert(parent, Left::of(&stat));
        }
        Ok(())
    }
}

/// Whether a step takes something away for which nothing of its kind comes.
fn removes_entry(act: &Act) -> bool {
    match act {
        Act::Take { .. } => true,
        Act::Swap { old, .. } => old.kind == NodeKind::Directory,
        Act::Place { .. } | Act::Mode { .. } => false,
    }
}

/// How a step left its path, unless somebody else was there since.
fn state_after_step(act: &Act, now: Option<&Stat>, end: End) -> Option<Left> {
    let is = |ino: u64| now.filter(|stat| stat.st_ino == ino).map(Left::of);
    let was = |old: &Identity| now.filter(|stat| Identity::of(stat) == *old).map(Left::of);
    match (act, end) {
        (Act::Place { new } | Act::Swap { new, .. }, End::Done) => is(*new),
        (Act::Mode { of, .. }, End::Done | End::Undone) => is(*of),
        (Act::Take { old } | Act::Swap { old, .. }, End::Undone) => was(old),
        (Act::Take { .. }, End::Done) | (Act::Place { .. }, End::Undone) => None,
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("settled.json")
}
