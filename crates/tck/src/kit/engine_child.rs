//! The engine process of a subject as a child of the kit.

use std::process::{Command, Stdio};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::Kit;
use crate::{ENGINE_STATE, ENGINE_WORKSPACE, MARK_VARIABLE, Stop, Verdict};

impl Kit {
    /// The command of an engine process on this kit's directories, if the subject offers one.
    pub(crate) fn engine_command(&self) -> Option<Command> {
        let mut process = self.subject().engine_process()?;
        process.env(ENGINE_STATE, self.state()).env(ENGINE_WORKSPACE, self.workspace());
        process.env(MARK_VARIABLE, self.mark());
        Some(process)
    }
}

/// Starts an engine process, and reads the line that it prints. It is killed when the child is dropped.
pub(crate) async fn start_engine_process(process: Command) -> Verdict<(Child, String)> {
    let mut process: tokio::process::Command = process.into();
    let mut child =
        process.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let stdout =
        child.stdout.take().ok_or_else(|| Stop::failed("the engine process has no output"))?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    Ok((child, line.unwrap_or_default()))
}
