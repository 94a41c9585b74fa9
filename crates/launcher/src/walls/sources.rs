//! The workspace and the further mounts. Their sources were opened by the launcher before this
//! process existed; here they only find their places.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::open::{Sources, format_path};
use crate::plan::{LaunchPlan, PlanWorkspace};
use crate::walls::{overlay, scratch};
use rustix::io::Errno;

/// Mounts the workspace into the staged root.
pub(crate) fn mount_workspace(
    root: &OwnedFd,
    plan: &LaunchPlan,
    sources: &Sources,
) -> Result<(), Failure> {
    let target = &plan.workspace_target;
    let place =
        open_or_make_place(root, target, true, true).at(Wall::Workspace, &format_path(target))?;
    let attach =
        |tree: &OwnedFd| fs::attach_mount(tree, &place).at(Wall::Workspace, &format_path(target));
    match (&plan.workspace, &sources.workspace, &sources.layers) {
        (PlanWorkspace::Local { .. }, Some(source), _) => attach(&source.tree),
        (PlanWorkspace::Overlay { .. }, _, Some(layers)) => {
            attach(&overlay::mount_overlay(layers, plan.read_only)?)
        }
        (PlanWorkspace::Trial, ..) => attach(&overlay::mount_trial_overlay()?),
        // Nothing is ever in it.
        (PlanWorkspace::Ephemeral { bytes }, ..) if plan.read_only => {
            let tree = fs::make_tmpfs(*bytes, "0755", fs::READ_ONLY_MOUNT)
                .at(Wall::Workspace, "a tmpfs")?;
            attach(&tree)
        }
        (PlanWorkspace::Ephemeral { .. }, ..) => {
            attach(&scratch::make_scratch_workspace().at(Wall::Workspace, "a private place")?)
        }
        (PlanWorkspace::Local { .. } | PlanWorkspace::Overlay { .. }, ..) => {
            Err(Failure::new(Wall::Workspace, Errno::NOENT, format_path(target)))
        }
    }
}

/// Shows the workspace, as it is mounted by now, at its second path.
pub(crate) fn workspace_alias(root: &OwnedFd, plan: &LaunchPlan) -> Result<(), Failure> {
    let Some(alias) = &plan.workspace_alias else { return Ok(()) };
    let shown = || {
        let place = open_or_make_place(root, alias, true, true)?;
        let tree = fs::clone_tree(fs::open_mount_point(root, &plan.workspace_target)?, "")?;
        fs::attach_mount(&tree, place)
    };
    shown().at(Wall::Workspace, &format_path(alias))
}

/// Which of the mounts: those below `/proc` have to wait for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountWhen {
    BeforeProc,
    InProc,
}

/// Mounts the rest, in the plan's order.
pub(crate) fn mount_extras(
    root: &OwnedFd,
    plan: &LaunchPlan,
    sources: &Sources,
    when: MountWhen,
) -> Result<(), Failure> {
    let due = |target: &Path| target.starts_with("/proc") == (when == MountWhen::InProc);
    let all = plan.mounts.iter().zip(&sources.mounts);
    for (mount, source) in all.filter(|(mount, _)| due(&mount.target)) {
        let target = &mount.target;
        let make = !(is_kept(&plan.workspace) && target.starts_with(&plan.workspace_target));
        let mounted = open_or_make_place(root, target, source.directory, make)
            .and_then(|place| fs::attach_mount(&source.tree, place));
        mounted.map_err(|errno| {
            Failure::new(Wall::Mounts, errno, format_path(target)).remedy(
                "choose a target that exists in the root or the workspace, or one at its top",
            )
        })?;
    }
    Ok(())
}

/// Whether what is made in it outlives the sandbox.
fn is_kept(workspace: &PlanWorkspace) -> bool {
    match workspace {
        PlanWorkspace::Ephemeral { .. } | PlanWorkspace::Trial => false,
        PlanWorkspace::Local { .. } | PlanWorkspace::Overlay { .. } => true,
    }
}

/// Opens the mount point, made where it is missing; creates none in a workspace that outlives the sandbox.
fn open_or_make_place(
    root: &OwnedFd,
    target: &Path,
    directory: bool,
    make: bool,
) -> Result<OwnedFd, Errno> {
    match fs::open_mount_point(root, target) {
        Err(Errno::NOENT) if make => {
            fs::make_place(root, target, directory)?;
            fs::open_mount_point(root, target)
        }
        opened => opened,
    }
}
