//! Host paths that a spec names: resolved once, before anything is built, so that what is mounted is what
//! the caller meant and no link is followed later.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_core::{BackendName, Error, ErrorCode, HostPath, Result};

/// The path itself, behind all symbolic links.
pub(crate) fn resolve(
    backend: &BackendName,
    field: &'static str,
    path: &HostPath,
) -> Result<PathBuf> {
    fs::canonicalize(path.as_path())
        .map_err(|error| unusable(backend, field, path.as_path(), "cannot be used").source(error))
}

/// The same, if it is a directory.
pub(crate) fn directory(
    backend: &BackendName,
    field: &'static str,
    path: &HostPath,
) -> Result<PathBuf> {
    let path = resolve(backend, field, path)?;
    match path.is_dir() {
        true => Ok(path),
        false => Err(unusable(backend, field, &path, "is not a directory")),
    }
}

/// It cannot be part of a sandbox.
pub(crate) fn unusable(
    backend: &BackendName,
    field: &'static str,
    path: &Path,
    what: &str,
) -> Error {
    let message = format!("{field}: `{}` {what}", path.display());
    Error::new(ErrorCode::Invalid, "create", message)
        .backend(backend.clone())
        .remedy("name a directory that exists and that you may read")
}
