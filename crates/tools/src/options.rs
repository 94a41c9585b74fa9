//! What a toolbox is opened with. Everything is passed in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stockade_core::{EnvName, HostPath, SandboxSpec};

use crate::approval::ApprovalConfig;
use crate::views::Views;

/// What a toolbox is opened with.
#[derive(Debug, Clone)]
pub struct ToolboxOptions {
    /// The engine's state directory: output is kept beneath it until its sandbox is gone.
    pub state_dir: PathBuf,
    /// The sandbox of every call that names none, built at the first such call.
    pub bound: Option<SandboxSpec>,
    /// Where calls run that name no sandbox when none is bound. Absent: they are refused.
    pub local: Option<LocalOptions>,
    /// The user's rules. Never from the workspace, never from the agent.
    pub approval: ApprovalConfig,
    /// Where sandboxes get views from whose changes are kept apart: each whose spec says so gets its own.
    pub views: Option<Views>,
    /// What sandboxes made by `sandbox_create` are like where the agent does not say.
    pub template: SandboxSpec,
}

/// Execution without walls.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The directory the work is about. File tools stay beneath it.
    pub workspace: HostPath,
    /// The environment of every command. Nothing is inherited.
    pub env: BTreeMap<EnvName, String>,
}

impl ToolboxOptions {
    /// Nothing bound, nothing local, the default rules.
    pub fn at(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            bound: None,
            local: None,
            approval: ApprovalConfig::default(),
            views: None,
            template: SandboxSpec::default(),
        }
    }
}
