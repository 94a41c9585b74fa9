//! Which workspaces this process has. What a process had that died, however it died, is let go of by the
//! next one to come: changes are kept, all else is removed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_core::{Result, WorkspaceId};
use stockade_fs::{Locked, Sharing};

use crate::error::FaultResult;
use crate::request::Kind;
use crate::store::WorkspaceManifest;
use crate::workspaces::Workspaces;

/// The locks that say so. They go with the process.
#[derive(Debug, Default)]
pub(crate) struct Owned(Mutex<BTreeMap<WorkspaceId, Locked>>);

impl Owned {
    pub(crate) fn note(&self, id: &WorkspaceId, owner: Option<Locked>) {
        self.lock().extend(owner.map(|owner| (id.clone(), owner)));
    }

    pub(crate) fn forget(&self, id: &WorkspaceId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Locked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workspaces {
    /// Says that this process has a workspace that was made before.
    pub(crate) fn take(&self, id: &WorkspaceId) -> FaultResult<()> {
        self.owned().note(id, Some(self.peek(id).own()?));
        Ok(())
    }

    /// Leaves a workspace for a later caller that names it, whether it has changes or not.
    pub fn keep(&self, id: &WorkspaceId) -> Result<()> {
        let kept = || -> FaultResult<()> {
            let entry = self.store().enter(id, Sharing::Exclusive)?;
            entry.save(&WorkspaceManifest { released: true, ..entry.manifest(id)? })
        };
        kept().map_err(|fault| fault.during("keep the workspace"))?;
        self.owned().forget(id);
        self.record_release(id)
    }

    /// Lets go of what processes had that died: what was changed is kept, all else is removed.
    pub(crate) fn let_go_of_the_dead(&self) -> FaultResult<()> {
        for id in self.store().ids()? {
            let entry = self.peek(&id);
            let Ok(manifest) = entry.manifest(&id) else { continue };
            if manifest.released || manifest.kind == Kind::Local {
                continue;
            }
            let Some(_nobody) = entry.disown() else { continue };
            // Its sandbox may outlive its owner for a moment; the next to come finds it gone.
            let claim = self.claim(&id).ok().flatten();
            if claim.is_some() || manifest.kind == Kind::Ephemeral {
                // What cannot be removed now is no reason not to work on others.
                let _ = self.release_now(&id);
            }
        }
        Ok(())
    }
}
