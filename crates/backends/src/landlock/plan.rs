//! From an admitted spec to the launcher's plan. Host paths are resolved here, so that what the
//! launcher opens is what the caller meant and no link is followed later.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_core::{
    Admitted, EffectiveLimits, Error, ErrorCode, Result, SandboxId, SandboxSpec, Workspace,
};
use stockade_launcher::{BarePlan, Rlimits};

use super::NAME;
use super::private::Private;

pub(super) fn plan(
    id: &SandboxId,
    admitted: &Admitted,
    workspace: Option<PathBuf>,
    private: &Private,
) -> BarePlan {
    BarePlan {
        id: id.to_string(),
        workspace: workspace.unwrap_or_else(|| private.workspace()),
        read_only: admitted.spec().read_only,
        private: private.path().to_owned(),
        writable: vec![private.home(), private.temporary()],
        cgroup: None,
        rlimits: rlimits(admitted.limits()),
    }
}

/// The host directory that is the workspace, if one is.
pub(super) fn workspace(spec: &SandboxSpec) -> Result<Option<PathBuf>> {
    let Workspace::Local(path) = &spec.workspace else { return Ok(None) };
    let path = fs::canonicalize(path.as_path())
        .map_err(|error| unusable(path.as_path(), "cannot be used").source(error))?;
    match path.is_dir() {
        true => Ok(Some(path)),
        false => Err(unusable(&path, "is not a directory")),
    }
}

fn unusable(path: &Path, what: &str) -> Error {
    let message = format!("workspace: `{}` {what}", path.display());
    Error::new(ErrorCode::Invalid, "create", message)
        .backend(NAME)
        .remedy("name a directory that exists and that you may read")
}

/// What each single process is held to, whatever the groups do. Not the number of processes: without
/// a user namespace the kernel would count all of this user's.
fn rlimits(limits: &EffectiveLimits) -> Rlimits {
    Rlimits {
        nofile: limits.open_files.map(u64::from),
        fsize: limits.disk.map(|disk| disk.0),
        data: limits.memory.map(|memory| memory.0),
        ..Rlimits::default()
    }
}
