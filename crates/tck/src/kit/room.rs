//! A sandbox that stays while a case works in it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes as Data;
use serde_json::Value;
use stockade_core::{
    Command, Error, ErrorCode, FilesExt, Result, Sandbox, SandboxId, SandboxPath, SnapshotId,
    SnapshotKind,
};
use stockade_engine::{Execution, Snapshot};

use super::{Kit, Ran, collect_output, probe_command, wait_for_output};
use crate::{ProbeForm, Verdict};

/// Time for which a marker inside is watched for growth: many heartbeats.
const MARKER_WATCH_DURATION: Duration = Duration::from_millis(500);
const MARKER_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Name of the probe in a workspace.
const PROBE_FILE: &str = "probe";

/// A sandbox that stays until the case destroys it, or the kit ends.
#[derive(Clone)]
pub struct Room {
    kit: Kit,
    id: SandboxId,
}

impl Room {
    pub(super) fn new(kit: Kit, id: SandboxId) -> Self {
        Self { kit, id }
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The live sandbox: files, snapshots, pause.
    pub fn sandbox(&self) -> Verdict<Arc<dyn Sandbox>> {
        Ok(self.kit.engine().sandbox(&self.id)?)
    }

    /// Starts a command in it.
    pub async fn start(&self, command: Command) -> Verdict<Execution> {
        Ok(self.kit.engine().exec(&self.id, command).await?)
    }

    /// Starts a verb of the probe and waits until it has said `ready`.
    pub async fn start_ready<'a>(&self, verb: impl AsRef<[&'a str]>) -> Verdict<Execution> {
        let execution = self.start(probe_command(verb)).await?;
        wait_for_output(&mut execution.subscribe(), "ready\n").await?;
        Ok(execution)
    }

    /// Runs a verb of the probe to its end.
    pub async fn run<'a>(&self, verb: impl AsRef<[&'a str]>) -> Verdict<Ran> {
        self.run_command(probe_command(verb)).await
    }

    /// Runs a command to its end.
    pub async fn run_command(&self, command: Command) -> Verdict<Ran> {
        let (_execution, follower) = self.kit.engine().exec_followed(&self.id, command).await?;
        collect_output(follower).await
    }

    /// The facts an attempt of the probe printed.
    pub async fn facts<'a>(&self, verb: impl AsRef<[&'a str]>) -> Verdict<Value> {
        self.run(verb).await?.facts()
    }

    /// Captures its state.
    pub async fn snapshot(&self, kind: SnapshotKind) -> Verdict<Snapshot> {
        Ok(self.kit.engine().snapshot(&self.id, kind).await?)
    }

    /// Brings a state back.
    pub async fn restore(&self, snapshot: &SnapshotId) -> Verdict {
        Ok(self.kit.engine().restore(&self.id, snapshot).await?)
    }

    /// Copies of it.
    pub async fn fork(&self, count: usize) -> Verdict<Vec<Self>> {
        let made = self.kit.engine().fork(&self.id, count).await?;
        Ok(made.into_iter().map(|id| Self::new(self.kit.clone(), id)).collect())
    }

    /// Destroys it.
    pub async fn destroy(&self) -> Verdict {
        Ok(self.kit.engine().destroy(&self.id).await?)
    }

    pub(super) async fn carry_in(&self, form: ProbeForm) -> Verdict {
        Ok(carry_probe_in(self.sandbox()?.as_ref(), form).await?)
    }

    /// Whether something inside still writes to this marker, as told by its size over many beats.
    pub async fn beats(&self, marker: &str) -> Verdict<bool> {
        let before = self.read_marker_size(marker).await?;
        let until = tokio::time::Instant::now() + MARKER_WATCH_DURATION;
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(MARKER_POLL_INTERVAL).await;
            if self.read_marker_size(marker).await? != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn read_marker_size(&self, marker: &str) -> Verdict<Value> {
        Ok(self.facts(["stat", marker]).await?["size"].clone())
    }
}

/// Writes the probe into the workspace of a sandbox, for one that cannot be shown a directory with it.
pub(crate) async fn carry_probe_in(sandbox: &dyn Sandbox, form: ProbeForm) -> Result<()> {
    let Some(bytes) = form.bytes() else { return Ok(()) };
    let path: SandboxPath = PROBE_FILE.parse().map_err(|error| {
        Error::new(ErrorCode::Invalid, "carry the probe in", "a built-in path").source(error)
    })?;
    let files = sandbox.files()?;
    files.write_all(&path, Data::from_static(bytes)).await?;
    match form {
        ProbeForm::Native(_) => files.set_mode(&path, 0o755).await,
        ProbeForm::Wasm(_) | ProbeForm::Simulated => Ok(()),
    }
}
