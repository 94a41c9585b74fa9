//! The new root: a clone of the prepared one, entered so that nothing of the old one is left.

use std::os::fd::OwnedFd;

use crate::base_namespaces::STAGE_DIR;
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::plan::LaunchPlan;
use crate::template::{RootTemplate, clone_of};
use crate::walls::root_overlay;

/// Puts the root on the stage: read-only as prepared, or under a writable layer.
pub(crate) fn stage_root(plan: &LaunchPlan, template: &RootTemplate) -> Result<OwnedFd, Failure> {
    match plan.copy_on_write {
        Some(bytes) => root_overlay::stage_layered_root(bytes, template, plan.uid),
        None => {
            let root = clone_of(template).at(Wall::Root, "the prepared root")?;
            let stage = fs::open_path(STAGE_DIR).at(Wall::Root, "the stage")?;
            fs::attach_mount(&root, stage).at(Wall::Root, "onto the stage")?;
            Ok(root)
        }
    }
}

/// Makes the staged root the only one.
pub(crate) fn switch_root(root: &OwnedFd) -> Result<(), Failure> {
    rustix::process::fchdir(root).at(Wall::Root, "into the new root")?;
    fs::enter_root().at(Wall::Root, "leaving the old root")
}
