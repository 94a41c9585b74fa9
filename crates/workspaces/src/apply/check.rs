//! Whether the target still is what the changes were made to.

use std::collections::HashSet;

use rustix::fs::Stat;

use super::intent::FileIdentity;
use super::{Conflict, ConflictReason, Trees};
use crate::changes::Layer;
use crate::clock::ClockStamp;
use crate::content;
use crate::diff::{Change, ChangeKind};
use crate::error::{FaultResult, FaultStep};
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};
use crate::walk::visit_tree;

/// What is left to do, and what stands against it.
#[derive(Default)]
pub(super) struct Checked<'a> {
    pub(super) todo: Vec<Todo<'a>>,
    pub(super) conflicts: Vec<Conflict>,
}

/// A change to make, and what is in its place now.
pub(super) struct Todo<'a> {
    pub(super) change: &'a Change,
    pub(super) now: Option<FileIdentity>,
}

/// When it is looked.
#[derive(Clone, Copy)]
pub(super) enum CheckLook {
    /// Before anything is done.
    First {
        /// Whether the guest may have given something another name.
        moved: bool,
    },
    /// Just before the first step, when the stage is there already.
    Again,
}

enum ChangeVerdict {
    Free,
    /// The tree has this change already.
    Done,
    Against(ConflictReason),
}

/// Looks at the place of every change.
pub(super) fn check_changes<'a>(
    trees: &Trees<'_>,
    wanted: &[&'a Change],
    look: CheckLook,
) -> FaultResult<Checked<'a>> {
    let mut checked = Checked::default();
    let mut made = HashSet::new();
    for change in wanted {
        let now = trees.target.stat(&change.path).step("look at", &change.path)?;
        match judge_change(trees, change, now.as_ref(), &made, look)? {
            ChangeVerdict::Free => {
                checked.todo.push(Todo { change, now: now.as_ref().map(FileIdentity::of) });
            }
            ChangeVerdict::Done => {}
            ChangeVerdict::Against(reason) => {
                checked.conflicts.push(Conflict { path: change.path.clone(), reason });
            }
        }
        if change.has_new_kind(NodeKind::Directory) {
            made.insert(&change.path);
        }
    }
    Ok(checked)
}

fn judge_change(
    trees: &Trees<'_>,
    change: &Change,
    now: Option<&Stat>,
    made: &HashSet<&TreePath>,
    look: CheckLook,
) -> FaultResult<ChangeVerdict> {
    if let Some(reason) = changed_beneath(trees, change, look)? {
        return Ok(ChangeVerdict::Against(reason));
    }
    if trees.elsewhere && is_done(trees, change, now)? {
        return Ok(ChangeVerdict::Done);
    }
    let against = match (change.old.is_some(), now) {
        (true, None) => Some(ConflictReason::Gone),
        (true, Some(now)) => check_replaced(trees, change, now)?,
        (false, Some(_)) => Some(ConflictReason::AppearedSince),
        (false, None) => check_parent(trees.target, &change.path, made)?,
    };
    Ok(against.map_or(ChangeVerdict::Free, ChangeVerdict::Against))
}

/// Whether what the change was made to is no longer known, since it changed meanwhile.
fn changed_beneath(
    trees: &Trees<'_>,
    change: &Change,
    look: CheckLook,
) -> FaultResult<Option<ConflictReason>> {
    let Some(start) = trees.start else { return Ok(None) };
    let path = &change.path;
    let Some(stat) = trees.lower.stat(path).step("look at", path)? else {
        let gone = change.was_below && was_removed(trees, path, start, look)?;
        return Ok(gone.then_some(ConflictReason::Gone));
    };
    let settled = &trees.settled;
    let mut recent = settled.changed_since(start, path, &stat)
        && !trees.bases.is_same(trees.lower, path, &stat)?;
    if !recent && takes_a_directory(change) && NodeKind::of(&stat) == NodeKind::Directory {
        visit_tree(trees.lower, path, |path, stat| {
            recent |= settled.changed_since(start, path, stat);
            Ok(())
        })?;
    }
    let new = change.old.is_none();
    let reason = if new { ConflictReason::AppearedSince } else { ConflictReason::ChangedSince };
    Ok(recent.then_some(reason))
}

