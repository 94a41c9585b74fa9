//! Which changes are applied: all that are not held back, and those that were named.

use crate::diff::{Change, Diff};
use crate::error::{FaultResult, WorkspaceFault};
use crate::path::TreePath;

/// The changes to apply, and the paths of the others.
pub(super) struct Chosen<'a> {
    pub(super) wanted: Vec<&'a Change>,
    pub(super) held: Vec<TreePath>,
}

/// Chooses. A name that stands for no change is refused, since it may be a slip.
pub(super) fn choose_changes<'a>(diff: &'a Diff, include: &[TreePath]) -> FaultResult<Chosen<'a>> {
    if let Some(idle) = include.iter().find(|path| !stands_for_something(diff, path)) {
        return Err(WorkspaceFault::Refused {
            path: idle.to_string(),
            problem: "is named, but nothing changed there",
            remedy: "name paths as `workspace diff` lists them",
        });
    }
    let (wanted, held): (Vec<_>, Vec<_>) =
        diff.changes.iter().partition(|change| change.is_wanted(include));
    Ok(Chosen { wanted, held: held.iter().map(|change| change.path.clone()).collect() })
}

fn stands_for_something(diff: &Diff, path: &TreePath) -> bool {
    !path.is_root() && diff.changes.iter().any(|change| change.path.is_within(path))
}
