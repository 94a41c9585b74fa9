//! A native sandbox: the agent's client, with the host's counters behind it.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Command, EffectiveLimits, Files, Parts, Process, ProcessControl, Result, Sandbox, SandboxId,
    SnapshotKind, User,
};

use crate::linux::archives::Archives;
use crate::linux::brake::{Brake, Braked, Freezer};
use crate::linux::running::Running;
use crate::linux::settle;
use crate::linux::watch::{Watched, held};

pub(super) struct NativeSandbox {
    pub running: Arc<Running>,
    pub client: AgentClient,
    /// Whom everything in it runs as.
    pub user: User,
    pub archives: Archives,
    pub freezer: Arc<Freezer>,
}

#[async_trait]
impl Sandbox for NativeSandbox {
    fn id(&self) -> &SandboxId {
        &self.running.id
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = settle(command, self.user);
        let Process { events, control } = self.client.spawn(&command, &held(limits)).await?;
        let brake: Arc<dyn Brake> = Arc::clone(&self.freezer) as _;
        let control: Arc<dyn ProcessControl> = Arc::new(Braked { control, brake });
        let events = Box::new(Watched::new(events, &self.running, &control, limits.cpu_time));
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.client.files())
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.freezer.goes_on("snapshot").await?;
        self.archives.take(&self.client, kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.freezer.goes_on("restore").await?;
        self.archives.bring_back(&self.client, from).await
    }

    async fn pause(&self) -> Result<()> {
        self.freezer.set(true).await
    }

    async fn resume(&self) -> Result<()> {
        self.freezer.set(false).await
    }
}
