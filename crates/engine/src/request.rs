//! What a caller asks the pipeline for.

use stockade_core::{SandboxSpec, SnapshotId};

/// What a sandbox is to be, and what it starts with.
#[derive(Debug, Clone)]
pub(crate) struct SandboxRequest {
    /// What it is to be.
    pub spec: SandboxSpec,
    /// The captured state that it starts with. What the spec leaves to automatic choice is taken from where the
    /// state was captured.
    pub from: Option<SnapshotId>,
}