/// Whether another process removed something that the guest changed. A copy's index says so; of an overlay
/// it is only known that the file came from beneath, from there or from elsewhere.
fn was_removed(
    trees: &Trees<'_>,
    path: &TreePath,
    start: ClockStamp,
    look: CheckLook,
) -> FaultResult<bool> {
    let moved = match (trees.layer, look) {
        (Layer::Copy(..), _) => return Ok(true),
        // The stage itself is a new entry of the root.
        (Layer::Upper(_), CheckLook::Again) => return Ok(false),
        (Layer::Upper(_), CheckLook::First { moved }) => moved,
    };
    let Some((parent, _)) = path.split() else { return Ok(false) };
    let above = trees.lower.stat(&parent).step("look at", &parent)?;
    let changed = |stat| trees.settled.changed_since(start, &parent, &stat);
    Ok(!moved && above.is_none_or(changed))
}

fn takes_a_directory(change: &Change) -> bool {
    change.has_old_kind(NodeKind::Directory) && !change.has_new_kind(NodeKind::Directory)
}

/// Whether another tree has at a path something other than what the workspace began with.
fn check_replaced(
    trees: &Trees<'_>,
    change: &Change,
    now: &Stat,
) -> FaultResult<Option<ConflictReason>> {
    if !change.has_old_kind(NodeKind::of(now)) {
        return Ok(Some(ConflictReason::NotTheBase));
    }
    if !trees.elsewhere {
        return Ok(None);
    }
    let same = match takes_a_directory(change) {
        true => same_tree(trees.lower, trees.target, &change.path)?,
        false => same_entry(trees.lower, trees.target, &change.path)?,
    };
    Ok((!same).then_some(ConflictReason::NotTheBase))
}

/// Whether another tree has the change already.
fn is_done(trees: &Trees<'_>, change: &Change, now: Option<&Stat>) -> FaultResult<bool> {
    let (Some(new), Some(now)) = (change.new, now) else {
        return Ok(change.new.is_none() && now.is_none());
    };
    if new.kind != NodeKind::of(now) || change.kind == ChangeKind::ModeChanged {
        return Ok(new.kind == NodeKind::of(now) && new.mode == now.st_mode & 0o7777);
    }
    same_entry(trees.layer.tree(), trees.target, &change.path)
}

/// Whether a new entry has no directory to go in.
fn check_parent(
    target: &OpenTree,
    path: &TreePath,
    made: &HashSet<&TreePath>,
) -> FaultResult<Option<ConflictReason>> {
    let Some((parent, _)) = path.split() else { return Ok(None) };
    if made.contains(&parent) {
        return Ok(None);
    }
    let above = target.stat(&parent).step("look at", &parent)?;
    let there = above.is_some_and(|stat| NodeKind::of(&stat) == NodeKind::Directory);
    Ok((!there).then_some(ConflictReason::NoDirectory))
}

/// Whether two trees have the same at a path: of directories only that they are.
fn same_entry(one: &OpenTree, other: &OpenTree, path: &TreePath) -> FaultResult<bool> {
    let kind = |tree: &OpenTree| -> FaultResult<Option<NodeKind>> {
        Ok(tree.stat(path).step("look at", path)?.as_ref().map(NodeKind::of))
    };
    let (Some(left), Some(right)) = (kind(one)?, kind(other)?) else { return Ok(false) };
    if left != right {
        return Ok(false);
    }
    match left {
        NodeKind::Directory => Ok(true),
        NodeKind::Special => Ok(false),
        NodeKind::Symlink => {
            Ok(one.link(path).step("read", path)? == other.link(path).step("read", path)?)
        }
        NodeKind::File => {
            let (one, other) =
                (one.file(path).step("open", path)?, other.file(path).step("open", path)?);
            content::has_same_content(&one, &other).step("compare", path)
        }
    }
}

fn same_tree(one: &OpenTree, other: &OpenTree, top: &TreePath) -> FaultResult<bool> {
    let mut same = same_entry(one, other, top)?;
    let (mut left, mut right) = (0usize, 0usize);
    visit_tree(one, top, |path, _| {
        left += 1;
        same = same && same_entry(one, other, path)?;
        Ok(())
    })?;
    if !same {
        return Ok(false);
    }
    visit_tree(other, top, |_, _| {
        right += 1;
        Ok(())
    })?;
    Ok(left == right)
}
