//! Ends an `apply` that somebody else began, or that failed: the tree is brought back to what it was,
//! unless everything had been done. May itself be killed at any instant and begun again.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::act::{Way, rename, set_mode};
use super::intent::{Act, Action, Intent, Ledger, Phase, root_of};
use super::settled::End;
use crate::fault::{Fault, Outcome, Step};
use crate::path::TreePath;
use crate::remove::remove;
use crate::tree::{Tree, stat_at};

/// Finishes or undoes what the ledger tells of. Nothing in it, nothing to do.
pub(crate) fn recover(ledger: &Ledger) -> Outcome<()> {
    let Some(intent) = ledger.read()? else { return Ok(()) };
    let target = Tree::open(&intent.target).step("open", intent.target.display())?;
    if root_of(&target)? != intent.root {
        return Err(Fault::Refused {
            path: intent.target.display().to_string(),
            problem: "is another directory than the one that was being changed",
            remedy: "put that one back in its place, or discard the workspace",
        });
    }
    match intent.phase {
        Phase::Staging => clear(&target, &intent, ledger),
        Phase::Committed => conclude(&target, &intent, ledger),
        Phase::Acting => roll_back(&target, &intent, ledger),
    }
}

/// After the word that all is done: what was replaced can go.
pub(super) fn conclude(target: &Tree, intent: &Intent, ledger: &Ledger) -> Outcome<()> {
    ledger.settle(target, intent, End::Done)?;
    clear(target, intent, ledger)
}

/// Undoes every step that was made.
pub(super) fn roll_back(target: &Tree, intent: &Intent, ledger: &Ledger) -> Outcome<()> {
    let stage = match super::act::open_stage(target, intent) {
        // It is removed last of all, so everything was undone already.
        Err(Fault::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return ledger.clear();
        }
        opened => opened?,
    };
    for action in intent.steps.iter().rev() {
        undo(target, &stage, action).map_err(|fault| add_stage_path(fault, target, intent))?;
    }
    ledger.settle(target, intent, End::Undone)?;
    clear(target, intent, ledger)
}

/// Says where what could not be put back is.
fn add_stage_path(fault: Fault, target: &Tree, intent: &Intent) -> Fault {
    let Fault::Stuck { path, .. } = fault else { return fault };
    Fault::Stuck { path, kept: target.path().join(&intent.stage).display().to_string() }
}

/// Removes the stage with all that is in it, then the note about it.
pub(super) fn clear(target: &Tree, intent: &Intent, ledger: &Ledger) -> Outcome<()> {
    remove(target, intent.stage.as_bytes()).step("remove", &intent.stage)?;
    ledger.clear()
}

fn undo(target: &Tree, stage: &OwnedFd, action: &Action) -> Outcome<()> {
    let path = &action.path;
    let staged = stat_at(stage, action.slot.as_bytes()).step("look at", path)?;
    let staged = staged.map(|stat| stat.st_ino);
    match &action.act {
        Act::Mode { of, before, .. } => set_mode(target, path, *of, *before).map(|_| ()),
        Act::Place { new } if staged.is_none() => take_back(target, stage, action, *new),
        Act::Place { .. } => Ok(()),
        Act::Take { .. } if staged.is_some() => put_back(target, stage, action),
        Act::Take { .. } => Ok(()),
        Act::Swap { new, .. } if staged.is_some_and(|ino| ino != *new) => {
            swap_back(target, stage, action, *new)
        }
        Act::Swap { .. } => Ok(()),
    }
}

/// Takes a new thing out again. What somebody else put in its place is theirs.
fn take_back(target: &Tree, stage: &OwnedFd, action: &Action, new: u64) -> Outcome<()> {
    if inode_at(target, &action.path)? != Some(new) {
        return Ok(());
    }
    let flags = RenameFlags::NOREPLACE;
    match rename(stage, &action.slot, target, &action.path, flags, Way::In) {
        Err(Errno::NOENT) => Ok(()),
        moved => moved.step("put back", &action.path),
    }
}

fn put_back(target: &Tree, stage: &OwnedFd, action: &Action) -> Outcome<()> {
    let flags = RenameFlags::NOREPLACE;
    match rename(stage, &action.slot, target, &action.path, flags, Way::Out) {
        Err(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(stuck_fault(action)),
        moved => moved.step("put back", &action.path),
    }
}

fn swap_back(target: &Tree, stage: &OwnedFd, action: &Action, new: u64) -> Outcome<()> {
    match inode_at(target, &action.path)? {
        None => put_back(target, stage, action),
        Some(ino) if ino == new => {
            let flags = RenameFlags::EXCHANGE;
            rename(stage, &action.slot, target, &action.path, flags, Way::Out)
                .step("put back", &action.path)
        }
        Some(_) => Err(stuck_fault(action)),
    }
}

fn inode_at(target: &Tree, path: &TreePath) -> Outcome<Option<u64>> {
    let Ok((dir, name)) = target.place(path) else { return Ok(None) };
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat.st_ino)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).step("look at", path),
    }
}

fn stuck_fault(action: &Action) -> Fault {
    Fault::Stuck { path: action.path.to_string(), kept: String::new() }
}
