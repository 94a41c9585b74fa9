//! Directories that git would take for a repository without their being called `.git`. Git run in one of
//! them executes what its `config`, `config.worktree` or hooks say.
//!
//! To git a directory is a repository if it has `HEAD` and either `objects` and `refs`, or a
//! `commondir` that says where those are. In such a directory everything is held back. Where there is
//! `HEAD` and any one thing of a repository's, those things are held back: a later change could bring
//! the rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::diff::Change;
use crate::held_back::{HeldReason, fold_name, in_git};
use crate::path::TreePath;
use crate::tree::OpenTree;

const GIT_HEAD_FILE: &[u8] = b"HEAD";
/// Files and directories of a repository beside `HEAD`, in lower case.
const GIT_REPOSITORY_FILES: [&[u8]; 9] = [
    b"objects",
    b"refs",
    b"commondir",
    b"gitdir",
    b"config",
    b"config.worktree",
    b"hooks",
    b"packed-refs",
    b"reftable",
];
const BARE_REPOSITORY_REASON: &str =
    "git would take the directory for a repository and run what its config names";

/// How much of a repository a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RepositoryShape {
    /// None.
    Plain,
    /// `HEAD` and something else of one.
    Begun,
    /// All that git asks for.
    Whole,
}

/// Holds back changes in directories that are repositories by their shape, with the changes. `.git`
/// itself has rules of its own. The changes are sorted by path.
pub(crate) fn hold_repository_changes(changes: &mut [Change], lower: &OpenTree) {
    let shapes = find_repository_shapes(changes, lower);
    if shapes.is_empty() {
        return;
    }
    for change in changes {
        let mut path = change.path.clone();
        while let Some((parent, name)) = path.split() {
            let held = match shapes.get(&parent) {
                Some(RepositoryShape::Whole) => true,
                Some(RepositoryShape::Begun) => is_part(name),
                Some(RepositoryShape::Plain) | None => false,
            };
            if held || shapes.get(&change.path) == Some(&RepositoryShape::Whole) {
                change.held.get_or_insert(HeldReason::RunsCode(BARE_REPOSITORY_REASON));
                break;
            }
            path = parent;
        }
    }
}

fn is_part(name: &[u8]) -> bool {
    name == GIT_HEAD_FILE || GIT_REPOSITORY_FILES.contains(&fold_name(name).as_slice())
}

/// Every directory above a change that is or could become a repository.
fn find_repository_shapes(
    changes: &[Change],
    lower: &OpenTree,
) -> BTreeMap<TreePath, RepositoryShape> {
    let mut names: BTreeMap<TreePath, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for change in changes {
        let mut path = change.path.clone();
        let mut brought = change.new.is_some();
        while let Some((parent, name)) = path.split() {
            let known = names.contains_key(&parent);
            let made = names.entry(parent.clone()).or_default();
            if brought {
                made.insert(name.to_vec());
            }
            if known {
                break;
            }
            // What holds a change is there: it is beneath, or a change of its own.
            (path, brought) = (parent, false);
        }
    }
    let shaped = names.into_iter().map(|(dir, made)| {
        let shape = read_repository_shape(&dir, &made, lower);
        (dir, shape)
    });
    shaped.filter(|(_, shape)| *shape != RepositoryShape::Plain).collect()
}

fn read_repository_shape(
    dir: &TreePath,
    made: &BTreeSet<Vec<u8>>,
    lower: &OpenTree,
) -> RepositoryShape {
    if dir.split().is_some_and(|(_, name)| fold_name(name) == b".git") {
        return RepositoryShape::Plain;
    }
    // Asked of the file system itself, which may not regard case.
    let below = |name: &[u8]| lower.stat(&dir.join(name)).is_ok_and(|stat| stat.is_some());
    let head = made.contains(GIT_HEAD_FILE) || below(GIT_HEAD_FILE);
    let head_in_any_case = head || made.iter().any(|name| fold_name(name) == b"head");
    if !head_in_any_case {
        return RepositoryShape::Plain;
    }
    let has = |mark: &[u8]| made.iter().any(|name| fold_name(name) == mark) || below(mark);
    if has(b"commondir") || (has(b"objects") && has(b"refs")) {
        return RepositoryShape::Whole;
    }
    // In lower case the name is a word like others, and such a directory may be anything. A repository's
    // own directories have a `HEAD` too: that of the reflog, those of remotes.
    if head && !in_git(dir) && GIT_REPOSITORY_FILES.iter().any(|mark| has(mark)) {
        RepositoryShape::Begun
    } else {
        RepositoryShape::Plain
    }
}
