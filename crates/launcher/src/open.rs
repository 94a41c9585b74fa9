//! Opens what a plan names on the host, once, before the sandbox exists. Never follows a symbolic
//! link: a path that a guest could have changed since it was checked leads nowhere.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::plan::{LaunchPlan, PlanMount, PlanWorkspace};

/// A detached copy of a source's mounts, with its attributes set.
pub(crate) struct OpenSource {
    pub tree: OwnedFd,
    pub directory: bool,
}

/// The layers of a copy-on-write view: detached copies of single mounts, without what is mounted below.
pub(crate) struct OpenLayers {
    pub lower: OwnedFd,
    /// The directory in which the other two lie: the kernel wants to see both in one mount.
    pub beside: OwnedFd,
    /// Opened in that copy, since the guest's user on the host may have no access there.
    pub upper: OwnedFd,
    /// Likewise.
    pub work: OwnedFd,
}

/// Everything of the host that one plan mounts, in the plan's order.
pub(crate) struct Sources {
    pub workspace: Option<OpenSource>,
    pub layers: Option<OpenLayers>,
    pub mounts: Vec<OpenSource>,
}

impl Sources {
    /// Opens all of them; the caller stands in the host's mount namespace.
    pub(crate) fn open(plan: &LaunchPlan) -> Result<Sources, Failure> {
        let (workspace, layers) = match &plan.workspace {
            PlanWorkspace::Ephemeral { .. } | PlanWorkspace::Trial => (None, None),
            PlanWorkspace::Local { path } => (Some(local_workspace(path, plan.read_only)?), None),
            PlanWorkspace::Overlay { lower, upper, work } => {
                (None, Some(open_layers(lower, upper, work, plan.read_only)?))
            }
        };
        let mounts = plan.mounts.iter().map(open_extra_mount).collect::<Result<_, _>>()?;
        Ok(Sources { workspace, layers, mounts })
    }

    /// Whether the plan names anything that has to be opened on the host.
    pub(crate) fn named_by(plan: &LaunchPlan) -> bool {
        let workspace = match &plan.workspace {
            PlanWorkspace::Ephemeral { .. } | PlanWorkspace::Trial => false,
            PlanWorkspace::Local { .. } | PlanWorkspace::Overlay { .. } => true,
        };
        workspace || !plan.mounts.is_empty()
    }
}

fn local_workspace(path: &Path, read_only: bool) -> Result<OpenSource, Failure> {
    let source = open_source(path, read_only)?;
    match source.directory {
        true => Ok(source),
        false => Err(Failure::new(Wall::Source, Errno::NOTDIR, format_path(path))),
    }
}

fn open_layers(
    lower: &Path,
    upper: &Path,
    work: &Path,
    read_only: bool,
) -> Result<OpenLayers, Failure> {
    let parent = upper.parent().filter(|parent| work.parent() == Some(*parent));
    let Some(parent) = parent else {
        let detail = format!("{} does not lie beside {}", format_path(work), format_path(upper));
        return Err(Failure::without_errno(Wall::Source, detail));
    };
    let attributes = if read_only { fs::READ_ONLY_MOUNT } else { fs::WRITABLE_MOUNT };
    let beside = clone_single_mount(parent, attributes)?;
    Ok(OpenLayers {
        lower: clone_single_mount(lower, fs::READ_ONLY_MOUNT)?,
        upper: open_layer(&beside, upper)?,
        work: open_layer(&beside, work)?,
        beside,
    })
}

fn open_layer(beside: &OwnedFd, path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let last = path.file_name().unwrap_or_default();
    let opened = stockade_fs::open_beneath(beside, last, flags, Mode::empty(), within);
    opened.at(Wall::Source, &format_path(path))
}

fn clone_single_mount(path: &Path, attributes: MountAttrFlags) -> Result<OwnedFd, Failure> {
    let place = open_directory(path)?;
    fs::clone_single(&place, attributes).map_err(|errno| {
        let failure = Failure::new(Wall::Source, errno, format_path(path));
        match errno {
            // An ordinary user may not look beneath a mount.
            Errno::INVAL => failure.remedy("choose a directory without other file systems below"),
            _ => failure,
        }
    })
}

fn open_directory(path: &Path) -> Result<OwnedFd, Failure> {
    let place = open_without_symlinks(path).at(Wall::Source, &format_path(path))?;
    let mode = fstat(&place).at(Wall::Source, &format_path(path))?.st_mode;
    match FileType::from_raw_mode(mode) == FileType::Directory {
        true => Ok(place),
        false => Err(Failure::new(Wall::Source, Errno::NOTDIR, format_path(path))),
    }
}

fn open_extra_mount(mount: &PlanMount) -> Result<OpenSource, Failure> {
    open_source(&mount.source, mount.read_only)
}

fn open_source(path: &Path, read_only: bool) -> Result<OpenSource, Failure> {
    let place = open_without_symlinks(path).at(Wall::Source, &format_path(path))?;
    let kind = fstat(&place).at(Wall::Source, &format_path(path))?.st_mode;
    let directory = match FileType::from_raw_mode(kind) {
        FileType::Directory => true,
        FileType::RegularFile | FileType::Socket => false,
        FileType::Symlink
        | FileType::Fifo
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => {
            let detail = format!("{} is neither a file nor a directory", format_path(path));
            return Err(Failure::without_errno(Wall::Source, detail));
        }
    };
    let attributes = if read_only { fs::READ_ONLY_MOUNT } else { fs::WRITABLE_MOUNT };
    let tree = fs::clone_with(&place, "", attributes).at(Wall::Source, &format_path(path))?;
    Ok(OpenSource { tree, directory })
}

/// Opens an absolute path none of whose components is a symbolic link, for use as a place only.
pub(crate) fn open_without_symlinks(path: &Path) -> Result<OwnedFd, Errno> {
    stockade_fs::open_without_symlinks(path, OFlags::PATH)
}

/// Whether a target is absolute and free of `.` and `..`, and not the root itself.
pub(crate) fn is_normal(target: &Path) -> bool {
    let mut parts = target.components();
    let rooted = parts.next() == Some(Component::RootDir);
    let rest: Vec<_> = parts.collect();
    rooted && !rest.is_empty() && rest.iter().all(|part| matches!(part, Component::Normal(_)))
}

pub(crate) fn format_path(path: &Path) -> String {
    path.display().to_string()
}
