//! What goes over the connection: a tag, a length and so many bytes, one after the other. Nothing longer
//! than a bound is ever read or written.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest payload of a frame.
pub const MAX_PAYLOAD_BYTES: usize = 128 * 1024;
/// Header of a frame: its tag and its length.
const FRAME_HEADER_BYTES: usize = 5;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// What the agent's pipe carries; empty at its end.
    Agent(Bytes),
    /// Heartbeat: the sender is still there.
    Beat,
    /// A request or an answer, as JSON.
    Word(Bytes),
    /// A piece of the workspace; it belongs to the word that follows.
    Tree(Bytes),
}

/// What arrived is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It cannot be read.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// It is longer than any may be.
    #[error("a frame of {0} bytes is longer than any may be")]
    TooLong(usize),
    /// There is no such frame.
    #[error("there is no frame {0}")]
    Tag(u8),
}

impl Frame {
    fn tag(&self) -> u8 {
        match self {
            Self::Agent(_) => 1,
            Self::Beat => 2,
            Self::Word(_) => 3,
            Self::Tree(_) => 4,
        }
    }

    fn payload(&self) -> &[u8] {
        match self {
            Self::Agent(data) | Self::Word(data) | Self::Tree(data) => data,
            Self::Beat => &[],
        }
    }

    /// The bytes that travel. A payload beyond the bound is refused.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let payload = self.payload();
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(FrameError::TooLong(payload.len()));
        }
        let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + payload.len());
        bytes.push(self.tag());
        // Checked just above: the length fits.
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(payload);
        Ok(bytes.into())
    }

    /// The next frame; nothing at the end.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Self>, FrameError> {
        let mut header = [0; FRAME_HEADER_BYTES];
        if from.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut header[1..]).await?;
        let [tag, length @ ..] = header;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        Self::decode(tag, payload.into()).map(Some)
    }

    fn decode(tag: u8, payload: Bytes) -> Result<Self, FrameError> {
        match tag {
            1 => Ok(Self::Agent(payload)),
            2 if payload.is_empty() => Ok(Self::Beat),
            3 => Ok(Self::Word(payload)),
            4 => Ok(Self::Tree(payload)),
            tag => Err(FrameError::Tag(tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_frame(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        Frame::read(&mut &*bytes).await
    }

    #[tokio::test]
    async fn every_frame_reads_back() {
        let data = Bytes::from_static(b"abc");
        for frame in [Frame::Agent(data.clone()), Frame::Beat, Frame::Word(data.clone())] {
            assert_eq!(read_frame(&frame.encode().unwrap()).await.unwrap(), Some(frame));
        }
        assert_eq!(read_frame(b"").await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused() {
        for bytes in
            [&b"\x01\xff\xff\xff\xff"[..], b"\x00\0\0\0\0", b"\x02\x01\0\0\0x", b"\x01\x02"]
        {
            assert!(read_frame(bytes).await.is_err(), "{bytes:?}");
        }
        assert!(Frame::Tree(vec![0; MAX_PAYLOAD_BYTES + 1].into()).encode().is_err());
    }
}
