//! The directories of a tree: found, made, opened for their owner while a layer is applied, and given their modes
//! and times at its end.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, fchmod, fstat, futimens, mkdirat};
use rustix::io::Errno;
use stockade_fs::{chmod_descriptor, open_beneath};

use super::{LIST_FLAGS, LOOK_FLAGS, OPEN_DIR_MODE, Tree, WITHIN, failed, times};
use crate::UnpackError;
use crate::name::{EntryName, show, system_path};

/// The mode of directories that no layer lists.
const IMPLIED_DIR_MODE: u32 = 0o755;
/// Upper bound of the names of directories that are kept until the end.
const MAX_KEPT_NAME_BYTES: usize = 256 << 20;

/// What a directory gets at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectoryState {
    pub mode: u32,
    pub mtime: (i64, u32),
}

impl Tree<'_> {
    /// Sees that the directory of an entry is there, made if need be. False where it is not.
    pub(super) fn open_parent(
        &mut self,
        name: &EntryName,
        make: bool,
    ) -> Result<bool, UnpackError> {
        let (parent, _) = name.split();
        if self.last_parent.as_ref().is_some_and(|(path, _)| path == parent) {
            return Ok(true);
        }
        if self.present.contains(&self.key(parent)) {
            let opened = self.open_directory(name, parent)?;
            self.last_parent = Some((parent.to_owned(), opened));
            return Ok(true);
        }
        self.open_directory(name, b"")?;
        let ends = parent.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([parent.len()]).filter(|end| *end > 0) {
            let path = &parent[..end];
            match self.open_directory(name, path) {
                Err(UnpackError::Io { source, .. })
                    if source.raw_os_error() == Some(Errno::NOENT.raw_os_error()) =>
                {
                    if !make {
                        return Ok(false);
                    }
                    self.make_implied(name, path)?;
                }
                opened => drop(opened?),
            }
            if make {
                self.present.insert(self.key(path));
            }
        }
        let opened = self.open_directory(name, parent)?;
        self.last_parent = Some((parent.to_owned(), opened));
        Ok(true)
    }

    pub(super) fn parent(&self, name: &EntryName, path: &[u8]) -> Result<OwnedFd, UnpackError> {
        let cached = self.last_parent.as_ref().filter(|(known, _)| known == path);
        let cached = cached.and_then(|(_, opened)| opened.try_clone().ok());
        match cached {
            Some(opened) => Ok(opened),
            None => open_beneath(self.root, system_path(path), LOOK_FLAGS, Mode::empty(), WITHIN)
                .map_err(|errno| failed("opened", name, errno)),
        }
    }

    pub(super) fn make_implied(
        &mut self,
        name: &EntryName,
        path: &[u8],
    ) -> Result<(), UnpackError> {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (above, base) = at.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
        let above = self.parent(name, above)?;
        self.implied_left = self.implied_left.checked_sub(1).ok_or_else(|| {
            UnpackError::refused("its entries are in too many directories that it does not list")
        })?;
        mkdirat(above, base, OPEN_DIR_MODE).map_err(|errno| failed("made", name, errno))?;
        self.keep_directory(path, DirectoryState { mode: IMPLIED_DIR_MODE, mtime: (0, 0) })
    }

    /// Opens a directory of the tree for an entry in it, opened for its owner if a lower layer has closed it.
    pub(super) fn open_directory(
        &mut self,
        name: &EntryName,
        path: &[u8],
    ) -> Result<OwnedFd, UnpackError> {
        let refused = |reason: &str| {
            UnpackError::refused(format!(
                "{} is behind {}, {reason}",
                show(name.bytes()),
                show(path)
            ))
        };
        let opened =
            match open_beneath(self.root, system_path(path), LOOK_FLAGS, Mode::empty(), WITHIN) {
                Ok(opened) => opened,
                Err(Errno::LOOP) => return Err(refused("a symbolic link")),
                Err(Errno::NOTDIR) => return Err(refused("which is no directory")),
                Err(errno) => return Err(failed("opened", name, errno)),
            };
        if !self.directories.contains_key(path) {
            let stat = fstat(&opened).map_err(|errno| failed("looked at", name, errno))?;
            let mode = stat.st_mode & 0o7777;
            let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
            self.keep_directory(path, DirectoryState { mode, mtime: (stat.st_mtime, nanos) })?;
            if mode & 0o700 != 0o700 {
                let opening = chmod_descriptor(&opened, Mode::from(mode | 0o700));
                opening.map_err(|errno| failed("opened for its owner", name, errno))?;
            }
        }
        Ok(opened)
    }

    pub(super) fn keep_directory(
        &mut self,
        path: &[u8],
        state: DirectoryState,
    ) -> Result<(), UnpackError> {
        if self.directories.insert(path.to_owned(), state).is_none() {
            self.kept_name_bytes += path.len();
        }
        match self.kept_name_bytes > MAX_KEPT_NAME_BYTES {
            true => {
                Err(UnpackError::refused("the names of its directories are too long altogether"))
            }
            false => Ok(()),
        }
    }

    /// Gives directories their modes and times, the innermost first.
    pub fn finish(self) -> Result<(), UnpackError> {
        let mut directories: Vec<_> = self.directories.into_iter().collect();
        directories.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
        for (path, state) in directories {
            let opened =
                open_beneath(self.root, system_path(&path), LIST_FLAGS, Mode::empty(), WITHIN);
            let directory = match opened {
                Ok(directory) => directory,
                // It was hidden or replaced later.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(UnpackError::io("opened", &show(&path), errno)),
            };
            fchmod(&directory, Mode::from(state.mode))
                .and_then(|()| futimens(&directory, &times(state.mtime)))
                .map_err(|errno| UnpackError::io("given its mode and time", &show(&path), errno))?;
        }
        Ok(())
    }
}
