//! Puts a workspace's changes into a real tree: all of them or none, even if it is killed half-way.
//!
//! In order: what is wanted is chosen and checked; new contents are staged on the target's own file system;
//! what will be done is written down; each step is one rename that is undone by another; the end is written
//! down; what was replaced is dropped. After a kill the next process finds on disk how far it got, and
//! brings the tree back to before or leaves it at after. No symbolic link in the target is ever followed.

mod apply_log;
mod bases;
mod check;
mod choose;
mod execute;
mod intent;
mod recover;
mod stage;

use std::path::PathBuf;

use serde::Serialize;

use crate::changes::Layer;
use crate::clock::ClockStamp;
use crate::diff::{Change, ChangeKind, Diff};
use crate::error::FaultResult;
use crate::path::TreePath;
use crate::tree::OpenTree;

pub(crate) use apply_log::SettledPaths;
pub(crate) use bases::Bases;
use check::CheckLook;
use execute::Acted;
pub(crate) use intent::ApplyLedger;
use intent::Intent;
pub(crate) use recover::recover_apply;

/// What to apply, and where.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    /// Paths that are applied although they are held back, each with everything beneath it.
    pub include: Vec<TreePath>,
    /// The tree to change, instead of the one the workspace was made from. It must hold what the
    /// workspace began with wherever a change is applied.
    pub to: Option<PathBuf>,
    /// What was looked at. If that is not what was changed any more, in any byte, nothing is done: not
    /// even if it changes while it is being applied (C-23).
    pub seen: Option<Diff>,
}

/// How an `apply` ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Application {
    /// Everything that was not held back is in the tree now.
    Applied(Applied),
    /// Nothing was done: these paths are not what they were.
    Conflict {
        /// Each of them.
        conflicts: Vec<Conflict>,
    },
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// The paths that changed, those included that were so already.
    pub applied: Vec<TreePath>,
    /// The paths that were held back.
    pub held: Vec<TreePath>,
}

/// A path that changed underneath.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// Where.
    pub path: TreePath,
    /// What is the matter with it.
    pub reason: ConflictReason,
}

/// Why a change cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictReason {
    /// It changed since the workspace began.
    ChangedSince,
    /// It is gone.
    Gone,
    /// Something is there now that was not.
    AppearedSince,
    /// The directory it belongs in is gone or is none.
    NoDirectory,
    /// It is not what the workspace began with.
    NotTheBase,
}

impl ConflictReason {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::ChangedSince => "changed since the workspace began",
            Self::Gone => "is gone",
            Self::AppearedSince => "appeared since the workspace began",
            Self::NoDirectory => "has no directory to go in",
            Self::NotTheBase => "is not what the workspace began with",
        }
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.path, self.reason.words())
    }
}

/// The trees that an `apply` is between.
pub(crate) struct Trees<'a> {
    pub(crate) lower: &'a OpenTree,
    pub(crate) layer: &'a Layer,
    pub(crate) target: &'a OpenTree,
    /// Whether the target is another tree than the one beneath.
    pub(crate) elsewhere: bool,
    /// Since when a change beneath counts as another process's; nothing where no other process writes.
    pub(crate) start: Option<ClockStamp>,
    /// What of those changes was this workspace's own `apply`.
    pub(crate) settled: SettledPaths,
    /// What was beneath where there are changes, as far as it was noted.
    pub(crate) bases: Bases,
}

/// Applies what a diff says.
pub(crate) fn apply_diff(
    trees: &Trees<'_>,
    diff: &Diff,
    include: &[TreePath],
    ledger: &ApplyLedger,
) -> FaultResult<Application> {
    let chosen = choose::choose_changes(diff, include)?;
    let checked = check::check_changes(
        trees,
        &chosen.wanted,
        CheckLook::First { moved: moves_something(diff) },
    )?;
    if !checked.conflicts.is_empty() {
        return Ok(Application::Conflict { conflicts: checked.conflicts });
    }
    let applied = chosen.wanted.iter().map(|change| change.path.clone()).collect();
    let done = Application::Applied(Applied { applied, held: chosen.held });
    if checked.todo.is_empty() {
        return Ok(done);
    }
    let mut intent = stage::stage_changes(trees, &checked.todo, ledger)?;
    let finished = finish_apply(trees, &chosen.wanted, &mut intent, ledger);
    if let Ok(Acted::Done) = finished {
        recover::conclude_apply(trees.target, &intent, ledger)?;
        return Ok(done);
    }
    recover::roll_back(trees.target, &intent, ledger)?;
    match finished? {
        Acted::Done => Ok(done),
        Acted::Conflict(conflicts) => Ok(Application::Conflict { conflicts }),
    }
}

/// Whether the guest may have given something another name.
fn moves_something(diff: &Diff) -> bool {
    diff.changes.iter().any(|change| match change.kind {
        ChangeKind::Removed | ChangeKind::TypeChanged => true,
        ChangeKind::Added | ChangeKind::Changed | ChangeKind::ModeChanged => false,
    })
}

/// Everything between the first step and the word that all are done.
fn finish_apply(
    trees: &Trees<'_>,
    wanted: &[&Change],
    intent: &mut Intent,
    ledger: &ApplyLedger,
) -> FaultResult<Acted> {
    let again = check::check_changes(trees, wanted, CheckLook::Again)?;
    if !again.conflicts.is_empty() {
        return Ok(Acted::Conflict(again.conflicts));
    }
    let acted = execute::perform_actions(trees.target, intent)?;
    if let Acted::Done = acted {
        intent::commit_intent(intent, ledger)?;
    }
    Ok(acted)
}
