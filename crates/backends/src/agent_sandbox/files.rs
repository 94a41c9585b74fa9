//! Files of a sandbox that calls its workspace by another path than the caller does.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_agent::client::AgentClient;
use stockade_core::{Entry, Files, Result, SandboxPath};

/// The agent's files behind a rule for paths.
pub(crate) struct MappedFiles<M> {
    client: Arc<AgentClient>,
    map: M,
}

impl<M: Fn(&SandboxPath) -> Result<SandboxPath>> MappedFiles<M> {
    /// The files that this rule leads to. A path that it refuses is not asked for.
    pub(crate) fn new(client: &Arc<AgentClient>, map: M) -> Self {
        Self { client: Arc::clone(client), map }
    }
}

#[async_trait]
impl<M> Files for MappedFiles<M>
where
    M: Fn(&SandboxPath) -> Result<SandboxPath> + Send + Sync,
{
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        self.client.files().stat(&(self.map)(path)?).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.client.files().list(&(self.map)(path)?).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        self.client.files().read(&(self.map)(path)?, offset, most).await
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        self.client.files().write(&(self.map)(path)?, data, append).await
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.client.files().set_mode(&(self.map)(path)?, mode).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.client.files().make_dir(&(self.map)(path)?).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.client.files().rename(&(self.map)(from)?, &(self.map)(to)?).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.client.files().remove(&(self.map)(path)?).await
    }
}
