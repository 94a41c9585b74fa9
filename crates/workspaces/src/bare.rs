//! Directories that git would take for a repository without their being called `.git`. Whoever runs
//! git in one of them runs what its `config` says.

use std::collections::BTreeSet;

use crate::diff::Change;
use crate::held::{HeldReason, in_git};
use crate::path::TreePath;
use crate::tree::Tree;

/// What git looks for.
const MARKS: [&[u8]; 3] = [b"HEAD", b"objects", b"refs"];
const WHY: &str = "git would take the directory for a repository and run what its config names";

/// Holds back everything in directories that the changes make into repositories. The changes are
/// sorted, so both lists are gone through once.
pub(crate) fn hold(changes: &mut [Change], lower: &Tree) {
    let mut tops = repositories(changes, lower).into_iter().peekable();
    let mut top: Option<TreePath> = None;
    for change in changes {
        while let Some(next) = tops.next_if(|next| *next <= change.path) {
            if top.as_ref().is_none_or(|top| !next.is_within(top)) {
                top = Some(next);
            }
        }
        if top.as_ref().is_some_and(|top| change.path.is_within(top)) {
            change.held.get_or_insert(HeldReason::RunsCode(WHY));
        }
    }
}

fn repositories(changes: &[Change], lower: &Tree) -> BTreeSet<TreePath> {
    let candidates: BTreeSet<TreePath> = changes.iter().filter_map(candidate).collect();
    let new = |path: &TreePath| {
        changes
            .binary_search_by(|change| change.path.cmp(path))
            .is_ok_and(|at| changes[at].new.is_some())
    };
    let there = |path: &TreePath| new(path) || lower.stat(path).is_ok_and(|stat| stat.is_some());
    candidates.into_iter().filter(|dir| MARKS.iter().all(|mark| there(&dir.join(mark)))).collect()
}

/// The directory that a change could make into a repository, or into another one. `.git` itself has
/// rules of its own.
fn candidate(change: &Change) -> Option<TreePath> {
    let (parent, name) = change.path.split()?;
    let inside = in_git(&parent);
    let telling = MARKS.contains(&name) || name == b"config" || name == b"hooks";
    let above = parent.split().filter(|(_, last)| *last == b"hooks").map(|(top, _)| top);
    (!inside && (telling || above.is_some())).then_some(above.unwrap_or(parent))
}
