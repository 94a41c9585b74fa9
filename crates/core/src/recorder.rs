//! What workspaces tell the audit journal, without knowing how it is kept.

use std::fmt::Debug;

use crate::{Result, TenantName, WorkspaceId};

/// Records which workspaces are handed out and given back (C-40).
pub trait WorkspaceRecorder: Debug + Send + Sync {
    /// Records that a workspace is handed out. If this fails, it is not. `kind` is as its manifest writes it;
    /// `root` is the directory it is about, or the repository without credentials (C-41).
    fn record_acquired(
        &self,
        workspace: &WorkspaceId,
        kind: &str,
        tenant: &TenantName,
        root: &str,
    ) -> Result<()>;

    /// Records that a workspace was given back.
    fn record_released(&self, workspace: &WorkspaceId) -> Result<()>;
}
