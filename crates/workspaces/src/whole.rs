//! Files that appear and change whole or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::fault::{FaultResult, FaultStep};

/// What a file survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survives {
    /// The end of this process.
    Process,
    /// The loss of power too. Costs a wait for the disk.
    Power,
}

/// Writes a value as JSON.
pub(crate) fn write_json(
    path: &Path,
    value: &impl Serialize,
    survives: Survives,
) -> FaultResult<()> {
    let json = serde_json::to_vec(value).map_err(io::Error::from);
    json.and_then(|json| replace_file(path, &json, survives)).step("write", path.display())
}

fn replace_file(path: &Path, bytes: &[u8], survives: Survives) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = File::create(&draft)?;
    file.write_all(bytes)?;
    if survives == Survives::Power {
        file.sync_data()?;
    }
    std::fs::rename(&draft, path)?;
    match survives {
        Survives::Process => Ok(()),
        Survives::Power => File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all(),
    }
}
