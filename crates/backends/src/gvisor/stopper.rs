//! Stops and continues a whole sandbox by asking the runtime.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use stockade_core::{Error, ErrorCode, Result, SandboxId};

use super::NAME;
use super::private::GvisorPrivate;
use super::runsc::Runsc;
use crate::linux::freezer::Stopper;

/// How long the runtime may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The runtime of one sandbox.
pub(super) struct Runtime {
    pub runsc: Runsc,
    pub private: GvisorPrivate,
    pub id: SandboxId,
}

impl Runtime {
    /// Whether the sandbox is stopped, as far as its runtime tells.
    async fn is_stopped(&self) -> Option<bool> {
        let command = self.runsc.ask("state", &self.private, &self.id);
        let mut asked = tokio::process::Command::from(command);
        let answer = asked.kill_on_drop(true).output();
        let answer = tokio::time::timeout(REPLY_TIMEOUT, answer).await.ok()?.ok()?;
        let state: Value = serde_json::from_slice(&answer.stdout).ok()?;
        match state.get("status").and_then(Value::as_str) {
            Some("paused") => Some(true),
            Some("running") => Some(false),
            Some(_) | None => None,
        }
    }
}

#[async_trait]
impl Stopper for Runtime {
    async fn set(&self, stop: bool) -> Result<()> {
        let verb = if stop { "pause" } else { "resume" };
        let mut command = self.runsc.ask(verb, &self.private, &self.id);
        command.stderr(Stdio::null());
        let mut asked = tokio::process::Command::from(command);
        let failed = |what: String| {
            Error::new(ErrorCode::System, verb, format!("runsc {verb} {what}")).backend(NAME)
        };
        let answer = asked.kill_on_drop(true).status();
        match tokio::time::timeout(REPLY_TIMEOUT, answer).await {
            Err(_) => Err(failed(format!("did not finish within {} s", REPLY_TIMEOUT.as_secs()))),
            Ok(Err(error)) => Err(failed("cannot be started".into()).source(error)),
            Ok(Ok(status)) if status.success() => Ok(()),
            // The runtime refuses to do what is done already: then that is all that was wanted.
            Ok(Ok(_)) if self.is_stopped().await == Some(stop) => Ok(()),
            Ok(Ok(status)) => Err(failed(format!("failed: {status}"))),
        }
    }
}
