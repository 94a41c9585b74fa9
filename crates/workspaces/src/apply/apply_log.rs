//! What `apply` itself did to the tree beneath. Its renames, done or undone, give files new change times,
//! and what it took away is gone; without this note the next `apply` would take both for another process's
//! work. The contents that it brought are noted too: while the guest leaves such a file alone, it is no
//! change any more, whatever the user does to it in the tree. Content that was not applied is never left out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use stockade_fs::Survives;

use super::intent::{ApplyAct, ApplyAction, FileIdentity, Intent};
use crate::changes::Layer;
use crate::clock::ClockStamp;
use crate::diff::{Change, ChangeKind, Diff, Node};
use crate::digest::ContentDigest;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::held_back::HeldReason;
use crate::json::write_json;
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};

/// How this crate left each path it had to do with.
#[derive(Debug, Default)]
pub(crate) struct SettledPaths {
    left: HashMap<TreePath, Left>,
    /// What was taken away at some time, with all that was in it.
    taken: HashSet<TreePath>,
    /// What the layer held where a file or link of it was applied last.
    applied: HashMap<TreePath, AppliedContent>,
}

/// A file or symbolic link of the layer, as it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppliedContent {
    kind: NodeKind,
    mode: u32,
    digest: String,
}

impl AppliedContent {
    pub(super) fn new(node: Node, digest: ContentDigest) -> Self {
        Self { kind: node.kind, mode: node.mode, digest: digest.to_string() }
    }
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
    /// Notes of older versions have none.
    #[serde(default)]
    applied: Vec<(TreePath, AppliedContent)>,
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
        Ok(Self {
            left: note.left.into_iter().collect(),
            taken: note.taken.into_iter().collect(),
            applied: note.applied.into_iter().collect(),
        })
    }

    pub(super) fn save(self, dir: &Path) -> FaultResult<()> {
        if self.left.is_empty() && self.taken.is_empty() && self.applied.is_empty() {
            return Ok(());
        }
        let note = Note {
            left: self.left.into_iter().collect(),
            taken: self.taken.into_iter().collect(),
            applied: self.applied.into_iter().collect(),
        };
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

    /// Leaves out of a diff what was applied and is in the layer as it was applied.
    pub(crate) fn remove_applied_changes(&self, layer: &Layer, diff: &mut Diff) -> FaultResult<()> {
        if self.applied.is_empty() {
            return Ok(());
        }
        let mut new_directory: Option<TreePath> = None;
        for change in std::mem::take(&mut diff.changes) {
            // A directory that the user removed is still a change, and must not come back empty.
            let comes_along =
                new_directory.as_ref().is_some_and(|above| change.path.is_within(above));
            if !comes_along {
                if self.is_applied(layer, &change)? {
                    continue;
                }
                let makes_directory =
                    change.has_new_kind(NodeKind::Directory) && makes_entry(change.kind);
                new_directory = makes_directory.then(|| change.path.clone());
            }
            diff.changes.push(change);
        }
        Ok(())
    }

    /// Whether a change is of a file or link that is in the layer as it was applied.
    fn is_applied(&self, layer: &Layer, change: &Change) -> FaultResult<bool> {
        let path = &change.path;
        let (Some(applied), Some(new)) = (self.applied.get(path), change.new) else {
            return Ok(false);
        };
        let unreadable = change.held == Some(HeldReason::OutOfReach);
        if unreadable || change.kind == ChangeKind::TypeChanged {
            return Ok(false);
        }
        if (applied.kind, applied.mode) != (new.kind, new.mode) {
            return Ok(false);
        }
        let digest = match (change.digest, new.kind) {
            (Some(digest), _) => digest,
            (None, NodeKind::File) => {
                ContentDigest::of_file(&layer.file(path)?).step("read", path)?
            }
            (None, NodeKind::Symlink) => {
                ContentDigest::of_bytes(&layer.tree().link(path).step("read", path)?)
            }
            (None, NodeKind::Directory | NodeKind::Special) => return Ok(false),
        };
        Ok(applied.digest == digest.to_string())
    }

    /// Notes how everything that an intent names was left, and keeps the note.
    pub(super) fn note(
        dir: &Path,
        target: &OpenTree,
        intent: &Intent,
        end: ApplyEnd,
    ) -> FaultResult<()> {
        let mut settled = Self::load(dir)?;
        if end == ApplyEnd::Done {
            settled.forget_removed_contents(intent);
        }
        for action in &intent.steps {
            settled.note_action(target, action, end)?;
        }
        settled.save(dir)
    }

    /// Forgets what was applied where an intent takes something away, with all that was in it: made
    /// again, it is a change again.
    fn forget_removed_contents(&mut self, intent: &Intent) {
        let removing = intent.steps.iter().filter(|action| removes_entry(&action.act));
        let removed: HashSet<_> = removing.map(|action| action.path.clone()).collect();
        self.applied.retain(|path, _| !path.is_within_any(&removed));
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
        if end == ApplyEnd::Done {
            match &action.applied {
                Some(applied) => drop(self.applied.insert(path.clone(), applied.clone())),
                None => drop(self.applied.remove(path)),
            }
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

/// Whether a change puts something where nothing of its kind is.
fn makes_entry(kind: ChangeKind) -> bool {
    match kind {
        ChangeKind::Added | ChangeKind::TypeChanged => true,
        ChangeKind::Changed | ChangeKind::Removed | ChangeKind::ModeChanged => false,
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
