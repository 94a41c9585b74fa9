//! What a caller asks the pipeline for.

use std::sync::Arc;

use stockade_core::{SandboxSpec, SnapshotId, WorkspaceSource};

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
}

impl From<SandboxSpec> for SandboxRequest {
    fn from(spec: SandboxSpec) -> Self {
        Self { spec, workspace: None, from: None }
    }
}
