//! Reads what the helper says, frame by frame. It is guest input: lengths are checked before anything is kept.

use bytes::{Bytes, BytesMut};
use stockade_agent::protocol::network::FromHelper;
use stockade_agent::protocol::{HEADER_BYTES, frame_length};
use stockade_core::{ProcessEvent, ProcessEvents, clean_foreign};

/// Reads whole frames.
pub struct HelperFrameReader {
    events: Box<dyn ProcessEvents>,
    buffer: BytesMut,
}

impl HelperFrameReader {
    /// A reader of these events from their first byte on.
    pub fn new(events: Box<dyn ProcessEvents>) -> Self {
        Self { events, buffer: BytesMut::new() }
    }

    /// The body of the next frame.
    pub async fn next(&mut self) -> Result<Bytes, String> {
        loop {
            let length = frame_length(&self.buffer).map_err(|error| error.to_string())?;
            if let Some(length) = length.filter(|it| self.buffer.len() >= HEADER_BYTES + it) {
                let frame = self.buffer.split_to(HEADER_BYTES + length).freeze();
                return Ok(frame.slice(HEADER_BYTES..));
            }
            match self.events.next().await {
                Some(ProcessEvent::Output(_, data)) => self.buffer.extend_from_slice(&data),
                Some(ProcessEvent::Exit(exit)) => {
                    return Err(format!("it ended: {:?}", exit.status));
                }
                None => return Err("it ended".into()),
            }
        }
    }

    /// Waits until the helper says that it is ready, and nothing else before. Why it is not, otherwise.
    pub async fn wait_until_ready(&mut self) -> Result<(), String> {
        let body = self.next().await?;
        match FromHelper::decode(&body) {
            Ok(FromHelper::Ready) => Ok(()),
            Ok(FromHelper::Failed(reason)) => Err(clean_foreign(reason)),
            Ok(
                FromHelper::Lookup(..)
                | FromHelper::Open { .. }
                | FromHelper::Opened(_)
                | FromHelper::Data(..)
                | FromHelper::End(_)
                | FromHelper::Reset(_)
                | FromHelper::Credit(..),
            ) => Err("it spoke out of turn".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}
