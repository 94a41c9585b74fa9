//! A network helper that listens nowhere: without walls a program needs none to reach other hosts.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stockade_core::{Process, ProcessControl, ProcessEvent, ProcessEvents, Result, StreamId};

/// The one message that it ever says: that it is ready. A length of one byte, and the message's tag.
const READY_FRAME: &[u8] = &[1, 0, 0, 0, 1];

/// The helper.
pub(super) fn idle_helper() -> Process {
    Process { events: Box::new(IdleEvents { said: false }), control: Arc::new(IdleControl) }
}

struct IdleEvents {
    said: bool,
}

#[async_trait]
impl ProcessEvents for IdleEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if std::mem::replace(&mut self.said, true) {
            std::future::pending::<()>().await;
        }
        Some(ProcessEvent::Output(StreamId::Stdout, Bytes::from_static(READY_FRAME)))
    }
}

struct IdleControl;

#[async_trait]
impl ProcessControl for IdleControl {
    async fn kill(&self) -> Result<()> {
        Ok(())
    }

    async fn write_stdin(&self, _: Bytes) -> Result<()> {
        Ok(())
    }
}
