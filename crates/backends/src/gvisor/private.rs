//! The private directory of a sandbox: its bundle, its runtime's state, its snapshots. All of them lie
//! in one place of this user's, each named after its sandbox, so that whoever comes later finds and
//! removes it. Never in `/run`, from which hosts often let nothing be executed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result, SandboxId};
use stockade_launcher::clear;

use super::NAME;
use crate::linux::running::left_behind;

/// Passed through by the runtime's helpers, who may be other users, and listed by nobody else.
const PASSABLE: u32 = 0o711;

/// Where all of them lie.
pub(super) fn base() -> Result<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let made = fs::canonicalize(std::env::temp_dir()).and_then(|temporary| {
        let base = temporary.join(format!("stockade-gvisor-{own}"));
        make(&base)?;
        let found = fs::symlink_metadata(&base)?;
        let ours = found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0;
        if ours { Ok(base) } else { Err(io::Error::other("it is somebody else's")) }
    });
    made.map_err(|error| unusable("the directory for private files cannot be used", error))
}

/// Makes a directory; one that is there already serves as well.
fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PASSABLE).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// The directory of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Private(PathBuf);

impl Private {
    /// Makes it, with its parts. It must be new.
    pub(super) fn make(id: &SandboxId) -> Result<Self> {
        let private = Self(base()?.join(id.as_str()));
        let parts = [(private.root(), 0o755), (private.state(), 0o700)];
        let whole = [(private.0.clone(), PASSABLE)];
        for (directory, mode) in whole.into_iter().chain(parts) {
            let made = DirBuilder::new().mode(mode).create(directory);
            made.map_err(|error| unusable("the private directory cannot be made", error))?;
        }
        Ok(private)
    }

    /// The bundle, as the runtime calls it.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// What the guest has for `/`.
    pub(super) fn root(&self) -> PathBuf {
        self.0.join("rootfs")
    }

    /// Where the runtime notes what it runs.
    pub(super) fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

/// The sandboxes that have one.
pub(super) fn ids() -> Vec<SandboxId> {
    let Ok(base) = base() else { return Vec::new() };
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Removes what is there of one.
pub(super) fn remove(id: &SandboxId) -> Result<()> {
    clear(&base()?.join(id.as_str())).map_err(|error| {
        left_behind(&NAME, id, "its private directory cannot be removed").source(error)
    })
}

/// Something in it failed, as on a full disk.
pub(super) fn unusable(what: &str, error: io::Error) -> Error {
    Error::new(ErrorCode::System, "create", what)
        .backend(NAME)
        .remedy("point TMPDIR to a directory of your own with room to spare")
        .source(error)
}
