//! A Firecracker process: started, asked, and ended. It ends with its owner at the latest.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use stockade_core::{Error, ErrorCode, Result};
use stockade_launcher::start_in;
use tokio::sync::oneshot;

use super::api::{self, Asked, Fault, Method, Sockets};
use super::words::Words;
use super::{Patience, failed};
use crate::linux::lock;
use crate::linux::running::ended;
use crate::microvm::driver::Machine;

/// How often it is looked whether a process that starts already listens.
const LOOK: Duration = Duration::from_millis(1);

/// Starts programs so that they end with whoever has them started.
#[async_trait]
pub(in super::super) trait Spawn: Send + Sync {
    async fn spawn(&self, machine: &Machine, command: Command) -> io::Result<Held>;
}

/// A process that is killed when nobody has it any more, on its way to somebody too.
pub(in super::super) struct Held(Option<Child>);

impl Drop for Held {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let _ = child.kill();
        // It is waited for where nobody is kept waiting. Without a thread it stays a line in the
        // kernel's table for as long as this process lives.
        let _ = thread::Builder::new().name("stockade-burial".into()).spawn(move || child.wait());
    }
}

type Job = (Command, oneshot::Sender<io::Result<Held>>);

/// Starts them from a thread that stays: the kernel kills what it started when it ends, be it with its
/// owner or because the whole process was killed (C-31).
pub(in super::super) struct Threaded(mpsc::Sender<Job>);

impl Threaded {
    pub(in super::super) fn start() -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let serve = move || {
            while let Ok((command, done)) = waiting.recv() {
                // Whoever does not wait for it any more lets go of it.
                let _ = done.send(start_in(command, None).map(|child| Held(Some(child))));
            }
        };
        thread::Builder::new().name("stockade-firecracker".into()).spawn(serve)?;
        Ok(Self(jobs))
    }
}

#[async_trait]
impl Spawn for Threaded {
    async fn spawn(&self, machine: &Machine, command: Command) -> io::Result<Held> {
        if machine.cpu_rate.is_some() {
            return Err(io::Error::other("nothing here holds it to a share of processor time"));
        }
        let (done, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts machines is gone");
        self.0.send((command, done)).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

/// One process, and its socket.
pub(super) struct Process {
    held: Mutex<Held>,
    /// Whatever ends its processes when it ends must not, before this one has.
    _spawn: Arc<dyn Spawn>,
    pidfd: OwnedFd,
    pub sockets: Sockets,
    words: Words,
    pub patience: Patience,
}

impl Process {
    /// Starts it, and waits until it listens.
    pub(super) async fn start(
        spawn: &Arc<dyn Spawn>,
        machine: &Machine,
        command: Command,
        dir: &Path,
        patience: Patience,
    ) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let started = Self::spawned(spawn, machine, command, dir, patience).await;
        let process = started.map_err(|error| {
            failed(ErrorCode::Unavailable, "create", format!("`{name}` cannot be started"))
                .remedy("see that the binary in `[microvm.firecracker]` can be executed")
                .source(error)
        })?;
        process.listens().await?;
        Ok(process)
    }

    async fn spawned(
        spawn: &Arc<dyn Spawn>,
        machine: &Machine,
        mut command: Command,
        dir: &Path,
        patience: Patience,
    ) -> io::Result<Self> {
        let sockets = Sockets::of(dir)?;
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut held = spawn.spawn(machine, command).await?;
        let missing = || io::Error::other("it has no number or no standard streams");
        let child = held.0.as_mut().ok_or_else(missing)?;
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or_else(missing)?;
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(missing());
        };
        let words = Words::listen(out.into(), err.into())?;
        let (held, _spawn) = (Mutex::new(held), Arc::clone(spawn));
        Ok(Self { held, _spawn, pidfd, sockets, words, patience })
    }

    async fn listens(&self) -> Result<()> {
        let connected = async {
            while self.sockets.connect(api::SOCKET).await.is_err() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let soon = self.patience.soon;
        let what = tokio::select! {
            () = connected => return Ok(()),
            () = self.ended() => "Firecracker ended before it listened".to_owned(),
            () = tokio::time::sleep(soon) => {
                format!("Firecracker did not listen within {soon:?}")
            }
        };
        let what = self.with_words(what).await;
        Err(failed(ErrorCode::Unavailable, "create", what)
            .remedy("start the binary by hand with the same KVM and see what it says"))
    }

    /// Asks it for something. A process that ends instead says why.
    pub(super) async fn ask(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<()> {
        match api::ask(&self.sockets, &method, path, body, limit).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.refused(operation, Asked(&method, path), fault).await),
        }
    }

    async fn refused(&self, operation: &'static str, asked: Asked<'_>, fault: Fault) -> Error {
        let (code, remedy) = match &fault {
            Fault::Refused { .. } => {
                (ErrorCode::WallMissing, "see that kernel, disks and snapshot fit this Firecracker")
            }
            Fault::Silent(_) => (ErrorCode::TooSlow, "see whether the host is overloaded"),
            Fault::TooLarge | Fault::Unaskable(_) => {
                (ErrorCode::Protocol, "see that the binary is Firecracker, unchanged")
            }
            Fault::Unreachable(_) | Fault::Broken(_) => {
                (ErrorCode::Unavailable, "see whether Firecracker was killed, and try again")
            }
        };
        let what = self.with_words(format!("asked for {asked}, Firecracker {fault}")).await;
        failed(code, operation, what).remedy(remedy).source(fault)
    }

    /// What it wrote so far.
    pub(super) fn said(&self) -> String {
        self.words.so_far()
    }

    /// Adds what it wrote.
    pub(super) async fn with_words(&self, what: String) -> String {
        let said = self.words.last().await;
        if said.is_empty() { what } else { format!("{what}; it wrote: {said}") }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        // What cannot be waited for is as good as gone.
        let _ = ended(&self.pidfd).await;
    }

    /// Kills it and waits until it is gone.
    pub(super) async fn end(&self) -> Result<()> {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let soon = self.patience.soon;
        let gone = tokio::time::timeout(soon, self.ended()).await;
        gone.map_err(|_| {
            let what = format!("Firecracker was killed and lived on for {soon:?}");
            failed(ErrorCode::LeftBehind, "destroy", what)
                .remedy("see what the kernel keeps it for, and destroy the sandbox again")
        })?;
        if let Some(mut child) = lock(&self.held).0.take() {
            let _ = child.wait();
        }
        Ok(())
    }
}
