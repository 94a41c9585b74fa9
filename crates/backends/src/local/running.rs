//! The agent of local execution: a plain child, ended with everything it started.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stockade_agent::client::AgentClient;
use stockade_core::{Error, ErrorCode, Result, SandboxId};

use super::NAME;
use crate::linux::{embed, find, no_pipe, running::wait_for_exit};

/// Process name (`argv[0]`) of its agents.
const AGENT_NAME: &str = "stockade-local";
/// How long the agent may take to say its first word.
const HELLO_DEADLINE: Duration = Duration::from_secs(60);
/// How long it may take to end everything it started.
const END_DEADLINE: Duration = Duration::from_secs(10);

pub(super) struct LocalAgent {
    child: Mutex<Child>,
    /// Closing our end is how the agent learns that it is over.
    pipe: UnixStream,
}

/// The agents of local execution on this host.
pub(super) fn find_agents() -> Vec<(i32, SandboxId)> {
    find::find_agents(AGENT_NAME)
}

impl LocalAgent {
    pub(super) async fn start(id: &SandboxId, root: &Path) -> Result<(Self, AgentClient)> {
        let failed = |error| no_pipe(NAME, error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = spawn_agent(id, root, theirs.into()).map_err(|error| {
            let message = format!("the agent cannot be started in `{}`", root.display());
            Error::new(ErrorCode::Unavailable, "create", message).backend(NAME).source(error)
        })?;
        let pipe = ours.try_clone().map_err(failed)?;
        let running = Self { child: Mutex::new(child), pipe };
        ours.set_nonblocking(true).map_err(failed)?;
        let ours = tokio::net::UnixStream::from_std(ours).map_err(failed)?;
        let client = AgentClient::connect(ours, HELLO_DEADLINE).await?;
        Ok((running, client))
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the pipe and waits until the agent has ended everything and itself.
    pub(super) async fn end_agent(&self) -> Result<()> {
        let _ = self.pipe.shutdown(std::net::Shutdown::Both);
        let pid = Pid::from_child(&self.child());
        let waited = async {
            match pidfd_open(pid, PidfdFlags::NONBLOCK) {
                Ok(pidfd) => wait_for_exit(&pidfd).await,
                // It was waited for before.
                Err(_) => Ok(()),
            }
        };
        let in_time = tokio::time::timeout(END_DEADLINE, waited).await.is_ok();
        let mut child = self.child();
        if !in_time {
            let _ = child.kill();
        }
        let reaped = child.wait().is_ok();
        if in_time && reaped {
            return Ok(());
        }
        let message = "the agent did not end what it had started in time, and was killed";
        Err(Error::new(ErrorCode::LeftBehind, "destroy", message).backend(NAME))
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        // The agent notices the closed pipe by itself; no task may be left that waits for it.
        let _ = self.pipe.shutdown(std::net::Shutdown::Both);
        let _ = self.child().try_wait();
    }
}

fn spawn_agent(id: &SandboxId, root: &Path, pipe: OwnedFd) -> io::Result<Child> {
    let agent = embed::seal_agent()?;
    // Opened by the child between fork and exec, when the descriptor is still there.
    let mut command = Command::new(format!("/proc/self/fd/{}", agent.as_raw_fd()));
    command.arg0(AGENT_NAME).arg("0").arg(root).arg(id.as_str()).env_clear().current_dir("/");
    command.stdin(Stdio::from(pipe)).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

/// Waits for the agent of an engine that is gone: it ends by itself when its pipe closes.
pub(super) async fn end_foreign(id: &SandboxId) {
    for (pid, _) in find_agents().into_iter().filter(|(_, of)| of == id) {
        let Some(pidfd) =
            Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok())
        else {
            continue;
        };
        if tokio::time::timeout(END_DEADLINE, wait_for_exit(&pidfd)).await.is_err() {
            find::kill_if(pid, |pid| find::sandbox_of(AGENT_NAME, pid).as_ref() == Some(id));
        }
    }
}
