//! A program that runs in this process, as the engine sees it.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Exit, ExitStatus, Process, ProcessControl, ProcessEvent, ProcessEvents, Result,
};
use tokio::sync::{mpsc, oneshot, watch};

/// Output queue length, in chunks that wait for a reader.
const OUTPUT_QUEUE_LENGTH: usize = 32;
/// Input queue length, in chunks that wait for the program.
const INPUT_QUEUE_LENGTH: usize = 16;
/// Largest chunk of input.
const INPUT_CHUNK_BYTES: usize = 64 << 10;

/// The program's side.
pub(super) struct ProcessInside {
    pub events: mpsc::Sender<ProcessEvent>,
    pub input: Option<mpsc::Receiver<Data>>,
    pub exit: oneshot::Sender<Exit>,
    pub killed: watch::Receiver<bool>,
    /// Dropped when nothing of the program is left.
    pub present: PresenceGuard,
}

/// Held while anything of a program is left.
#[derive(Clone)]
pub(super) struct PresenceGuard(
    #[allow(dead_code, reason = "only its end matters")] Arc<watch::Sender<()>>,
);

/// How a sandbox ends a program and sees that it is gone.
#[derive(Clone)]
pub(super) struct ProgramHandle {
    killed: Arc<watch::Sender<bool>>,
    gone: watch::Receiver<()>,
}

impl ProgramHandle {
    pub(super) fn kill_program(&self) {
        self.killed.send_replace(true);
    }

    /// Waits until nothing of it is left.
    pub(super) async fn wait_until_gone(mut self) {
        while self.gone.changed().await.is_ok() {}
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.has_changed().is_err()
    }
}

/// A new process: the engine's side, the program's and the sandbox's.
pub(super) fn create_process(reads: bool) -> (Process, ProcessInside, ProgramHandle) {
    let (events, events_out) = mpsc::channel(OUTPUT_QUEUE_LENGTH);
    let (exit, exit_out) = oneshot::channel();
    let (killed, killed_out) = watch::channel(false);
    let (present, gone) = watch::channel(());
    let (input, input_out) = mpsc::channel(INPUT_QUEUE_LENGTH);
    let input = reads.then_some(input);
    let handle = ProgramHandle { killed: Arc::new(killed), gone };
    let control = WasmControl { handle: handle.clone(), input: Mutex::new(input) };
    let process = Process {
        events: Box::new(WasmEvents { events: events_out, exit: Some(exit_out) }),
        control: Arc::new(control),
    };
    let inside = ProcessInside {
        events,
        input: reads.then_some(input_out),
        exit,
        killed: killed_out,
        present: PresenceGuard(Arc::new(present)),
    };
    (process, inside, handle)
}

struct WasmEvents {
    events: mpsc::Receiver<ProcessEvent>,
    exit: Option<oneshot::Receiver<Exit>>,
}

#[async_trait]
impl ProcessEvents for WasmEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        // Closed when the program's last handle to its output is gone: the exit follows.
        if let Some(event) = self.events.recv().await {
            return Some(event);
        }
        let exit = match self.exit.as_mut()?.await {
            Ok(exit) => exit,
            Err(_) => ExitStatus::Lost("the thread that ran it is gone".into()).into(),
        };
        self.exit = None;
        Some(ProcessEvent::Exit(exit))
    }
}

struct WasmControl {
    handle: ProgramHandle,
    input: Mutex<Option<mpsc::Sender<Data>>>,
}

impl WasmControl {
    fn input(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<Data>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl ProcessControl for WasmControl {
    async fn kill(&self) -> Result<()> {
        self.handle.kill_program();
        Ok(())
    }

    async fn write_stdin(&self, mut data: Data) -> Result<()> {
        let Some(input) = self.input().clone() else { return Ok(()) };
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(INPUT_CHUNK_BYTES));
            // A program that has ended reads nothing more.
            if input.send(piece).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        self.input().take();
        Ok(())
    }
}
