//! The journal as workspaces see it.

use stockade_core::{Result, TenantName, WorkspaceId, WorkspaceRecorder};

use super::{Event, Journal};

impl WorkspaceRecorder for Journal {
    fn record_acquired(
        &self,
        workspace: &WorkspaceId,
        kind: &str,
        tenant: &TenantName,
        root: &str,
    ) -> Result<()> {
        let event = Event::WorkspaceAcquired {
            workspace: workspace.clone(),
            workspace_kind: kind.to_owned(),
            tenant: tenant.clone(),
            root: root.to_owned(),
        };
        self.append(event).map(drop)
    }

    fn record_released(&self, workspace: &WorkspaceId) -> Result<()> {
        self.append(Event::WorkspaceReleased { workspace: workspace.clone() }).map(drop)
    }
}
