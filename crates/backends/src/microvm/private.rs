//! The private directory of a sandbox: where its disk lies until it is open, and what its driver needs. No
//! other user passes through it (C-07).

use std::path::{Path, PathBuf};

use stockade_core::{Result, SandboxId};

use super::NAME;
use crate::linux;
use crate::linux::private_dirs::PrivateDirs;

/// The private directories of this backend.
pub(super) const PRIVATE_DIRS: PrivateDirs = PrivateDirs { backend: NAME, prefix: "microvm-" };

/// One of them.
#[derive(Debug)]
pub(super) struct PrivateDir {
    id: SandboxId,
    path: PathBuf,
}

impl PrivateDir {
    /// Makes it. It must be new.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        let path = PRIVATE_DIRS.make(id, 0o700, &[])?;
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
        PRIVATE_DIRS.remove(&self.id)
    }
}

/// A directory that is removed with this value: of a machine being prepared, which no caller asks for again.
pub(super) struct Trial(PrivateDir);

impl Trial {
    pub(super) fn make() -> Result<Self> {
        PrivateDir::make(&linux::trial_id()).map(Self)
    }

    pub(super) fn get(&self) -> &PrivateDir {
        &self.0
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // What stays is swept by the next engine.
        let _ = self.0.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn no_other_user_passes_through_the_directory_of_a_machine() {
        let make = || {
            stockade_launcher::take_own_umask(rustix::fs::Mode::empty()).unwrap();
            let private = PrivateDir::make(&crate::linux::trial_id()).unwrap();
            let mode = std::fs::metadata(private.path()).unwrap().mode();
            private.remove().unwrap();
            mode & 0o7777
        };
        let mode = std::thread::scope(|scope| scope.spawn(make).join().unwrap());
        assert_eq!(mode, 0o700);
    }
}
