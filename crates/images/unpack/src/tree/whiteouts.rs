//! Whiteouts: what a layer hides of those below it.

use rustix::fs::Mode;
use rustix::io::Errno;
use stockade_fs::{ClosedDirs, list_names, open_beneath, remove_entry};

use super::{LIST_FLAGS, LOOK_FLAGS, Tree, WITHIN, failed};
use crate::UnpackError;
use crate::name::{EntryName, system_path};

impl Tree<'_> {
    /// Hides what lower layers have at this name.
    pub fn white_out(&mut self, name: &EntryName) -> Result<(), UnpackError> {
        let (parent_path, base) = name.split();
        let is_there = self.open_parent(name, false)?;
        // That directory need not be of this layer, and may be hidden by another whiteout.
        self.last_parent = None;
        if !is_there {
            return Ok(());
        }
        if self.present.contains(&self.key(name.bytes())) {
            return self.purge_lower(name.bytes());
        }
        let parent = self.parent(name, parent_path)?;
        remove_entry(&parent, base, ClosedDirs::Open)
            .map_err(|errno| failed("removed", name, errno))
    }

    /// Hides everything that lower layers have in this directory.
    pub fn make_opaque(&mut self, directory: &EntryName) -> Result<(), UnpackError> {
        let is_there = directory.is_root() || self.open_parent(directory, false)?;
        self.last_parent = None;
        match is_there {
            true => self.purge_lower(directory.bytes()),
            false => Ok(()),
        }
    }

    /// Removes what is beneath a path and not of this layer. Paths are bounded in components, and so is this.
    fn purge_lower(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let shown = EntryName::parse(path)?;
        match open_beneath(self.root, system_path(path), LOOK_FLAGS, Mode::empty(), WITHIN) {
            Ok(_) => {}
            // Nothing that could hold anything.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(failed("opened", &shown, errno)),
        }
        self.open_directory(&shown, path)?;
        let listed = open_beneath(self.root, system_path(path), LIST_FLAGS, Mode::empty(), WITHIN);
        let listed = listed.map_err(|errno| failed("opened", &shown, errno))?;
        let names = list_names(&listed).map_err(|errno| failed("listed", &shown, errno))?;
        for name in names {
            let child = [path, if path.is_empty() { b"" } else { b"/" }, name.to_bytes()].concat();
            if self.present.contains(&self.key(&child)) {
                self.purge_lower(&child)?;
            } else {
                remove_entry(&listed, &*name, ClosedDirs::Open)
                    .map_err(|errno| failed("removed", &shown, errno))?;
            }
        }
        Ok(())
    }
}
