//! Does the steps, each with a look at what came out: an editor may have saved the file in between.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use stockade_fs::chmod_descriptor;

use super::intent::{ApplyAct, ApplyAction, FileIdentity, Intent};
use super::{Conflict, ConflictReason};
use crate::error::{FaultResult, FaultStep};
use crate::path::TreePath;
use crate::tree::OpenTree;

/// How it went.
pub(super) enum Acted {
    Done,
    /// Something was not what it had been; the steps so far are to be undone.
    Conflict(Vec<Conflict>),
}

/// Does every step. A failure leaves the rest undone and what was done to be undone.
pub(super) fn perform_actions(target: &OpenTree, intent: &Intent) -> FaultResult<Acted> {
    let stage = open_stage(target, intent)?;
    let mut parents = std::collections::BTreeSet::new();
    for action in &intent.steps {
        if let Some(reason) = perform_action(target, &stage, action)? {
            let conflict = Conflict { path: action.path.clone(), reason };
            return Ok(Acted::Conflict(vec![conflict]));
        }
        parents.extend(action.path.split().map(|(parent, _)| parent));
    }
    sync_parents(target, &stage, &parents)?;
    Ok(Acted::Done)
}

pub(super) fn open_stage(target: &OpenTree, intent: &Intent) -> FaultResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = intent.stage.as_str();
    rustix::fs::openat(target, name, flags, Mode::empty()).step("open", name)
}

fn perform_action(
    target: &OpenTree,
    stage: &OwnedFd,
    action: &ApplyAction,
) -> FaultResult<Option<ConflictReason>> {
    let path = &action.path;
    let rename = |flags, way| rename_slot(stage, &action.slot, target, path, flags, way);
    match &action.act {
        ApplyAct::Mode { of, after, .. } => set_mode(target, path, *of, *after),
        ApplyAct::Place { .. } => {
            let moved = rename(RenameFlags::NOREPLACE, RenameWay::Out);
            conflict_of_rename(moved, path, ConflictReason::AppearedSince)
        }
        ApplyAct::Take { old } => {
            let moved = rename(RenameFlags::NOREPLACE, RenameWay::In);
            check_taken(moved, stage, action, old)
        }
        ApplyAct::Swap { old, .. } => {
            let moved = rename(RenameFlags::EXCHANGE, RenameWay::Out);
            check_taken(moved, stage, action, old)
        }
    }
}

/// Which way a rename goes.
#[derive(Clone, Copy)]
pub(super) enum RenameWay {
    /// Into the stage.
    In,
    /// Out of the stage.
    Out,
}

/// One rename between the stage and the tree.
pub(super) fn rename_slot(
    stage: &OwnedFd,
    slot: &str,
    target: &OpenTree,
    path: &TreePath,
    flags: RenameFlags,
    way: RenameWay,
) -> rustix::io::Result<()> {
    let (dir, name) = target.place(path)?;
    match way {
        RenameWay::In => rustix::fs::renameat_with(&dir, name, stage, slot, flags),
        RenameWay::Out => rustix::fs::renameat_with(stage, slot, &dir, name, flags),
    }
}

/// What a rename that was not made tells about the tree.
fn conflict_of_rename(
    moved: rustix::io::Result<()>,
    path: &TreePath,
    otherwise: ConflictReason,
) -> FaultResult<Option<ConflictReason>> {
    match moved {
        Ok(()) => Ok(None),
        Err(Errno::NOENT | Errno::EXIST) => Ok(Some(otherwise)),
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(Some(ConflictReason::NoDirectory)),
        Err(errno) => Err(errno).step("change", path),
    }
}

/// Whether a rename took something out of the tree, and what was to be replaced.
fn check_taken(
    moved: rustix::io::Result<()>,
    stage: &OwnedFd,
    action: &ApplyAction,
    old: &FileIdentity,
) -> FaultResult<Option<ConflictReason>> {
    match conflict_of_rename(moved, &action.path, ConflictReason::Gone)? {
        Some(reason) => Ok(Some(reason)),
        None => check_identity(stage, action, old),
    }
}

/// Whether what came out of the tree is what was to be replaced.
fn check_identity(
    stage: &OwnedFd,
    action: &ApplyAction,
    old: &FileIdentity,
) -> FaultResult<Option<ConflictReason>> {
    let out = rustix::fs::statat(stage, action.slot.as_str(), AtFlags::SYMLINK_NOFOLLOW);
    let out = FileIdentity::of(&out.step("look at", &action.path)?);
    Ok((out != *old).then_some(ConflictReason::ChangedSince))
}

/// Sets the mode of a directory that is the one meant.
pub(super) fn set_mode(
    target: &OpenTree,
    path: &TreePath,
    of: u64,
    mode: u32,
) -> FaultResult<Option<ConflictReason>> {
    let fd = match target.look(path) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Some(ConflictReason::Gone)),
        opened => opened.step("open", path)?,
    };
    if rustix::fs::fstat(&fd).step("look at", path)?.st_ino != of {
        return Ok(Some(ConflictReason::ChangedSince));
    }
    chmod_descriptor(&fd, Mode::from_raw_mode(mode)).step("set the mode of", path)?;
    Ok(None)
}

/// Makes the new names survive a power loss before it is written down that they are there.
fn sync_parents(
    target: &OpenTree,
    stage: &OwnedFd,
    parents: &std::collections::BTreeSet<TreePath>,
) -> FaultResult<()> {
    if parents.len() > 64 {
        return rustix::fs::syncfs(stage).step("write", target.path().display());
    }
    for parent in parents {
        match target.dir(parent) {
            Ok(dir) => rustix::fs::fsync(dir).step("write", target.name(parent))?,
            // Another process moved it meanwhile, or the last step took away the right to open it.
            Err(_) => rustix::fs::syncfs(stage).step("write", target.name(parent))?,
        }
    }
    rustix::fs::fsync(stage).step("write", target.path().display())
}
