//! What `apply` itself did to the tree beneath. Its renames, done or undone, give files new change times,
//! and what it took away is gone; without this note the next `apply` would take both for another process's
//! work.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use stockade_fs::Survives;

use super::intent::{ApplyAct, ApplyAction, FileIdentity, Intent};
use crate::clock::ClockStamp;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::json::write_json;
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};

/// How this crate left each path it had to do with.
#[derive(Debug, Default)]
pub(crate) struct SettledPaths {
    left: HashMap<TreePath, Left>,
    /// What was taken away at some time, with all that was in it.
    taken: HashSet<TreePath>,
}

/// How one path was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Left {
    ino: u64,
    changed: ClockStamp,
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
pub(super) enum ApplyEnd {
    Done,
    Undone,
}

impl Left {
    fn of(stat: &Stat) -> Self {
        Self { ino: stat.st_ino, changed: ClockStamp::changed(stat) }
    }
}

impl SettledPaths {
    pub(super) fn load(dir: &Path) -> FaultResult<Self> {
        let path = settled_path(dir);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.step("read", path.display())?,
        };
        let note: Note = serde_json::from_slice(&bytes).map_err(|error| {
            WorkspaceFault::Damaged { path: path.display().to_string(), problem: error.to_string() }
        })?;
        Ok(Self { left: note.left.into_iter().collect(), taken: note.taken.into_iter().collect() })
    }

    pub(super) fn save(self, dir: &Path) -> FaultResult<()> {
        if self.left.is_empty() && self.taken.is_empty() {
            return Ok(());
        }
        let left = self.left.into_iter().collect();
        let note = Note { left, taken: self.taken.into_iter().collect() };
        write_json(&settled_path(dir), &note, Survives::Power)
    }

    /// Whether something changed since an instant by other hands than this crate's.
    pub(super) fn changed_since(&self, start: ClockStamp, path: &TreePath, stat: &Stat) -> bool {
        ClockStamp::changed(stat) >= start && self.left.get(path) != Some(&Left::of(stat))
    }

    /// What this crate left something at.
    pub(crate) fn existing_paths(&self) -> impl Iterator<Item = &TreePath> {
        self.left.keys()
    }

    /// Whether this crate took it away, alone or with a directory above it.
    pub(crate) fn has_removed(&self, path: &TreePath) -> bool {
        path.is_within_any(&self.taken)
    }

    /// Notes how everything that an intent names was left, and keeps the note.
    pub(super) fn note(
        dir: &Path,
        target: &OpenTree,
        intent: &Intent,
        end: ApplyEnd,
    ) -> FaultResult<()> {
        let mut settled = Self::load(dir)?;
        for action in &intent.steps {
            settled.note_action(target, action, end)?;
        }
        settled.save(dir)
    }

    fn note_action(
        &mut self,
        target: &OpenTree,
        action: &ApplyAction,
        end: ApplyEnd,
    ) -> FaultResult<()> {
        let path = &action.path;
        if end == ApplyEnd::Done && removes_entry(&action.act) {
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
fn removes_entry(act: &ApplyAct) -> bool {
    match act {
        ApplyAct::Take { .. } => true,
        ApplyAct::Swap { old, .. } => old.kind == NodeKind::Directory,
        ApplyAct::Place { .. } | ApplyAct::Mode { .. } => false,
    }
}

/// The state in which a step left its path, unless another process has changed it since.
fn state_after_step(act: &ApplyAct, now: Option<&Stat>, end: ApplyEnd) -> Option<Left> {
    let is = |ino: u64| now.filter(|stat| stat.st_ino == ino).map(Left::of);
    let was = |old: &FileIdentity| now.filter(|stat| FileIdentity::of(stat) == *old).map(Left::of);
    match (act, end) {
        (ApplyAct::Place { new } | ApplyAct::Swap { new, .. }, ApplyEnd::Done) => is(*new),
        (ApplyAct::Mode { of, .. }, ApplyEnd::Done | ApplyEnd::Undone) => is(*of),
        (ApplyAct::Take { old } | ApplyAct::Swap { old, .. }, ApplyEnd::Undone) => was(old),
        (ApplyAct::Take { .. }, ApplyEnd::Done) | (ApplyAct::Place { .. }, ApplyEnd::Undone) => {
            None
        }
    }
}

fn settled_path(dir: &Path) -> PathBuf {
    dir.join("settled.json")
}
