//! The private directory of a sandbox: where the helper inside its walls comes for its files, and where its
//! disk lies until it is open.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stockade_core::{Result, SandboxId};

use super::{NAME, failed};
use crate::linux::private;

const PREFIX: &str = "microvm-";

/// One of them.
#[derive(Debug)]
pub(super) struct Private {
    id: SandboxId,
    path: PathBuf,
}

impl Private {
    /// Makes it. It must be new.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        let made = private::base().and_then(|base| {
            let path = private::path(&base, PREFIX, id);
            DirBuilder::new().mode(0o711).create(&path).map(|()| path)
        });
        let path = made.map_err(|error| {
            failed("create", "its private directory cannot be made")
                .remedy(private::REMEDY)
                .source(error)
        })?;
        Ok(Self { id: id.clone(), path })
    }

    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it.
    pub(super) fn remove(&self) -> Result<()> {
        remove(&self.id)
    }
}

/// Removes what is there of one.
pub(super) fn remove(id: &SandboxId) -> Result<()> {
    private::remove(&NAME, PREFIX, id)
}

/// The sandboxes of this user that have one.
pub(super) fn ids() -> Vec<SandboxId> {
    private::ids(PREFIX)
}
