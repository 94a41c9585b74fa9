//! Directories that git would take for a repository without their being called `.git`. Whoever runs
//! git in one of them runs what its `config` says.

use std::collections::BTreeSet;

use crate::diff::Change;
use crate::held::HeldReason;
use crate::path::TreePath;
use crate::tree::Tree;

/// What git looks for.
const MARKS: [&[u8]; 3] = [b"HEAD", b"objects", b"refs"];
const WHY: &str = "git would take the directory for a repository and run what its config names";

/// Holds back everything in directories that the changes make into repositories.
pub(crate) fn hold(changes: &mut [Change], lower: &Tree) {
    let tops = repositories(changes, lower);
    if tops.is_empty() {
        return;
    }
    for change in changes {
        if tops.iter().any(|top| change.path.is_within(top)) {
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
    let inside = parent.names().any(|name| name.eq_ignore_ascii_case(b".git"));
    let telling = MARKS.contains(&name) || name == b"config" || name == b"hooks";
    let above = parent.split().filter(|(_, last)| *last == b"hooks").map(|(top, _)| top);
    (!inside && (telling || above.is_some())).then_some(above.unwrap_or(parent))
}
