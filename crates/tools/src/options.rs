//! What a toolbox is opened with. Everything is passed in.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use stockade_backends::local::{self, Local};
use stockade_core::{
    Backend as _, BackendChoice, Error, ErrorCode, HostPath, Result, SandboxId, SandboxSpec,
    Workspace, admit,
};
use stockade_workspaces::{SandboxWorkspaces, Workspaces};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ToolError;
use crate::approval::ApprovalConfig;
use crate::directories::{AllowedDirectories, UsedDirectory};
use crate::hosts::HostAsks;

/// What a toolbox is opened with.
#[derive(Debug, Clone)]
pub struct ToolboxOptions {
    /// The engine's state directory: output is kept beneath it until its sandbox is gone.
    pub state_dir: PathBuf,
    /// The sandbox of every call that names none, built at the first such call.
    pub bound: Option<SandboxSpec>,
    /// A live sandbox of the engine, instead of one that is built: the user's, neither ended with the session nor
    /// replaced.
    pub adopted: Option<AdoptedSandbox>,
    /// Where calls run that name no sandbox when none is bound. Absent: they are refused.
    pub local: Option<LocalOptions>,
    /// The user's rules. Never from the workspace, never from the agent.
    pub approval: ApprovalConfig,
    /// Where sandboxes get workspaces from whose changes are kept apart: each whose spec plans an overlay gets
    /// its own.
    pub workspaces: Option<SandboxWorkspaces>,
    /// What sandboxes made by `sandbox_create` are like where the agent does not say.
    pub template: SandboxSpec,
    /// Looks anew, for each sandbox that is built, at what the template shows of the host.
    pub renewal: Option<SpecRenewal>,
    /// Which directories of the host an agent may name as their workspaces.
    pub directories: AllowedDirectories,
    /// How many of those there may be at once. Clones of these options share it.
    pub quota: SandboxQuota,
    /// The person that is asked about hosts while a command runs. Clones of these options share it.
    pub hosts: HostAsks,
}

/// Looks anew at what a spec shows of the host, which may have changed since the session began. Waits for files.
#[derive(Clone)]
pub struct SpecRenewal(Arc<dyn Fn(SandboxSpec) -> Result<SandboxSpec> + Send + Sync>);

impl SpecRenewal {
    /// By this function.
    pub fn new(renew: impl Fn(SandboxSpec) -> Result<SandboxSpec> + Send + Sync + 'static) -> Self {
        Self(Arc::new(renew))
    }

    pub(crate) async fn renew(&self, spec: SandboxSpec) -> Result<SandboxSpec> {
        let renew = Arc::clone(&self.0);
        let renewed = tokio::task::spawn_blocking(move || renew(spec)).await;
        renewed.unwrap_or_else(|error| {
            Err(Error::new(ErrorCode::System, "create", "the host could not be looked at")
                .source(error))
        })
    }
}

impl fmt::Debug for SpecRenewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpecRenewal(…)")
    }
}

/// A sandbox that was there before the session and goes on after it.
#[derive(Debug, Clone)]
pub struct AdoptedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// What it was asked to be.
    pub spec: SandboxSpec,
    /// Where its workspace is kept, if that keeps changes apart.
    pub workspaces: Option<Workspaces>,
}

/// What a sandbox that an agent made has of what all of them share. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct SandboxShare {
    pub _permit: OwnedSemaphorePermit,
    pub _directory: Option<UsedDirectory>,
}

/// How many sandboxes agents may have made at once. Clones share what is left.
#[derive(Debug, Clone)]
pub struct SandboxQuota {
    most: usize,
    left: Arc<Semaphore>,
}

/// Execution without walls: a spec that local execution honours in all it says.
#[derive(Debug, Clone)]
pub struct LocalOptions(SandboxSpec);

impl LocalOptions {
    /// Local execution in a directory, with nothing else said.
    pub fn at(workspace: HostPath) -> Self {
        Self(local::spec(workspace))
    }

    /// Local execution by a spec, with the walls given up that it cannot have. Everything else that the spec
    /// asks for and a plain child of this process has not is refused, all of it at once (C-01, C-02).
    pub async fn new(spec: SandboxSpec) -> Result<Self> {
        const LOCAL_OPERATION: &str = "execute locally";
        let Workspace::Local(workspace) = &spec.workspace else {
            let message = "local execution needs a directory of this machine";
            return Err(Error::new(ErrorCode::Invalid, LOCAL_OPERATION, message)
                .remedy("name it with --workspace DIR, without --overlay"));
        };
        let walls = local::spec(workspace.clone());
        let mut spec = SandboxSpec { backend: BackendChoice::Named(local::NAME), ..spec };
        spec.without.extend(walls.without);
        match admit(&spec, &Local::default().probe().await) {
            Ok(_) => Ok(Self(spec)),
            Err(refusals) => Err(Error::refused(LOCAL_OPERATION, Some(local::NAME), refusals)),
        }
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        self.0.clone()
    }
}

impl SandboxQuota {
    /// Number of sandboxes where none is configured.
    pub const DEFAULT_SANDBOXES: usize = 16;

    /// This many.
    pub fn new(most: usize) -> Self {
        Self { most, left: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))) }
    }

    /// A share, given back when it is dropped.
    pub(crate) fn take(&self) -> Result<OwnedSemaphorePermit, ToolError> {
        Arc::clone(&self.left).try_acquire_owned().map_err(|_| {
            let message = format!("agents have {} sandboxes, as many as they may have", self.most);
            ToolError::new(ErrorCode::QuotaExceeded, message).remedy(
                "end one with `sandbox_destroy`, or have the server started with --max-sandboxes N",
            )
        })
    }
}

impl Default for SandboxQuota {
    fn default() -> Self {
        Self::new(Self::DEFAULT_SANDBOXES)
    }
}

impl ToolboxOptions {
    /// Nothing bound, nothing local, the default rules.
    pub fn at(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            bound: None,
            adopted: None,
            local: None,
            approval: ApprovalConfig::default(),
            workspaces: None,
            template: SandboxSpec::default(),
            renewal: None,
            directories: AllowedDirectories::default(),
            quota: SandboxQuota::default(),
            hosts: HostAsks::default(),
        }
    }
}
