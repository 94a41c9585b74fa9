//! Programs written as a list of steps.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{ExitStatus, Signal, StreamId};

use super::guest::{Guest, MockProgram};

/// One step of a scripted program.
#[derive(Debug, Clone)]
pub enum ScriptStep {
    /// Writes this.
    Write(StreamId, Data),
    /// Writes this many bytes in pieces of this size, as fast as they are taken.
    Flood(StreamId, u64, usize),
    /// Copies its input to its output until the input ends.
    Echo,
    /// Waits.
    Sleep(Duration),
    /// Uses processor time without spending any.
    Burn(Duration),
    /// Is deaf to signals from here on.
    IgnoreSignals,
    /// Exits.
    Exit(i32),
    /// Ends by a signal.
    Die(Signal),
}

/// A program that takes its steps one by one and exits with 0 after the last.
#[derive(Debug, Clone, Default)]
pub struct Script(pub Vec<ScriptStep>);

#[async_trait]
impl MockProgram for Script {
    async fn run(&self, guest: &mut Guest) -> ExitStatus {
        for step in &self.0 {
            match step {
                ScriptStep::Write(stream, data) => guest.out(*stream, data.clone()).await,
                ScriptStep::Flood(stream, bytes, piece) => {
                    write_flood(guest, *stream, *bytes, *piece).await
                }
                ScriptStep::Echo => {
                    while let Some(data) = guest.input().await {
                        guest.out(StreamId::Stdout, data).await;
                    }
                }
                ScriptStep::Sleep(duration) => guest.sleep(*duration).await,
                ScriptStep::Burn(time) => {
                    if let Err(status) = guest.burn(*time) {
                        return status;
                    }
                }
                ScriptStep::IgnoreSignals => guest.ignore_signals(),
                ScriptStep::Exit(code) => return ExitStatus::Exited(*code),
                ScriptStep::Die(signal) => return ExitStatus::Signalled(*signal),
            }
        }
        ExitStatus::Exited(0)
    }
}

async fn write_flood(guest: &Guest, stream: StreamId, bytes: u64, piece: usize) {
    let block = vec![b'.'; piece.max(1)];
    let mut left = bytes;
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        // A fresh allocation for each piece, as a real backend makes one.
        guest.out(stream, Data::copy_from_slice(&block[..size])).await;
        left -= size as u64;
    }
}
