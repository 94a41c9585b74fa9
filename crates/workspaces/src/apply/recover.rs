//! Ends an `apply` that another process began, or that failed: the tree is brought back to what it was,
//! unless everything had been done. May itself be killed at any instant and begun again.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use stockade_fs::{ClosedDirs, remove_entry};

use super::apply_log::ApplyEnd;
use super::execute::{RenameWay, rename_slot, set_mode};
use super::intent::{ApplyAct, ApplyAction, ApplyLedger, ApplyPhase, Intent, root_of};
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::path::TreePath;
use crate::tree::{OpenTree, stat_at};

/// Finishes or undoes what the ledger tells of. Nothing in it, nothing to do.
pub(crate) fn recover_apply(ledger: &ApplyLedger) -> FaultResult<()> {
    let Some(intent) = ledger.read()? else { return Ok(()) };
    let target = OpenTree::open(&intent.target).step("open", intent.target.display())?;
    if root_of(&target)? != intent.root {
        return Err(WorkspaceFault::Refused {
            path: intent.target.display().to_string(),
            problem: "is another directory than the one that was being changed",
            remedy: "put that one back in its place, or discard the workspace",
        });
    }
    match intent.phase {
        ApplyPhase::Staging => clear_stage(&target, &intent, ledger),
        ApplyPhase::Committed => conclude_apply(&target, &intent, ledger),
        ApplyPhase::Acting => roll_back(&target, &intent, ledger),
    }
}

/// After the word that all is done: what was replaced can go.
pub(super) fn conclude_apply(
    target: &OpenTree,
    intent: &Intent,
    ledger: &ApplyLedger,
) -> FaultResult<()> {
    ledger.settle(target, intent, ApplyEnd::Done)?;
    clear_stage(target, intent, ledger)
}

/// Undoes every step that was made.
pub(super) fn roll_back(
    target: &OpenTree,
    intent: &Intent,
    ledger: &ApplyLedger,
) -> FaultResult<()> {
    let stage = match super::execute::open_stage(target, intent) {
        // It is removed last of all, so everything was undone already.
        Err(WorkspaceFault::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return ledger.clear();
        }
        opened => opened?,
    };
    for action in intent.steps.iter().rev() {
        undo_action(target, &stage, action)
            .map_err(|fault| add_stage_path(fault, target, intent))?;
    }
    ledger.settle(target, intent, ApplyEnd::Undone)?;
    clear_stage(target, intent, ledger)
}

/// Says where what could not be put back is.
fn add_stage_path(fault: WorkspaceFault, target: &OpenTree, intent: &Intent) -> WorkspaceFault {
    let WorkspaceFault::Stuck { path, .. } = fault else { return fault };
    WorkspaceFault::Stuck { path, kept: target.path().join(&intent.stage).display().to_string() }
}

/// Removes the stage with all that is in it, then the note about it.
pub(super) fn clear_stage(
    target: &OpenTree,
    intent: &Intent,
    ledger: &ApplyLedger,
) -> FaultResult<()> {
    remove_entry(target, intent.stage.as_bytes(), ClosedDirs::Open)
        .step("remove", &intent.stage)?;
    ledger.clear()
}

fn undo_action(target: &OpenTree, stage: &OwnedFd, action: &ApplyAction) -> FaultResult<()> {
    let path = &action.path;
    let staged = stat_at(stage, action.slot.as_bytes()).step("look at", path)?;
    let staged = staged.map(|stat| stat.st_ino);
    match &action.act {
        ApplyAct::Mode { of, before, .. } => set_mode(target, path, *of, *before).map(|_| ()),
        ApplyAct::Place { new } if staged.is_none() => take_back(target, stage, action, *new),
        ApplyAct::Place { .. } => Ok(()),
        ApplyAct::Take { .. } if staged.is_some() => put_back(target, stage, action),
        ApplyAct::Take { .. } => Ok(()),
        ApplyAct::Swap { new, .. } if staged.is_some_and(|ino| ino != *new) => {
            swap_back(target, stage, action, *new)
        }
        ApplyAct::Swap { .. } => Ok(()),
    }
}

/// Takes a new entry out again. An entry that another process put in its place stays.
fn take_back(
    target: &OpenTree,
    stage: &OwnedFd,
    action: &ApplyAction,
    new: u64,
) -> FaultResult<()> {
    if inode_at(target, &action.path)? != Some(new) {
        return Ok(());
    }
    let flags = RenameFlags::NOREPLACE;
    match rename_slot(stage, &action.slot, target, &action.path, flags, RenameWay::In) {
        Err(Errno::NOENT) => Ok(()),
        moved => moved.step("put back", &action.path),
    }
}

fn put_back(target: &OpenTree, stage: &OwnedFd, action: &ApplyAction) -> FaultResult<()> {
    let flags = RenameFlags::NOREPLACE;
    match rename_slot(stage, &action.slot, target, &action.path, flags, RenameWay::Out) {
        Err(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(stuck_fault(action)),
        moved => moved.step("put back", &action.path),
    }
}

fn swap_back(
    target: &OpenTree,
    stage: &OwnedFd,
    action: &ApplyAction,
    new: u64,
) -> FaultResult<()> {
    match inode_at(target, &action.path)? {
        None => put_back(target, stage, action),
        Some(ino) if ino == new => {
            let flags = RenameFlags::EXCHANGE;
            rename_slot(stage, &action.slot, target, &action.path, flags, RenameWay::Out)
                .step("put back", &action.path)
        }
        Some(_) => Err(stuck_fault(action)),
    }
}

fn inode_at(target: &OpenTree, path: &TreePath) -> FaultResult<Option<u64>> {
    let Ok((dir, name)) = target.place(path) else { return Ok(None) };
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat.st_ino)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).step("look at", path),
    }
}

fn stuck_fault(action: &ApplyAction) -> WorkspaceFault {
    WorkspaceFault::Stuck { path: action.path.to_string(), kept: String::new() }
}
