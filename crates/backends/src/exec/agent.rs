//! One sandbox of the program: a process that is given the agent's pipe as its standard input, reads its order from
//! it, builds walls, and becomes the agent or starts it.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Serialize;
use stockade_agent::client::AgentClient;
use stockade_core::{Admitted, EffectiveLimits, Error, ErrorCode, Result, SandboxId, SandboxSpec};
use tokio::io::AsyncWriteExt;

use super::{ExecWalls, NAME};
use crate::linux::running::wait_for_exit;
use crate::linux::{embed, no_pipe};

/// How long the program may take to read its order, and the agent to say its first word.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to end after its pipe is closed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Variable that names the agent's program, which can be opened while `create` runs.
const AGENT_VARIABLE: &str = "STOCKADE_AGENT";

/// What the program is told, in one line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CreateOrder<'a> {
    spec: &'a SandboxSpec,
    limits: &'a EffectiveLimits,
}

/// The process of one sandbox.
pub(super) struct ExecAgent {
    child: Mutex<Child>,
    /// Closing our end is how the agent learns that it is over.
    pipe: UnixStream,
}

impl ExecAgent {
    pub(super) async fn start(
        walls: &ExecWalls,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<(Self, AgentClient)> {
        let failed = |error| no_pipe(NAME, error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let agent = embed::seal_agent().map_err(failed)?;
        let mut command = Command::new(&walls.program);
        command.args(&walls.arguments).args(["create", id.as_str()]).process_group(0);
        let agent_path = format!("/proc/{}/fd/{}", std::process::id(), agent.as_raw_fd());
        command.env(AGENT_VARIABLE, agent_path);
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).stdout(Stdio::null());
        let child = command.spawn().map_err(|error| {
            let message = format!("`{}` cannot be run", walls.program.display());
            Error::new(ErrorCode::Unavailable, "create", message).backend(NAME).source(error)
        })?;
        let pipe = ours.try_clone().map_err(failed)?;
        // From here on it ends with this value.
        let running = Self { child: Mutex::new(child), pipe };
        ours.set_nonblocking(true).map_err(failed)?;
        let mut ours = tokio::net::UnixStream::from_std(ours).map_err(failed)?;
        let order = CreateOrder { spec: admitted.spec(), limits: admitted.limits() };
        let mut line = serde_json::to_vec(&order).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let told = tokio::time::timeout(CREATE_TIMEOUT, ours.write_all(&line)).await;
        told.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(failed)?;
        let client = AgentClient::connect(ours, CREATE_TIMEOUT).await?;
        drop(agent);
        Ok((running, client))
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the pipe, and waits until the process has ended; kills it with its group if it does not.
    pub(super) async fn end(&self) {
        let _ = self.pipe.shutdown(std::net::Shutdown::Both);
        let pid = Pid::from_child(&self.child());
        let waited = async {
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::NONBLOCK) {
                let _ = wait_for_exit(&pidfd).await;
            }
        };
        if tokio::time::timeout(END_TIMEOUT, waited).await.is_err() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child().wait();
    }
}

impl Drop for ExecAgent {
    fn drop(&mut self) {
        // The agent notices the closed pipe; a program that has not become one yet has nothing to lose.
        let _ = self.pipe.shutdown(std::net::Shutdown::Both);
        let mut child = self.child();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
    }
}
