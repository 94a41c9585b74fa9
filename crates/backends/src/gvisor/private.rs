//! The private directory of a sandbox: its bundle, its runtime's state, its snapshots. Never in `/run`,
//! from which hosts often let nothing be executed.

use std::path::{Path, PathBuf};

use stockade_core::{Result, SandboxId};

use super::NAME;
use crate::linux::private_dirs::PrivateDirs;

/// The private directories of this backend.
pub(super) const PRIVATE_DIRS: PrivateDirs = PrivateDirs { backend: NAME, prefix: "gvisor-" };

/// The directory of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct GvisorPrivate(PathBuf);

impl GvisorPrivate {
    /// Makes it, with its parts. It must be new.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        // Passed through by the runtime's helpers, who may be other users.
        PRIVATE_DIRS.make(id, 0o711, &["state"]).map(Self)
    }

    /// The bundle, as the runtime calls it.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// What the guest has for `/`, where it shares none with others.
    pub(super) fn root(&self) -> PathBuf {
        self.0.join("rootfs")
    }

    /// Where the runtime notes what it runs.
    pub(super) fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

/// Whether this is how a sandbox's runtime was told where to note what it runs.
pub(super) fn is_state_argument(argument: &[u8], id: &SandboxId) -> bool {
    argument.starts_with(b"--root=")
        && argument.ends_with(format!("/{}{id}/state", PRIVATE_DIRS.prefix).as_bytes())
}
