//! Whether a sandbox has a workspace right now. The process that runs one holds a lock on a directory of
//! the workspace: a backend that mounts layers on the overlay's work directory, every other one on the
//! copy. The kernel frees the lock when its holder dies.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_core::{Result, WorkspaceId};
use stockade_fs::{Locked, Sharing};

use crate::error::{FaultResult, FaultStep};
use crate::overlay_support::holds_layers;
use crate::request::{Kind, Mechanism};
use crate::workspaces::Workspaces;

/// The right to use a workspace, until it is dropped.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "it is held, not used")] Locked);

impl Workspaces {
    /// The best way to make a view here: the kernel's, where the file system of the state directory can
    /// hold layers.
    pub fn mechanism(&self) -> Mechanism {
        match holds_layers(self.directory()) {
            true => Mechanism::Kernel,
            false => Mechanism::Copy,
        }
    }

    /// Keeps others from applying or discarding a workspace while a sandbox has it. Nothing where the
    /// backend sees to that itself. From here on this process has it, until it is released.
    pub fn hold(&self, id: &WorkspaceId) -> Result<Option<Hold>> {
        let hold = || -> FaultResult<Option<Hold>> {
            let found = self.place(id)?;
            self.take(id)?;
            match found {
                (Mechanism::Kernel, _) | (_, None) => Ok(None),
                (Mechanism::Copy, Some(place)) => lock_view(place, Sharing::Shared),
            }
        };
        hold().map_err(|fault| fault.during("hold the workspace"))
    }

    /// The right to change a workspace that no sandbox has; nothing if one has it.
    pub fn claim(&self, id: &WorkspaceId) -> Result<Option<Hold>> {
        let claimed = self.place(id).and_then(|(_, place)| match place {
            Some(place) => lock_view(place, Sharing::Exclusive),
            None => Ok(None),
        });
        claimed.map_err(|fault| fault.during("look at the workspace"))
    }

    /// The directory that tells whether a view is in use.
    fn place(&self, id: &WorkspaceId) -> FaultResult<(Mechanism, Option<PathBuf>)> {
        let entry = self.peek(id);
        let manifest = entry.manifest(id)?;
        let place = match (manifest.kind, manifest.mechanism) {
            (Kind::Local | Kind::Ephemeral, _) => None,
            (Kind::Overlay | Kind::Git, Mechanism::Kernel) => Some(entry.work()),
            (Kind::Overlay | Kind::Git, Mechanism::Copy) => Some(entry.copy()),
        };
        Ok((manifest.mechanism, place))
    }
}

fn lock_view(place: PathBuf, sharing: Sharing) -> FaultResult<Option<Hold>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, &place, flags, Mode::empty()).step("open", place.display())?;
    let locked = Locked::attempt(File::from(opened), sharing).step("lock", place.display())?;
    Ok(locked.ok().map(Hold))
}
