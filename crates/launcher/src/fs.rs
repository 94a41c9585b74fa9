//! Mounting by descriptor: file systems are made detached, trees are cloned detached, and both are
//! attached to a place that was opened before. No path of the host is ever resolved twice.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree,
};

use crate::sys;

/// Mount attributes of what the guest may write to.
pub(crate) const WRITABLE_MOUNT: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
/// Mount attributes of what the guest may only read and execute.
pub(crate) const READ_ONLY_MOUNT: MountAttrFlags =
    WRITABLE_MOUNT.union(MountAttrFlags::MOUNT_ATTR_RDONLY);
/// Mount attributes of device nodes. Read-only does not keep one from writing to the device; it
/// keeps a guest that is the node's owner on the host from changing its mode for everybody.
pub(crate) const DEVICE_MOUNT: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_RDONLY);
/// Mount attributes of what the guest may only read.
pub(crate) const NOEXEC_MOUNT: MountAttrFlags =
    READ_ONLY_MOUNT.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// A detached file system. An option without a value is a flag.
pub(crate) fn make_detached_fs(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value.is_empty() {
            true => fsconfig_set_flag(context.as_fd(), *key)?,
            false => fsconfig_set_string(context.as_fd(), *key, *value)?,
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A detached tmpfs of at most `bytes`, with as many inodes as that could sensibly hold.
pub(crate) fn make_tmpfs(
    bytes: u64,
    mode: &str,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    // Each inode costs kernel memory that the size does not count, so it is bounded as well.
    let inodes = (bytes / 4096).clamp(64, 1 << 20).to_string();
    let size = bytes.max(4096).to_string();
    let options = [("size", size.as_str()), ("nr_inodes", inodes.as_str()), ("mode", mode)];
    make_detached_fs("tmpfs", &options, attributes)
}

/// A detached copy of the mounts at and below `path`.
pub(crate) fn clone_tree(directory: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    open_tree(directory, path, flags)
}

/// A detached copy of the one mount a place lies on, with attributes of its own.
pub(crate) fn clone_single(place: impl AsFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(place, "", flags)?;
    sys::mount_setattr(tree.as_fd(), attributes, false)?;
    Ok(tree)
}

/// A detached copy with attributes of its own, private in propagation.
pub(crate) fn clone_with(
    directory: impl AsFd,
    path: &str,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(directory, path)?;
    sys::mount_setattr(tree.as_fd(), attributes, true)?;
    Ok(tree)
}

/// Attaches a detached tree to a place that is open.
pub(crate) fn attach_mount(tree: impl AsFd, place: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", place, "", flags)
}

/// Attaches a detached tree at a path below an open root, which the resolution cannot leave.
pub(crate) fn attach_in(tree: impl AsFd, root: impl AsFd, path: &Path) -> Result<(), Errno> {
    attach_mount(tree, open_mount_point(root, path)?)
}

/// Attaches a detached tree at a path below a directory, along entries that no other process can change.
pub(crate) fn attach_at(tree: impl AsFd, directory: impl AsFd, path: &Path) -> Result<(), Errno> {
    move_mount(tree, "", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Opens a place below a root. Symbolic links are refused: a mount goes where its name says.
pub(crate) fn open_mount_point(root: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    stockade_fs::open_beneath(root, path, OFlags::PATH, Mode::empty(), within)
}

/// Makes `path` below `root`, and what leads to it, as directories, or its end as an empty file. A place that
/// is there already need not be on a file system one may write to.
pub(crate) fn make_place(root: impl AsFd, path: &Path, directory: bool) -> Result<(), Errno> {
    let (mut parent, mut missing) = open_deepest(root, path)?;
    while let Some(name) = missing.pop() {
        let made = match missing.is_empty() && !directory {
            true => make_file(&parent, name),
            false => rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)),
        };
        match made {
            Ok(()) if missing.is_empty() => return Ok(()),
            Ok(()) | Err(Errno::EXIST) => parent = open_mount_point(&parent, name)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The last of the directories on the way to `path` that is there, and the names that are not, the first
/// of them last.
fn open_deepest(root: impl AsFd, path: &Path) -> Result<(OwnedFd, Vec<&Path>), Errno> {
    let mut missing = Vec::new();
    for place in path.ancestors() {
        match open_mount_point(&root, place) {
            Ok(found) => return Ok((found, missing)),
            Err(Errno::NOENT) => missing.extend(place.file_name().map(Path::new)),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOENT)
}

fn make_file(parent: &OwnedFd, name: &Path) -> Result<(), Errno> {
    rustix::fs::mknodat(parent, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
}

/// Makes the current directory the root of this mount namespace, and the old root nothing.
pub(crate) fn enter_root() -> Result<(), Errno> {
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

/// Opens a directory by path, for use as a place only.
pub(crate) fn open_path(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}
