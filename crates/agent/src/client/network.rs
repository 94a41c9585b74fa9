//! The network helper as a process: its messages are its input and its output.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stockade_core::{
    Error, ErrorCode, ExitStatus, Process, ProcessControl, ProcessEvent, ProcessEvents, Result,
    StreamId,
};

use super::channel::{ChannelKind, ClientChannel, Finish};
use super::files::no_success;
use super::mux::Mux;
use crate::protocol::ToAgent;

/// Starts the helper.
pub async fn open(mux: &Arc<Mux>) -> Result<Process> {
    let (number, channel) = mux.open("network", ChannelKind::Stream, ToAgent::Network).await?;
    let handle = Arc::new(HelperHandle { mux: mux.clone(), channel, number });
    let events = HelperEvents { handle: handle.clone(), over: false };
    Ok(Process { events: Box::new(events), control: handle })
}

struct HelperHandle {
    mux: Arc<Mux>,
    channel: Arc<ClientChannel>,
    number: u32,
}

struct HelperEvents {
    handle: Arc<HelperHandle>,
    over: bool,
}

#[async_trait]
impl ProcessEvents for HelperEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.over {
            return None;
        }
        match self.handle.channel.next_output(self.handle.number, &self.handle.mux).await {
            Ok((_, data)) => Some(ProcessEvent::Output(StreamId::Stdout, data)),
            Err(finish) => {
                self.over = true;
                let status = if matches!(finish, Finish::Done) {
                    ExitStatus::Exited(0)
                } else {
                    ExitStatus::Lost(no_success("network", finish).to_string())
                };
                Some(ProcessEvent::Exit(status.into()))
            }
        }
    }
}

/// A helper that is not listened to is ended.
impl Drop for HelperEvents {
    fn drop(&mut self) {
        self.handle.channel.abandon_channel(self.handle.number, &self.handle.mux);
    }
}

#[async_trait]
impl ProcessControl for HelperHandle {
    async fn kill(&self) -> Result<()> {
        self.channel.abandon_channel(self.number, &self.mux);
        self.channel.wait_for_finish().await;
        Ok(())
    }

    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        if self.channel.write_input(self.number, &self.mux, data).await {
            return Ok(());
        }
        Err(Error::new(ErrorCode::Gone, "network", "the network helper is gone"))
    }

    async fn close_stdin(&self) -> Result<()> {
        self.channel.close_input(self.number, &self.mux);
        Ok(())
    }
}
