//! Private directories of sandboxes among the host's temporary files. Each is named after its sandbox, so
//! that whoever comes later finds and removes it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_core::{BackendName, Result, SandboxId};
use stockade_launcher::clear;

use super::running::left_behind;

/// Where they lie, without any symbolic link in the way.
pub(crate) fn base() -> io::Result<PathBuf> {
    fs::canonicalize(std::env::temp_dir())
}

/// The directory of one sandbox. `prefix` is the backend's own.
pub(crate) fn path(base: &Path, prefix: &str, id: &SandboxId) -> PathBuf {
    base.join(format!("{prefix}{id}"))
}

/// The sandboxes of this user that have one.
pub(crate) fn ids(prefix: &str) -> Vec<SandboxId> {
    let Ok(base) = base() else { return Vec::new() };
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let ours = entries
        .filter(|entry| entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own));
    ours.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
        .collect()
}

/// Removes what is there of one.
pub(crate) fn remove(backend: &BackendName, prefix: &str, id: &SandboxId) -> Result<()> {
    let removed = base().and_then(|base| clear(&path(&base, prefix, id)));
    removed.map_err(|error| {
        left_behind(backend, id, "its private directory cannot be removed").source(error)
    })
}
