//! What `apply` itself did to the tree beneath. Its renames, done or undone, give files new change
//! times; without this note the next `apply` would take them for somebody else's work.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use super::intent::{Act, Action, Identity, Intent};
use crate::clock::Stamp;
use crate::fault::{Fault, Outcome, Step};
use crate::path::TreePath;
use crate::tree::Tree;
use crate::whole::{self, Survives};

/// How this crate left each path it had to do with.
#[derive(Debug, Default)]
pub(crate) struct Settled(HashMap<TreePath, Left>);

/// How one path was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Left {
    /// With this file number and change time.
    As { ino: u64, changed: Stamp },
    /// With nothing there.
    Removed,
}

impl Left {
    fn of(stat: &Stat) -> Self {
        Self::As { ino: stat.st_ino, changed: Stamp::changed(stat) }
    }
}

impl Settled {
    pub(super) fn load(dir: &Path) -> Outcome<Self> {
        let path = file(dir);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.step("read", path.display())?,
        };
        let list: Vec<(TreePath, Left)> = serde_json::from_slice(&bytes).map_err(|error| {
            Fault::Damaged { path: path.display().to_string(), problem: error.to_string() }
        })?;
        Ok(Self(list.into_iter().collect()))
    }

    /// Whether something changed since an instant by other hands than this crate's.
    pub(super) fn changed_since(&self, start: Stamp, path: &TreePath, stat: &Stat) -> bool {
        Stamp::changed(stat) >= start && self.0.get(path) != Some(&Left::of(stat))
    }

    /// What this crate left something at.
    pub(crate) fn there(&self) -> impl Iterator<Item = &TreePath> {
        self.0.iter().filter(|(_, left)| **left != Left::Removed).map(|(path, _)| path)
    }

    /// Whether this crate took it away.
    pub(super) fn removed(&self, path: &TreePath) -> bool {
        self.0.get(path) == Some(&Left::Removed)
    }

    /// Notes how everything that an intent names was left, and keeps the note.
    pub(super) fn note(dir: &Path, target: &Tree, intent: &Intent, end: End) -> Outcome<()> {
        let mut settled = Self::load(dir)?;
        for action in &intent.steps {
            settled.action(target, action, end)?;
        }
        settled.save(dir)
    }

    pub(super) fn save(self, dir: &Path) -> Outcome<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let list: Vec<_> = self.0.into_iter().collect();
        whole::write(&file(dir), &list, Survives::Power)
    }

    fn action(&mut self, target: &Tree, action: &Action, end: End) -> Outcome<()> {
        let path = &action.path;
        let now = target.stat(path).step("look at", path)?;
        if let Some(left) = left(&action.act, now.as_ref(), end) {
            self.0.insert(path.clone(), left);
        }
        let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_root()) else {
            return Ok(());
        };
        if let Some(stat) = target.stat(&parent).step("look at", &parent)? {
            self.0.insert(parent, Left::of(&stat));
        }
        Ok(())
    }
}

/// How an `apply` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Undone,
}

/// How a step left its path, unless somebody else was there since.
fn left(act: &Act, now: Option<&Stat>, end: End) -> Option<Left> {
    let is = |ino: u64| now.filter(|stat| stat.st_ino == ino).map(Left::of);
    let was = |old: &Identity| now.filter(|stat| Identity::of(stat) == *old).map(Left::of);
    match (act, end) {
        (Act::Place { new } | Act::Swap { new, .. }, End::Done) => is(*new),
        (Act::Take { .. }, End::Done) => now.is_none().then_some(Left::Removed),
        (Act::Mode { of, .. }, End::Done | End::Undone) => is(*of),
        (Act::Take { old } | Act::Swap { old, .. }, End::Undone) => was(old),
        (Act::Place { .. }, End::Undone) => None,
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("settled.json")
}
