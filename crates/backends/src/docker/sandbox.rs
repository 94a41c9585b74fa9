//! A sandbox in a container: the agent's client, with the host's counters behind it.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Boundary, Command, EffectiveLimits, Files, Parts, Process, Result, Sandbox, SandboxId,
    SnapshotKind, User,
};

use super::container::Container;
use crate::linux::archives::Archives;
use crate::linux::running::Running;
use crate::linux::settle;
use crate::linux::watch::{Watched, held, held_apart};

pub(super) struct DockerSandbox {
    pub running: Arc<Running>,
    pub client: AgentClient,
    /// Whom everything in it runs as.
    pub user: User,
    pub container: Container,
    pub archives: Archives,
    /// What was seen between it and the host's kernel.
    pub boundary: Boundary,
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn id(&self) -> &SandboxId {
        &self.running.id
    }

    fn alive(&self) -> bool {
        self.client.is_open() && self.running.lives()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = settle(command, self.user);
        let each = match self.boundary == Boundary::SharedKernel {
            true => held(limits),
            false => held_apart(limits, &self.running),
        };
        let Process { events, control } = self.client.spawn(&command, &each).await?;
        let events = Box::new(Watched::new(events, &self.running, &control, limits.cpu_time));
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.client.files())
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.archives.take(&self.client, kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.archives.bring_back(&self.client, from).await
    }

    async fn pause(&self) -> Result<()> {
        self.container.pause().await
    }

    async fn resume(&self) -> Result<()> {
        self.container.resume().await
    }
}
