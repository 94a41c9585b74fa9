//! One simulated process: a task that runs a program, and the control over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Bytes, Error, ErrorCode, Exit, ExitStatus, ProcessControl, ProcessEvent, ProcessEvents, Result,
    Signal, Span, TerminalSize,
};
use tokio::sync::{Mutex, mpsc, watch};

use super::NAME;
use super::faults::{Fault, Faults};
use super::guest::{Guest, MockProgram};
use super::sandbox::MockMachine;

pub(super) struct MockControl {
    pub machine: Arc<MockMachine>,
    pub execution: u64,
    pub faults: Faults,
    pub signals: mpsc::Sender<Signal>,
    pub killed: watch::Sender<bool>,
    pub stdin: Mutex<Option<mpsc::Sender<Data>>>,
    pub terminal: watch::Sender<Option<TerminalSize>>,
}

#[async_trait]
impl ProcessControl for MockControl {
    async fn kill(&self) -> Result<()> {
        self.faults.kill.inject_fault("kill").await?;
        self.killed.send_replace(true);
        self.machine.end_execution(self.execution).await;
        Ok(())
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        // A program that has ended, or has many signals waiting already, takes no more.
        let _ = self.signals.try_send(signal);
        Ok(())
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        let stdin = self.stdin.lock().await.clone();
        let Some(stdin) = stdin else {
            return Err(
                Error::new(ErrorCode::Gone, "write to stdin", "it was closed").backend(NAME)
            );
        };
        let _ = stdin.send(data).await;
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        self.stdin.lock().await.take();
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.terminal.send_replace(Some(size));
        Ok(())
    }

    fn cpu_used(&self) -> Option<Span> {
        Some(Span::millis(self.machine.cpu_ms.load(Ordering::SeqCst)))
    }
}

pub(super) struct MockEvents {
    pub events: mpsc::Receiver<ProcessEvent>,
    pub fault: Fault,
    pub ended: bool,
}

#[async_trait]
impl ProcessEvents for MockEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.ended {
            return None;
        }
        if let Err(error) = self.fault.inject_fault("stream").await {
            self.ended = true;
            let lost = ExitStatus::Lost(error.message().to_owned());
            return match self.fault {
                Fault::Drop => None,
                Fault::None | Fault::Error | Fault::ErrorTimes(_) | Fault::Hang => {
                    Some(ProcessEvent::Exit(lost.into()))
                }
            };
        }
        let event = self.events.recv().await;
        self.ended = matches!(event, None | Some(ProcessEvent::Exit(_)));
        event
    }
}

/// Runs the program until it ends, is killed, or a signal ends it; then reports the exit.
pub(super) async fn run_program(
    program: Arc<dyn MockProgram>,
    mut guest: Guest,
    mut signals: mpsc::Receiver<Signal>,
    mut killed: watch::Receiver<bool>,
) {
    let (machine, events) = (Arc::clone(&guest.machine), guest.events.clone());
    let ignores = Arc::clone(&guest.ignores_signals);
    let status = tokio::select! {
        status = program.run(&mut guest) => status,
        signal = fatal_signal(&mut signals, &ignores) => ExitStatus::Signalled(signal),
        _ = killed.wait_for(|killed| *killed) => ExitStatus::Signalled(Signal::KILL),
    };
    drop(guest);
    let cpu_time = Some(Span::millis(machine.cpu_ms.load(Ordering::SeqCst)));
    let peak_memory = Some(Bytes(machine.memory.load(Ordering::SeqCst)));
    let exit = Exit { cpu_time, peak_memory, ..status.into() };
    let _ = events.send(ProcessEvent::Exit(exit)).await;
}

async fn fatal_signal(signals: &mut mpsc::Receiver<Signal>, ignores: &AtomicBool) -> Signal {
    loop {
        match signals.recv().await {
            Some(signal) if signal == Signal::KILL || !ignores.load(Ordering::SeqCst) => {
                return signal;
            }
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}
