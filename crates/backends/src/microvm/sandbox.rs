//! A sandbox in a machine of its own: what is inside it speaks as another host would, and the machine as a
//! whole can be stopped.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_core::{
    Command, EffectiveLimits, Files, Parts, Process, ProcessControl, Result, Sandbox, SandboxId,
    SnapshotKind,
};

use crate::across::near::FarSandbox;
use crate::linux::brake::{Brake, Braked};

/// A sandbox in a machine of its own.
pub(super) struct MicrovmSandbox {
    inside: FarSandbox,
    brake: Arc<Brake>,
}

impl MicrovmSandbox {
    pub(super) fn new(inside: FarSandbox, brake: Arc<Brake>) -> Self {
        Self { inside, brake }
    }
}

#[async_trait]
impl Sandbox for MicrovmSandbox {
    fn id(&self) -> &SandboxId {
        self.inside.id()
    }

    fn alive(&self) -> bool {
        self.inside.alive()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let Process { events, control } = self.inside.spawn(command, limits).await?;
        let brake = Arc::clone(&self.brake);
        let control: Arc<dyn ProcessControl> = Arc::new(Braked { control, brake });
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        self.inside.files()
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.brake.goes_on("snapshot").await?;
        self.inside.snapshot(kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.brake.goes_on("restore").await?;
        self.inside.restore(from).await
    }

    async fn pause(&self) -> Result<()> {
        self.brake.set(true).await
    }

    async fn resume(&self) -> Result<()> {
        self.brake.set(false).await
    }
}
