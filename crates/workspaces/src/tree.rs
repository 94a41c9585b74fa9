//! A directory tree held by its root's descriptor. Everything in it is reached from there by the
//! kernel's own resolution (C-21): no symbolic link is followed, no mount is crossed, nothing but a
//! directory or a regular file is ever opened for reading.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, Result as SysResult};
use serde::{Deserialize, Serialize};
use stockade_fs::{open_beneath, open_without_symlinks};

use crate::path::TreePath;

const BENEATH_FLAGS: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// A tree, by its root.
#[derive(Debug)]
pub(crate) struct OpenTree {
    fd: OwnedFd,
    path: PathBuf,
}

/// What an entry of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a fifo or a socket: never opened, never applied.
    Special,
}

impl NodeKind {
    pub(crate) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Self::Special,
        }
    }
}

impl OpenTree {
    /// Opens the tree at an absolute path none of whose parts is a symbolic link.
    pub(crate) fn open(path: &Path) -> SysResult<Self> {
        let fd = open_without_symlinks(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it, for messages.
    pub(crate) fn name(&self, path: &TreePath) -> String {
        if path.is_root() { self.path.display().to_string() } else { path.to_string() }
    }

    fn open_beneath(&self, path: &TreePath, flags: OFlags) -> SysResult<OwnedFd> {
        let name: &Path = if path.is_root() { Path::new(".") } else { path.as_path() };
        open_beneath(&self.fd, name, flags, Mode::empty(), BENEATH_FLAGS)
    }

    /// Opens a directory, to list it and to reach what is in it.
    pub(crate) fn dir(&self, path: &TreePath) -> SysResult<OwnedFd> {
        self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a directory only to reach what is in it: no right to list it is needed.
    pub(crate) fn handle(&self, path: &TreePath) -> SysResult<OwnedFd> {
        self.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Opens the entry at a path, a symbolic link itself included, only to look at.
    pub(crate) fn look(&self, path: &TreePath) -> SysResult<OwnedFd> {
        self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// What is at a path. Where a directory on the way is none, there is nothing.
    pub(crate) fn stat(&self, path: &TreePath) -> SysResult<Option<Stat>> {
        match self.look(path) {
            Ok(fd) => rustix::fs::fstat(fd).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a regular file. Anything else is refused, without waiting for what a fifo may bring.
    pub(crate) fn file(&self, path: &TreePath) -> SysResult<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let fd = self.open_beneath(path, flags)?;
        match NodeKind::of(&rustix::fs::fstat(&fd)?) {
            NodeKind::File => Ok(fd.into()),
            NodeKind::Directory | NodeKind::Symlink | NodeKind::Special => Err(Errno::INVAL),
        }
    }

    /// What a symbolic link says.
    pub(crate) fn link(&self, path: &TreePath) -> SysResult<Vec<u8>> {
        let fd = self.look(path)?;
        Ok(rustix::fs::readlinkat(&fd, "", Vec::new())?.into_bytes())
    }

    /// Whether following what a symbolic link in a directory says leads out of the tree, as far as
    /// the tree goes today.
    pub(crate) fn is_escaping(&self, dir: &TreePath, target: &[u8]) -> bool {
        let path = [b"./", dir.as_bytes(), b"/", target].concat();
        let name = OsStr::from_bytes(&path);
        let led = open_beneath(&self.fd, name, OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH);
        matches!(led, Err(Errno::XDEV | Errno::LOOP))
    }

    /// The directory a path's entry is in, and its name there.
    pub(crate) fn place<'p>(&self, path: &'p TreePath) -> SysResult<(OwnedFd, &'p OsStr)> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        Ok((self.handle(&parent)?, OsStr::from_bytes(name)))
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, path: &TreePath) -> SysResult<Vec<Vec<u8>>> {
        list_names(&self.dir(path)?)
    }
}

impl AsFd for OpenTree {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The names in an open directory, sorted.
pub(crate) fn list_names(dir: &impl AsFd) -> SysResult<Vec<Vec<u8>>> {
    let names = stockade_fs::list_names(dir)?;
    Ok(names.into_iter().map(CString::into_bytes).collect())
}

/// What a name in an open directory is.
pub(crate) fn stat_at(dir: &impl AsFd, name: &[u8]) -> SysResult<Option<Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}
