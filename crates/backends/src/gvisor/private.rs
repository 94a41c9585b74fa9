//! The private directory of a sandbox: its bundle, its runtime's state, its snapshots. Never in `/run`,
//! from which hosts often let nothing be executed.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result, SandboxId};

use super::NAME;
use crate::linux::private;

/// The prefix of the names of private directories.
pub(super) const DIRECTORY_PREFIX: &str = "gvisor-";

/// Where all of them lie.
pub(super) fn ensure_base_dir() -> Result<PathBuf> {
    private::ensure_base_dir().map_err(|error| {
        private_dir_unusable("the directory for private files cannot be used", error)
    })
}

/// The directory of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct GvisorPrivate(PathBuf);

impl GvisorPrivate {
    /// Makes it, with its parts. It must be new.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        let private = Self(private::private_dir_path(&ensure_base_dir()?, DIRECTORY_PREFIX, id));
        // Passed through by the runtime's helpers, who may be other users.
        let whole = [(private.0.clone(), 0o711)];
        let parts = [(private.state(), 0o700)];
        for (directory, mode) in whole.into_iter().chain(parts) {
            let made = DirBuilder::new().mode(mode).create(&directory);
            // Set once more, independent of the umask.
            made.and_then(|()| fs::set_permissions(&directory, Permissions::from_mode(mode)))
                .map_err(|error| {
                    private_dir_unusable("the private directory cannot be made", error)
                })?;
        }
        Ok(private)
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

/// The sandboxes that have one.
pub(super) fn list_sandbox_ids() -> Vec<SandboxId> {
    private::list_sandbox_ids(DIRECTORY_PREFIX)
}

/// Removes what is there of one.
pub(super) fn remove_private_dir(id: &SandboxId) -> Result<()> {
    private::remove_private_dir(&NAME, DIRECTORY_PREFIX, id)
}

/// Whether this is how a sandbox's runtime was told where to note what it runs.
pub(super) fn is_state_argument(argument: &[u8], id: &SandboxId) -> bool {
    argument.starts_with(b"--root=")
        && argument.ends_with(format!("/{DIRECTORY_PREFIX}{id}/state").as_bytes())
}

/// Something in it failed, as on a full disk.
pub(super) fn private_dir_unusable(what: &str, error: io::Error) -> Error {
    Error::new(ErrorCode::System, "create", what)
        .backend(NAME)
        .remedy(private::PRIVATE_DIR_REMEDY)
        .source(error)
}
