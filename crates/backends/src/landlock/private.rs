//! The private directory of a sandbox: its home, its temporary files and, where it has no other, its
//! workspace. Named after the sandbox, so that a later process finds and removes it.

use std::path::{Path, PathBuf};

use stockade_core::{Result, SandboxId};

use super::NAME;
use crate::linux::private_dirs::PrivateDirs;

/// The private directories of this backend.
pub(super) const PRIVATE_DIRS: PrivateDirs = PrivateDirs { backend: NAME, prefix: "stockade-" };

pub(super) struct LandlockPrivate(PathBuf);

impl LandlockPrivate {
    /// Makes it, with its parts. It must be new. No workspace holds it: the engine sees to that.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        PRIVATE_DIRS.make(id, 0o700, &["home", "tmp", "workspace"]).map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.0.join("tmp")
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }
}
