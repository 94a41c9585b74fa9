//! A native sandbox: the agent's client, with the host's counters behind it.

use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::{AgentClient, Limit};
use stockade_core::{
    Command, EffectiveLimits, EnvName, Files, Process, Result, Sandbox, SandboxId,
};

use super::running::Running;
use super::watch::Watched;

/// Private, writable, and there in every sandbox.
const HOME: &str = "/home/sandbox";

pub(super) struct NativeSandbox {
    pub running: Arc<Running>,
    pub client: AgentClient,
}

#[async_trait]
impl Sandbox for NativeSandbox {
    fn id(&self) -> &SandboxId {
        &self.running.id
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let command = self.settle(command);
        // For each process a whole second more than the execution may use: the exact count of all
        // of them is the watch's.
        let seconds = limits.cpu_time.map(|time| time.as_millis().div_ceil(1000) + 1);
        let held: Vec<_> =
            seconds.map(|seconds| (Limit::CpuSeconds, seconds)).into_iter().collect();
        let Process { events, control } = self.client.spawn(&command, &held).await?;
        let events = Box::new(Watched::new(events, &self.running, &control, limits.cpu_time));
        Ok(Process { events, control })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self.client.files())
    }
}

impl NativeSandbox {
    /// A home that can be written to, and no change of user where it is the sandbox's own.
    fn settle(&self, command: &Command) -> Command {
        let mut command = command.clone();
        if let Ok(name) = "HOME".parse::<EnvName>() {
            command.env.entry(name).or_insert_with(|| HOME.into());
        }
        command.user = command.user.filter(|user| *user != self.running.user);
        command
    }
}
