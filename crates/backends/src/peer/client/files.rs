//! A sandbox's files over the connection. What is written to the workspace from outside appears in the
//! caller's own copy too, as it does where there is only one.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stockade_agent::client::AgentClient;
use stockade_core::{Entry, Files, Result, SandboxPath, WORKSPACE_ROOT};

use super::workspace_sync::WorkspaceSync;

pub(crate) struct Synced {
    client: Arc<AgentClient>,
    sync: Arc<WorkspaceSync>,
}

impl Synced {
    pub fn new(client: Arc<AgentClient>, sync: Arc<WorkspaceSync>) -> Self {
        Self { client, sync }
    }

    fn inner(&self) -> &dyn Files {
        self.client.files()
    }

    /// After a change to what may lie in the workspace.
    async fn pull_if_shared(&self, path: &SandboxPath) -> Result<()> {
        // A link elsewhere may lead into the workspace too; then it comes back with the next command.
        match !path.is_absolute() || path.as_str().starts_with(WORKSPACE_ROOT) {
            true => self.sync.pull_changes().await,
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Files for Synced {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        self.inner().stat(path).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.inner().list(path).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Bytes> {
        self.inner().read(path, offset, most).await
    }

    async fn write(&self, path: &SandboxPath, data: Bytes, append: bool) -> Result<()> {
        self.inner().write(path, data, append).await?;
        self.pull_if_shared(path).await
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.inner().set_mode(path, mode).await?;
        self.pull_if_shared(path).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.inner().make_dir(path).await?;
        self.pull_if_shared(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.inner().rename(from, to).await?;
        self.pull_if_shared(from).await?;
        self.pull_if_shared(to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.inner().remove(path).await?;
        self.pull_if_shared(path).await
    }
}
