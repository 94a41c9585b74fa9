//! The private directory of a sandbox: its home, its temporary files and, where it has no other, its
//! workspace. Named after the sandbox, so that a later process finds and removes it.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result, SandboxId};

use super::NAME;
use crate::linux::private;

/// The prefix of the names of private directories.
pub(super) const DIRECTORY_PREFIX: &str = "stockade-";

pub(super) struct LandlockPrivate(PathBuf);

impl LandlockPrivate {
    /// Makes it, with its parts. It must be new. No workspace holds it: the engine sees to that.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        let base = private::ensure_base_dir()
            .map_err(|error| private_dir_unusable("cannot be found", error))?;
        let private = Self(private::private_dir_path(&base, DIRECTORY_PREFIX, id));
        let parts = [private.home(), private.temporary(), private.workspace()];
        for directory in [private.path().to_owned()].into_iter().chain(parts) {
            let made = DirBuilder::new().mode(0o700).create(&directory);
            made.map_err(|error| private_dir_unusable("cannot be written to", error))?;
        }
        Ok(private)
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

fn private_dir_unusable(what: &str, error: io::Error) -> Error {
    let message = format!("the directory for private files {what}");
    Error::new(ErrorCode::System, "create", message)
        .backend(NAME)
        .remedy(private::PRIVATE_DIR_REMEDY)
        .source(error)
}
