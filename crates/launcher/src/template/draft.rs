//! A prepared root in the making: a tmpfs that no other process can change, laid entry by entry by paths
//! from its own root. No sandbox is cloned from it before it is read-only.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::gather::{TemplateContent, TemplateItem};
use super::{Key, ROOT_BYTES, RootTemplate, SANDBOX_HOME};
use crate::error::{At, Failure, Wall};
use crate::open::format_path;
use crate::{fs, sys};

/// Mount points that every sandbox needs.
const FIXED_MOUNT_POINTS: [&str; 8] =
    ["/proc", "/sys", "/tmp", "/var/tmp", "/run", SANDBOX_HOME, "/dev/pts", "/dev/shm"];
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// What of a root does not depend on the plan, and room for the rest.
#[derive(Debug)]
pub(super) struct Draft {
    root: OwnedFd,
    path: String,
    /// Directories made here, by their paths from the root: nothing below them can be a link or a mount of
    /// the host, so that a path through them is resolved by the kernel as it is written.
    directories: BTreeSet<PathBuf>,
    mounts: Vec<PathBuf>,
    layers: Vec<PathBuf>,
}

impl Draft {
    /// An empty root at `path`, in the namespace of prepared roots.
    pub(super) fn new(path: String) -> Result<Draft, Failure> {
        let root =
            fs::make_tmpfs(ROOT_BYTES, "0755", fs::WRITABLE_MOUNT).at(Wall::Template, "a tmpfs")?;
        mount_at(&root, &path).at(Wall::Template, &path)?;
        let bare =
            fs::clone_with(&root, "", fs::READ_ONLY_MOUNT).at(Wall::Template, "its bare copy")?;
        let bare_path = bare_path(&path);
        mount_at(&bare, &bare_path).at(Wall::Template, &bare_path)?;
        let (mounts, layers) = (Vec::new(), Vec::new());
        Ok(Draft { root, path, directories: BTreeSet::new(), mounts, layers })
    }

    /// Lays entries.
    pub(super) fn lay(&mut self, items: &[TemplateItem]) -> Result<(), Failure> {
        for item in items {
            self.lay_item(item).at(Wall::Template, &format_path(&item.target))?;
            if let TemplateContent::Tree { layer, .. } = item.what {
                self.mounts.push(item.target.clone());
                self.layers.extend(layer.then(|| item.target.clone()));
            }
        }
        Ok(())
    }

    /// The mount points that every sandbox needs.
    pub(super) fn lay_fixed_mount_points(&mut self) -> Result<(), Failure> {
        for place in FIXED_MOUNT_POINTS {
            self.make_mount_point(Path::new(place), true).at(Wall::Template, place)?;
        }
        Ok(())
    }

    /// Lays the mount points that the plan names where the root can hold them, and closes the root to writing.
    pub(super) fn finish(mut self, key: Key) -> Result<RootTemplate, Failure> {
        for (target, directory) in &key.targets {
            match self.make_mount_point(target, *directory) {
                // Below a private place of the sandbox it is made there, when that exists.
                Ok(()) | Err(Errno::ROFS) => {}
                Err(errno) => return Err(Failure::new(Wall::Template, errno, format_path(target))),
            }
        }
        sys::mount_setattr(self.root.as_fd(), fs::READ_ONLY_MOUNT, false)
            .at(Wall::Template, "read-only")?;
        Ok(RootTemplate { key, path: self.path, mounts: self.mounts, layers: self.layers })
    }

    /// Gives a draft up that no plan asked for.
    pub(super) fn discard(self) -> Result<(), Errno> {
        discard_at(&self.path)
    }

    fn lay_item(&mut self, item: &TemplateItem) -> Result<(), Errno> {
        let inside = path_inside(&item.target)?;
        self.make_directories(inside.parent().unwrap_or(Path::new("")))?;
        match &item.what {
            TemplateContent::Link(target) => rustix::fs::symlinkat(target, &self.root, inside),
            TemplateContent::File(content) => write_new(&self.root, inside, content),
            TemplateContent::Tree { tree, directory, .. } => {
                match self.make_entry(inside, *directory) {
                    Ok(()) => fs::attach_at(tree, &self.root, inside),
                    // Something lies there already, and may be a link.
                    Err(Errno::EXIST) => fs::attach_in(tree, &self.root, &item.target),
                    Err(errno) => Err(errno),
                }
            }
        }
    }

