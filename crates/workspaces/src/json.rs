//! JSON files that appear and change whole or not at all.

use std::io;
use std::path::Path;

use serde::Serialize;
use stockade_fs::{Survives, write_atomically};

use crate::error::{FaultResult, FaultStep};

/// Writes a value. The caller holds the workspace's lock.
pub(crate) fn write_json(
    path: &Path,
    value: &impl Serialize,
    survives: Survives,
) -> FaultResult<()> {
    let name = path.with_extension("draft");
    let draft = name.file_name().unwrap_or_default().to_string_lossy();
    let json = serde_json::to_vec(value).map_err(io::Error::from);
    json.and_then(|json| write_atomically(path, &draft, &json, 0o600, survives))
        .step("write", path.display())
}
