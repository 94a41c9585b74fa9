//! From an admitted spec to the launcher's plan. Pure but for one thing: host paths are resolved here,
//! so that what the launcher opens is what the caller meant and no link is followed later.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_core::{
    Admitted, HostTree, Image, Mount, Network, OverlayDirs, Result, RootMode, SandboxId,
    SandboxSpec, User, WORKSPACE_ROOT, Workspace,
};
use stockade_launcher as launcher;

use super::{NAME, Own};
use crate::linux::limits::per_process_raisable;
use crate::linux::paths::{resolve_directory, resolve_path};
use crate::linux::{DEFAULT_USER, MAX_SCRATCH_BYTES, OWN_PROCESSES};

/// Where a system says which machine it is.
const MACHINE_ID: &str = "/etc/machine-id";
/// Where the kernel says which start of it this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

pub(super) fn build_plan(
    id: &SandboxId,
    admitted: &Admitted,
    memory_is_held: bool,
) -> Result<launcher::LaunchPlan> {
    let spec = admitted.spec();
    let limits = admitted.limits();
    let user = sandbox_user(spec);
    let scratch = limits.disk.map_or(MAX_SCRATCH_BYTES, |disk| disk.0.min(MAX_SCRATCH_BYTES));
    let mounts = spec.all_mounts().map(|mount| {
        Ok(launcher::PlanMount {
            source: resolve_path(&NAME, "mounts", &mount.source)?,
            target: target_in_workspace(spec, mount.target.as_str()),
            read_only: mount.read_only,
        })
    });
    let workspace = build_workspace(&spec.workspace, scratch)?;
    let owner = workspace_owner(&workspace);
    Ok(launcher::LaunchPlan {
        id: id.to_string(),
        hostname: id.to_string(),
        root: build_root(&spec.image)?,
        copy_on_write: (spec.root == RootMode::CopyOnWrite).then_some(scratch),
        workspace,
        read_only: spec.read_only,
        workspace_target: spec.workspace_dir().into(),
        workspace_alias: (spec.workspace_dir() != WORKSPACE_ROOT).then(|| WORKSPACE_ROOT.into()),
        mounts: mounts.collect::<Result<_>>()?,
        plain_files: list_plain_files(spec),
        uid: user.uid,
        gid: user.gid,
        host_uid: owner.map(|user| user.uid),
        host_gid: owner.map(|user| user.gid),
        network: match spec.network {
            Network::Loopback => launcher::PlanNetwork::Loopback,
            Network::Egress(_) => launcher::PlanNetwork::Helper,
            // An admitted spec is not `Auto`.
            Network::Auto | Network::None => launcher::PlanNetwork::None,
        },
        tmp_bytes: scratch,
        rlimits: build_rlimits(admitted, memory_is_held),
        ..launcher::LaunchPlan::default()
    })
}

/// Where parts of a git directory appear that may be written to: the host's git would follow links in them.
fn list_plain_files(spec: &SandboxSpec) -> Vec<PathBuf> {
    let written = written_git_parts(spec);
    written.map(|mount| target_in_workspace(spec, mount.target.as_str())).collect()
}

/// Parts of a git directory that may be written to.
pub(super) fn written_git_parts(spec: &SandboxSpec) -> impl Iterator<Item = &Mount> {
    let git = spec.trees.iter().filter(|tree| tree.part_of == HostTree::GIT_PART);
    git.map(|tree| &tree.mount).filter(|mount| !mount.read_only)
}

/// A path below `/workspace` as one below the workspace's own, which is mounted first.
fn target_in_workspace(spec: &SandboxSpec, target: &str) -> PathBuf {
    match Path::new(target).strip_prefix(WORKSPACE_ROOT) {
        Ok(inside) => Path::new(spec.workspace_dir()).join(inside),
        Err(_) => target.into(),
    }
}

/// Has the sandbox be told these of its machine.
pub(super) fn call_machine(plan: &mut launcher::LaunchPlan, own: &Own) {
    plan.hostname.clone_from(&own.hostname);
    let shown = |source: &Path, target: &str| {
        let (source, target) = (source.to_owned(), target.into());
        launcher::PlanMount { source, target, read_only: true }
    };
    plan.mounts.push(shown(&own.boot_id, BOOT_ID));
    let has_one = match &plan.root {
        launcher::Root::Directory(image) => image.join(&MACHINE_ID[1..]).is_file(),
        launcher::Root::Host => false,
    };
    if has_one {
        plan.mounts.push(shown(&own.machine_id, MACHINE_ID));
    }
}

/// The user that everything in the sandbox runs as.
pub(super) fn sandbox_user(spec: &SandboxSpec) -> User {
    spec.user.unwrap_or(DEFAULT_USER)
}

/// The guest's user on the host, where root may choose: the owner of the files it works on. Root without
/// its capabilities could not write to them, and what it made would be root's.
fn workspace_owner(workspace: &launcher::PlanWorkspace) -> Option<User> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let written = match workspace {
        launcher::PlanWorkspace::Ephemeral { .. } | launcher::PlanWorkspace::Trial => return None,
        launcher::PlanWorkspace::Local { path } => path,
        launcher::PlanWorkspace::Overlay { upper, .. } => upper,
    };
    let found = fs::metadata(written).ok()?;
    Some(User { uid: found.uid(), gid: found.gid() })
}

fn build_root(image: &Image) -> Result<launcher::Root> {
    match image {
        Image::Directory(path) => resolve_path(&NAME, "image", path).map(launcher::Root::Directory),
        // The other kinds are not admitted on this backend.
        Image::Host | Image::Oci(_) | Image::Named(_) | Image::Wasm(_) => Ok(launcher::Root::Host),
    }
}

fn build_workspace(workspace: &Workspace, bytes: u64) -> Result<launcher::PlanWorkspace> {
    match workspace {
        Workspace::Ephemeral => Ok(launcher::PlanWorkspace::Ephemeral { bytes }),
        Workspace::Local(path) => Ok(launcher::PlanWorkspace::Local {
            path: resolve_directory(&NAME, "workspace", path)?,
        }),
        Workspace::Overlay(OverlayDirs { lower, upper, work }) => {
            Ok(launcher::PlanWorkspace::Overlay {
                lower: resolve_directory(&NAME, "workspace.overlay.lower", lower)?,
                upper: resolve_directory(&NAME, "workspace.overlay.upper", upper)?,
                work: resolve_directory(&NAME, "workspace.overlay.work", work)?,
            })
        }
    }
}

/// What each single process is held to, and how many the user namespace counts.
fn build_rlimits(admitted: &Admitted, memory_is_held: bool) -> launcher::Rlimits {
    launcher::Rlimits {
        nproc: admitted.limits().processes.map(|most| u64::from(most) + OWN_PROCESSES),
        ..per_process_raisable(admitted, memory_is_held)
    }
}
