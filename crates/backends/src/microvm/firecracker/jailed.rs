//! A Firecracker process in its own jail, which the jailer builds: started so that it ends with its owner,
//! and ended.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use stockade_core::{ErrorCode, Result};
use stockade_launcher::start_in;
use tokio::sync::oneshot;

use super::microvm_error;
use crate::linux::lock;
use crate::linux::running::wait_for_exit;
use crate::microvm::vmm_output::VmmOutput;

/// A child process that is killed when this value is dropped, on its way to its owner too.
struct HeldChild(Option<Child>);

impl Drop for HeldChild {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let _ = child.kill();
        // It is waited for in a thread of its own, so that no caller waits. Without a thread it stays a line in the
        // kernel's table for as long as this process lives.
        let _ = thread::Builder::new().name("stockade-burial".into()).spawn(move || child.wait());
    }
}

type SpawnJob = (Command, oneshot::Sender<io::Result<HeldChild>>);

/// Starts them from a thread that stays: the kernel kills what it started when it ends, be it with its
/// owner or because the whole process was killed (C-31).
pub(super) struct Threaded(mpsc::Sender<SpawnJob>);

impl Threaded {
    pub(super) fn start() -> Result<Self> {
        let (jobs, waiting) = mpsc::channel::<SpawnJob>();
        let serve = move || {
            while let Ok((command, done)) = waiting.recv() {
                // A caller that does not wait any more drops the child, which kills it.
                let _ = done.send(start_in(command, None, &[]).map(|child| HeldChild(Some(child))));
            }
        };
        let started = thread::Builder::new().name("stockade-firecracker".into()).spawn(serve);
        started.map_err(|error| {
            microvm_error(
                ErrorCode::System,
                "create",
                "a thread for its machines cannot be started",
            )
            .source(error)
        })?;
        Ok(Self(jobs))
    }

    async fn spawn_child(&self, command: Command) -> io::Result<HeldChild> {
        let (done, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts machines is gone");
        self.0.send((command, done)).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

/// One process.
pub(super) struct Jailed {
    held: Mutex<HeldChild>,
    /// What it was started by must not end before it has.
    _threaded: Arc<Threaded>,
    pidfd: OwnedFd,
    pub words: VmmOutput,
}

impl Jailed {
    pub(super) async fn start(threaded: &Arc<Threaded>, command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        Self::spawn_in_thread(threaded, command).await.map_err(|error| {
            microvm_error(ErrorCode::Unavailable, "create", format!("`{name}` cannot be started"))
                .remedy("see that the binaries in `[microvm.firecracker]` can be executed")
                .source(error)
        })
    }

    async fn spawn_in_thread(threaded: &Arc<Threaded>, mut command: Command) -> io::Result<Self> {
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut held = threaded.spawn_child(command).await?;
        let missing = || io::Error::other("it has no number or no standard streams");
        let child = held.0.as_mut().ok_or_else(missing)?;
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or_else(missing)?;
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(missing());
        };
        let words = VmmOutput::from_pipes(out.into(), err.into())?;
        Ok(Self { held: Mutex::new(held), _threaded: Arc::clone(threaded), pidfd, words })
    }

    /// Waits for its end.
    pub(super) async fn wait_for_exit(&self) {
        // What cannot be waited for is as good as gone.
        let _ = wait_for_exit(&self.pidfd).await;
    }

    /// How it ended, if it has.
    pub(super) fn exit_status(&self) -> Option<std::process::ExitStatus> {
        lock(&self.held).0.as_mut()?.try_wait().ok()?
    }

    /// Kills it and waits until it is gone.
    pub(super) async fn kill_and_wait(&self, soon: Duration) -> Result<()> {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let gone = tokio::time::timeout(soon, self.wait_for_exit()).await;
        gone.map_err(|_| {
            let what = format!("Firecracker was killed and still runs after {soon:?}");
            microvm_error(ErrorCode::LeftBehind, "destroy", what)
                .remedy("see what the kernel keeps it for, and destroy the sandbox again")
        })?;
        if let Some(mut child) = lock(&self.held).0.take() {
            let _ = child.wait();
        }
        Ok(())
    }
}
