//! What a sandbox without namespaces is to look like. Plain data, as the other plan is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::{Cgroup, Rlimits};

/// One sandbox without namespaces. Host paths are given resolved: a symbolic link in any of their
/// components is refused. The guest sees the host's own paths, as far as its rules let it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BarePlan {
    /// Name of the sandbox, for messages and for finding it among the host's processes.
    pub id: String,
    /// The workspace's directory.
    pub workspace: PathBuf,
    /// Whether the workspace may not be changed.
    pub read_only: bool,
    /// Files and directories that may be read besides.
    pub readable: Vec<PathBuf>,
    /// A directory made for this sandbox alone, which goes with it: its keeper removes it last.
    pub private: PathBuf,
    /// Directories that may be written to besides: below `private`, or named by the caller.
    pub writable: Vec<PathBuf>,
    /// Control groups that the caller has made and limited.
    pub cgroup: Option<Cgroup>,
    /// Resource limits.
    pub rlimits: Rlimits,
}

impl BarePlan {
    /// Everything the guest may change.
    pub(crate) fn changeable(&self) -> impl Iterator<Item = &PathBuf> {
        let workspace = (!self.read_only).then_some(&self.workspace);
        self.writable.iter().chain(workspace)
    }
}
