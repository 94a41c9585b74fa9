//! From an admitted spec to the launcher's plan. Host paths are resolved here, so that what the
//! launcher opens is what the caller meant and no link is followed later.

use std::path::PathBuf;

use stockade_core::{Admitted, Result, SandboxId, SandboxSpec, Workspace};
use stockade_launcher::BarePlan;

use super::NAME;
use super::private::Private;
use crate::linux::limits::per_process_raisable;
use crate::linux::paths::directory;

/// Without its control group. The number of processes is that one's alone: without a user namespace
/// the kernel would count all of this user's.
pub(super) fn plan(
    id: &SandboxId,
    admitted: &Admitted,
    workspace: Option<PathBuf>,
    private: &Private,
    memory_is_held: bool,
) -> BarePlan {
    BarePlan {
        id: id.to_string(),
        workspace: workspace.unwrap_or_else(|| private.workspace()),
        read_only: admitted.spec().read_only,
        private: private.path().to_owned(),
        writable: vec![private.home(), private.temporary()],
        cgroup: None,
        rlimits: per_process_raisable(admitted, memory_is_held),
    }
}

/// The host directory that is the workspace, if one is.
pub(super) fn workspace(spec: &SandboxSpec) -> Result<Option<PathBuf>> {
    let Workspace::Local(path) = &spec.workspace else { return Ok(None) };
    directory(&NAME, "workspace", path).map(Some)
}
