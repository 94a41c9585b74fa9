//! What a caller asks the pipeline for.

use std::sync::Arc;

use stockade_core::{SandboxSpec, SnapshotId, WorkspaceSource};

use crate::host_views::WorkspaceBy;

/// What a sandbox is to be, and what it starts with. A spec alone is a request too.
#[derive(Debug, Clone)]
pub struct SandboxRequest {
    /// What it is to be.
    pub spec: SandboxSpec,
    /// Where its workspace comes from: acquired before its walls are built, put into the spec, and released
    /// when they are gone. Without one the spec is taken as it is.
    pub workspace: Option<Arc<dyn WorkspaceSource>>,
    /// The captured state that it starts with. What the spec leaves to automatic choice is taken from where the
    /// state was captured.
    pub from: Option<SnapshotId>,
    /// Whether the spec's workspace was acquired for another sandbox of this user, of which this one is a read-only copy.
    /// Never by what came over a wire: it may show what lies in the state directory.
    pub shares_workspace: bool,
}

impl SandboxRequest {
    /// Who has put the workspace into the spec.
    pub(crate) fn workspace_by(&self) -> WorkspaceBy {
        match self.workspace.is_some() || self.shares_workspace {
            true => WorkspaceBy::Source,
            false => WorkspaceBy::Caller,
        }
    }
}

impl From<SandboxSpec> for SandboxRequest {
    fn from(spec: SandboxSpec) -> Self {
        Self { spec, workspace: None, from: None, shares_workspace: false }
    }
}