    /// Makes a place to mount on, wherever in the root it lies.
    fn make_mount_point(&mut self, target: &Path, directory: bool) -> Result<(), Errno> {
        let inside = path_inside(target)?;
        let parent = inside.parent().unwrap_or(Path::new(""));
        let made = match directory {
            true => self.make_own_directories(inside),
            false => {
                self.make_own_directories(parent).and_then(|()| self.make_entry(inside, false))
            }
        };
        match made {
            // It leads through something of the host, or is there already.
            Err(Errno::EXIST) => fs::make_place(&self.root, target, directory),
            made => made,
        }
    }

    /// Makes a directory and those above it.
    fn make_directories(&mut self, inside: &Path) -> Result<(), Errno> {
        match self.make_own_directories(inside) {
            Err(Errno::EXIST) => fs::make_place(&self.root, &Path::new("/").join(inside), true),
            made => made,
        }
    }

    /// The same where each is made here. `EEXIST` where something else lies in the way.
    fn make_own_directories(&mut self, inside: &Path) -> Result<(), Errno> {
        if inside.as_os_str().is_empty() || self.directories.contains(inside) {
            return Ok(());
        }
        if let Some(parent) = inside.parent() {
            self.make_own_directories(parent)?;
        }
        self.make_entry(inside, true)?;
        self.directories.insert(inside.to_owned());
        Ok(())
    }

    /// One new directory or empty file.
    fn make_entry(&self, inside: &Path, directory: bool) -> Result<(), Errno> {
        match directory {
            true => rustix::fs::mkdirat(&self.root, inside, DIRECTORY_MODE),
            // Unlike opening it, this leaves nothing to be closed.
            false => rustix::fs::mknodat(&self.root, inside, FileType::RegularFile, FILE_MODE, 0),
        }
    }
}

/// Where the root at `path` is mounted once more, without anything mounted in it.
pub(super) fn bare_path(path: &str) -> String {
    format!("{path}-bare")
}

/// Unmounts a root, laid or not, and its bare copy.
pub(super) fn discard_at(path: &str) -> Result<(), Errno> {
    for place in [bare_path(path).as_str(), path] {
        rustix::mount::unmount(place, UnmountFlags::DETACH)?;
        rustix::fs::rmdir(place)?;
    }
    Ok(())
}

fn mount_at(tree: &OwnedFd, path: &str) -> Result<(), Errno> {
    rustix::fs::mkdir(path, DIRECTORY_MODE)?;
    fs::attach_mount(tree, fs::open_path(path)?)
}

/// A target from the root on. Nothing but names: `..` would lead out of it.
fn path_inside(target: &Path) -> Result<&Path, Errno> {
    let inside = target.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    if plain { Ok(inside) } else { Err(Errno::INVAL) }
}

fn write_new(root: &OwnedFd, path: &Path, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, flags, FILE_MODE)?;
    match rustix::io::write(&file, content)? == content.len() {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A draft in a directory of the disk, whose making needs no rights.
    fn draft_in(directory: &Path) -> Draft {
        let root = fs::open_path(directory.to_str().unwrap()).unwrap();
        let (mounts, layers) = (Vec::new(), Vec::new());
        Draft { root, path: String::new(), directories: BTreeSet::new(), mounts, layers }
    }

    #[test]
    fn mount_points_are_made_with_what_leads_to_them_and_may_be_there_already() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(base.path().join("there/below")).unwrap();
        let mut draft = draft_in(base.path());
        for _ in 0..2 {
            for place in ["/a/b/c", "/a/d", "/there/below/new", "/there/below"] {
                draft.make_mount_point(Path::new(place), true).unwrap();
            }
            for place in ["/a/b/file", "/there/file"] {
                draft.make_mount_point(Path::new(place), false).unwrap();
            }
        }
        for place in ["a/b/c", "a/d", "there/below/new"] {
            assert!(base.path().join(place).is_dir(), "{place}");
        }
        for place in ["a/b/file", "there/file"] {
            assert!(base.path().join(place).is_file(), "{place}");
        }
    }

    #[test]
    fn no_mount_point_lies_behind_a_link_or_a_file_or_outside() {
        let (base, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(elsewhere.path(), base.path().join("link")).unwrap();
        std::fs::write(base.path().join("program"), "").unwrap();
        let mut draft = draft_in(base.path());
        for (place, errno) in [
            ("/link", Errno::LOOP),
            ("/link/below", Errno::LOOP),
            ("/program/below", Errno::NOTDIR),
            ("/a/../../outside", Errno::INVAL),
        ] {
            assert_eq!(draft.make_mount_point(Path::new(place), true), Err(errno), "{place}");
        }
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
