//! Where a sandbox gets its workspace from, without knowing how workspaces are kept. The engine acquires one before it
//! builds walls and releases it when they are gone.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Result, Workspace, WorkspaceId};

/// Hands out workspaces, each to one sandbox.
#[async_trait]
pub trait WorkspaceSource: Debug + Send + Sync {
    /// Hands one out. If this future is dropped, none is.
    async fn acquire(&self) -> Result<Arc<dyn HeldWorkspace>>;
}

/// A workspace that a sandbox has, or is about to have.
#[async_trait]
pub trait HeldWorkspace: Debug + Send + Sync {
    /// Its id.
    fn id(&self) -> &WorkspaceId;

    /// What the sandbox's spec takes.
    fn spec(&self) -> Workspace;

    /// Takes it back, once: further callers wait for the same end and get the same answer.
    async fn release(&self) -> Result<()>;
}
