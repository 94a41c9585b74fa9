//! Host paths that a spec names. They were resolved when they were checked (C-06): what leads elsewhere by now
//! was not checked, and is refused.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_core::{BackendName, Error, ErrorCode, HostPath, Result};

/// The path itself, if no part of it is a symbolic link.
pub(crate) fn resolve_path(
    backend: &BackendName,
    field: &'static str,
    path: &HostPath,
) -> Result<PathBuf> {
    let path = path.as_path();
    let found = fs::canonicalize(path)
        .map_err(|error| unusable_path(backend, field, path, "cannot be used").source(error))?;
    match found == path {
        true => Ok(found),
        false => Err(unusable_path(backend, field, path, "leads elsewhere by a symbolic link")
            .remedy("name the directory itself, and let no other user change the path to it")),
    }
}

/// The same, if it is a directory.
pub(crate) fn resolve_directory(
    backend: &BackendName,
    field: &'static str,
    path: &HostPath,
) -> Result<PathBuf> {
    let path = resolve_path(backend, field, path)?;
    match path.is_dir() {
        true => Ok(path),
        false => Err(unusable_path(backend, field, &path, "is not a directory")),
    }
}

/// It cannot be part of a sandbox.
pub(crate) fn unusable_path(
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
