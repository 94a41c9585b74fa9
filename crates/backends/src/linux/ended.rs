//! A process that had ended before it could be started: nothing to hear, nothing to control.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Error, ErrorCode, Exit, ExitStatus, Process, ProcessControl, ProcessEvent, ProcessEvents,
    Result, Signal, TerminalSize,
};

/// One whose only event is this end.
pub(crate) fn ended_process(status: ExitStatus) -> Process {
    Process { events: Box::new(OnlyExit(Some(status.into()))), control: Arc::new(EndedControl) }
}

struct OnlyExit(Option<Exit>);

#[async_trait]
impl ProcessEvents for OnlyExit {
    async fn next(&mut self) -> Option<ProcessEvent> {
        self.0.take().map(ProcessEvent::Exit)
    }
}

struct EndedControl;

fn has_ended(operation: &'static str) -> Result<()> {
    Err(Error::new(ErrorCode::Gone, operation, "the process has ended"))
}

#[async_trait]
impl ProcessControl for EndedControl {
    async fn kill(&self) -> Result<()> {
        Ok(())
    }

    async fn signal(&self, _: Signal) -> Result<()> {
        has_ended("signal")
    }

    async fn write_stdin(&self, _: Data) -> Result<()> {
        has_ended("write")
    }

    async fn close_stdin(&self) -> Result<()> {
        Ok(())
    }

    async fn resize(&self, _: TerminalSize) -> Result<()> {
        has_ended("resize")
    }
}
