//! Copies trees: contents shared where the file system can, hard links kept apart, holes kept as
//! holes. What is neither a file, a directory nor a symbolic link is not copied; the marks of an
//! overlay are, where a layer is copied.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};

use crate::changes::{CopiedStat, Index, OVERLAY_XATTRS, is_whiteout, read_attribute};
use crate::content;
use crate::error::{FaultResult, FaultStep};
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};
use crate::walk::visit_tree;

/// What kind of tree is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copying {
    /// A plain one.
    Plain,
    /// The upper directory of an overlay, with its marks.
    Layer,
}

/// Copies what is in one tree into another, which is empty.
pub(crate) fn copy_tree(from: &OpenTree, to: &OpenTree, copying: Copying) -> FaultResult<Index> {
    let mut index = Index::default();
    let mut directories = Vec::new();
    let root = rustix::process::geteuid().is_root();
    visit_tree(from, &TreePath::root(), |path, stat| {
        match NodeKind::of(stat) {
            NodeKind::File => copy_file(from, to, path, stat, root, copying)?,
            NodeKind::Symlink => copy_link(from, to, path, stat, root)?,
            NodeKind::Directory => {
                copy_directory(from, to, path, copying)?;
                directories.push((path.clone(), *stat));
                return Ok(());
            }
            NodeKind::Special if copying == Copying::Layer && is_whiteout(stat) => {
                create_whiteout(to, path)?;
            }
            NodeKind::Special => return Ok(()),
        }
        record_copy(&mut index, to, path)
    })?;
    // Only now: a directory that may not be written to could not have been filled.
    for (path, stat) in directories.into_iter().rev() {
        finish_directory(to, &path, &stat, root)?;
        record_copy(&mut index, to, &path)?;
    }
    Ok(index)
}

fn record_copy(index: &mut Index, to: &OpenTree, path: &TreePath) -> FaultResult<()> {
    if let Some(stat) = to.stat(path).step("look at", path)? {
        index.insert(path.clone(), CopiedStat::new(&stat));
    }
    Ok(())
}

fn copy_directory(
    from: &OpenTree,
    to: &OpenTree,
    path: &TreePath,
    copying: Copying,
) -> FaultResult<()> {
    let (dir, name) = to.place(path).step("reach", path)?;
    rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700)).step("make", path)?;
    match copying {
        Copying::Plain => Ok(()),
        Copying::Layer => {
            let source = from.dir(path).step("open", path)?;
            copy_overlay_xattrs(&source, &to.dir(path).step("open", path)?, path)
        }
    }
}

fn finish_directory(to: &OpenTree, path: &TreePath, stat: &Stat, root: bool) -> FaultResult<()> {
    let dir = to.dir(path).step("open", path)?;
    if root {
        set_owner(&dir, stat).step("give to its owner", path)?;
    }
    rustix::fs::fchmod(&dir, permission_bits(stat)).step("set the mode of", path)
}

fn copy_file(
    from: &OpenTree,
    to: &OpenTree,
    path: &TreePath,
    stat: &Stat,
    root: bool,
    copying: Copying,
) -> FaultResult<()> {
    let source = from.file(path).step("open", path)?;
    let copied = create_file(to, path)?;
    content::copy_content(&source, &copied).step("copy", path)?;
    if copying == Copying::Layer {
        copy_overlay_xattrs(&source, &copied, path)?;
    }
    if root {
        set_owner(&copied, stat).step("give to its owner", path)?;
    }
    rustix::fs::fchmod(&copied, permission_bits(stat)).step("set the mode of", path)
}

fn create_file(to: &OpenTree, path: &TreePath) -> FaultResult<File> {
    let (dir, name) = to.place(path).step("reach", path)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600));
    Ok(fd.step("create", path)?.into())
}

fn copy_link(
    from: &OpenTree,
    to: &OpenTree,
    path: &TreePath,
    stat: &Stat,
    root: bool,
) -> FaultResult<()> {
    let target = from.link(path).step("read", path)?;
    let (dir, name) = to.place(path).step("reach", path)?;
    rustix::fs::symlinkat(&target[..], &dir, name).step("create", path)?;
    if !root {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(&dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .step("give to its owner", path)
}

fn create_whiteout(to: &OpenTree, path: &TreePath) -> FaultResult<()> {
    let (dir, name) = to.place(path).step("reach", path)?;
    rustix::fs::mknodat(&dir, name, FileType::CharacterDevice, Mode::empty(), 0)
        .step("create", path)
}

/// Copies the attributes that the overlay keeps.
fn copy_overlay_xattrs(from: &impl AsFd, to: &impl AsFd, path: &TreePath) -> FaultResult<()> {
    for name in OVERLAY_XATTRS {
        if let Some(value) = read_attribute(from, name) {
            rustix::fs::fsetxattr(to, name, &value, XattrFlags::empty()).step("mark", path)?;
        }
    }
    Ok(())
}

/// Before the mode is set, since a change of owner takes bits from it.
fn set_owner(fd: &impl AsFd, stat: &Stat) -> rustix::io::Result<()> {
    rustix::fs::fchown(fd, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn permission_bits(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

/// Makes a directory's mode and owner those of another.
pub(crate) fn copy_mode_and_owner(dir: &OwnedFd, other: &Stat) -> rustix::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        set_owner(dir, other)?;
    }
    rustix::fs::fchmod(dir, Mode::from_raw_mode(other.st_mode & 0o7777 | 0o700))
}
