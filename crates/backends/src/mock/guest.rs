//! What a simulated program sees and can do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    EffectiveLimits, EnvName, ExitStatus, LimitKind, ProcessEvent, SandboxId, StreamId,
    TerminalSize, User, WORKSPACE_ROOT,
};
use tokio::sync::{mpsc, watch};

use super::lock;
use super::sandbox::MockMachine;
use super::tree::{Errno, MockTree};

/// A program of the mock.
#[async_trait]
pub trait MockProgram: Send + Sync {
    /// Runs from start to end. It is dropped at an await when it is killed.
    async fn run(&self, guest: &mut Guest) -> ExitStatus;
}

/// A simulated process, as its program sees it.
pub struct Guest {
    /// The program's name and arguments.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<EnvName, String>,
    /// Its working directory.
    pub dir: String,
    /// The user it runs as, if the caller chose one.
    pub user: Option<User>,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The limits that hold for it.
    pub limits: EffectiveLimits,
    pub(super) machine: Arc<MockMachine>,
    pub(super) execution: u64,
    pub(super) events: mpsc::Sender<ProcessEvent>,
    pub(super) stdin: mpsc::Receiver<Data>,
    pub(super) terminal: watch::Receiver<Option<TerminalSize>>,
    pub(super) ignores_signals: Arc<AtomicBool>,
}

impl Guest {
    /// Writes output; waits while it is not read, or while the sandbox is paused.
    pub async fn out(&self, stream: StreamId, data: impl Into<Data>) {
        self.machine.wait_while_paused().await;
        // A reader that is gone is a closed pipe: the program goes on.
        let _ = self.events.send(ProcessEvent::Output(stream, data.into())).await;
    }

    /// The next piece of input; nothing at its end.
    pub async fn input(&mut self) -> Option<Data> {
        self.stdin.recv().await
    }

    /// Sleeps; time stands still while the sandbox is paused.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
        self.machine.wait_while_paused().await;
    }

    /// From now on every signal but the one that cannot be ignored is.
    pub fn ignore_signals(&self) {
        self.ignores_signals.store(true, Ordering::SeqCst);
    }

    /// Its terminal's size; nothing without a terminal.
    pub fn terminal(&self) -> Option<TerminalSize> {
        *self.terminal.borrow()
    }

    /// Waits until its terminal has another size.
    pub async fn resized(&mut self) -> Option<TerminalSize> {
        self.terminal.changed().await.ok()?;
        self.terminal()
    }

    /// Works with the sandbox's files.
    pub fn files<T>(&self, work: impl FnOnce(&mut MockTree) -> T) -> T {
        work(&mut lock(&self.machine.tree))
    }

    /// Where a path leads, as the program's own system calls would resolve it.
    pub fn resolve(&self, path: &str) -> Result<String, Errno> {
        self.files(|tree| tree.resolve(&self.dir, path, false, true))
    }

    /// Takes memory; what goes beyond the limit ends the program.
    pub fn allocate(&self, bytes: u64) -> Result<(), ExitStatus> {
        let used = self.machine.memory.fetch_add(bytes, Ordering::SeqCst) + bytes;
        match self.limits.memory {
            Some(most) if used > most.0 => Err(ExitStatus::LimitExceeded(LimitKind::Memory)),
            _ => Ok(()),
        }
    }

    /// Uses processor time without spending any; what goes beyond the limit ends the program.
    pub fn burn(&self, time: Duration) -> Result<(), ExitStatus> {
        let spent = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let used = self.machine.cpu_ms.fetch_add(spent, Ordering::SeqCst).saturating_add(spent);
        match self.limits.cpu_time {
            Some(most) if used > most.as_millis() => {
                Err(ExitStatus::LimitExceeded(LimitKind::CpuTime))
            }
            _ => Ok(()),
        }
    }

    /// How many of `wanted` further processes the limit leaves room for.
    pub fn room_for_processes(&self, wanted: u32) -> u32 {
        // The program itself counts, also where it runs before its task is on the list.
        let running = u32::try_from(self.machine.count_processes().max(1)).unwrap_or(u32::MAX);
        self.limits.processes.map_or(wanted, |most| wanted.min(most.saturating_sub(running)))
    }

    /// Starts something that outlives the program, in a session of its own, deaf to signals.
    pub fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.machine.adopt_task(self.execution, tokio::spawn(work));
    }

    /// A handle on the files for what was detached.
    pub fn shared_files(&self) -> SharedFiles {
        SharedFiles(Arc::clone(&self.machine))
    }
}

/// The sandbox's files, for a task that outlives its program.
pub struct SharedFiles(Arc<MockMachine>);

impl SharedFiles {
    /// Appends to a file given by its path from the workspace root.
    pub fn append(&self, path: &str, data: &[u8]) -> Result<(), Errno> {
        let mut tree = lock(&self.0.tree);
        let at = tree.resolve(WORKSPACE_ROOT, path, false, true)?;
        tree.write(&at, data, true)
    }
}
