//! Frames on a supervisor's socket: two lengths, a JSON header, and raw bytes that need no escaping.
//!
//! Both sides belong to one user, and still nothing is read that has not been bounded first.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest header.
pub const MAX_HEADER: usize = 1 << 20;
/// The longest payload.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// What is wrong with a connection.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorFrameError {
    /// The socket failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// A frame is longer than one may be.
    #[error("a frame of {0} bytes is longer than one may be")]
    TooLong(usize),
    /// A header does not parse.
    #[error("a frame cannot be understood")]
    Malformed(#[from] serde_json::Error),
    /// The peer went away in the middle of a frame, or before one that was due.
    #[error("the connection was closed")]
    Closed,
}

/// Sends one frame.
pub async fn send_frame<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    header: &T,
    payload: &[u8],
) -> Result<(), SupervisorFrameError> {
    let header = serde_json::to_vec(header)?;
    let lengths = [
        check_frame_length(header.len(), MAX_HEADER)?,
        check_frame_length(payload.len(), MAX_PAYLOAD)?,
    ];
    let mut frame = Vec::with_capacity(8 + header.len() + payload.len());
    lengths.iter().for_each(|length| frame.extend_from_slice(&length.to_le_bytes()));
    frame.extend_from_slice(&header);
    frame.extend_from_slice(payload);
    Ok(to.write_all(&frame).await?)
}

/// Receives one frame; nothing if the peer went away between two.
pub async fn receive_frame<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<(T, Bytes)>, SupervisorFrameError> {
    let mut lengths = [0; 8];
    if from.read(&mut lengths[..1]).await? == 0 {
        return Ok(None);
    }
    fill_buffer(from, &mut lengths[1..]).await?;
    let [a, b, c, d, e, f, g, h] = lengths;
    let header = parse_frame_length([a, b, c, d], MAX_HEADER)?;
    let payload = parse_frame_length([e, f, g, h], MAX_PAYLOAD)?;
    let mut frame = vec![0; header + payload];
    fill_buffer(from, &mut frame).await?;
    let mut frame = Bytes::from(frame);
    let header = frame.split_to(header);
    Ok(Some((serde_json::from_slice(&header)?, frame)))
}

async fn fill_buffer(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
) -> Result<(), SupervisorFrameError> {
    match from.read_exact(buffer).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(SupervisorFrameError::Closed)
        }
        Err(error) => Err(error.into()),
    }
}

fn check_frame_length(length: usize, most: usize) -> Result<u32, SupervisorFrameError> {
    let fits = u32::try_from(length).ok().filter(|_| length <= most);
    fits.ok_or(SupervisorFrameError::TooLong(length))
}

fn parse_frame_length(bytes: [u8; 4], most: usize) -> Result<usize, SupervisorFrameError> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > most { Err(SupervisorFrameError::TooLong(length)) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> Result<Option<(String, Bytes)>, SupervisorFrameError> {
        receive_frame(&mut &bytes[..]).await
    }

    #[tokio::test]
    async fn a_frame_arrives_as_it_was_sent() {
        let mut wire = Vec::new();
        send_frame(&mut wire, &"hello", b"\0\xff").await.unwrap();
        let (header, payload) = read(&wire).await.unwrap().unwrap();
        assert_eq!((header.as_str(), &payload[..]), ("hello", &b"\0\xff"[..]));
    }

    #[tokio::test]
    async fn a_length_beyond_the_bound_is_refused_before_anything_is_read() {
        let wire = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        assert!(matches!(read(&wire).await, Err(SupervisorFrameError::TooLong(_))));
        let wire = [2, 0, 0, 0, 0, 0, 0x20, 0];
        assert!(matches!(read(&wire).await, Err(SupervisorFrameError::TooLong(_))));
    }

    #[tokio::test]
    async fn an_end_between_frames_differs_from_one_inside() {
        assert!(matches!(read(b"").await, Ok(None)));
        for cut in [&b"\x02"[..], b"\x02\0\0\0\0\0\0\0", b"\x07\0\0\0\0\0\0\0\"hel"] {
            assert!(matches!(read(cut).await, Err(SupervisorFrameError::Closed)), "{cut:?}");
        }
        let nonsense = b"\x02\0\0\0\0\0\0\0{]";
        assert!(matches!(read(nonsense).await, Err(SupervisorFrameError::Malformed(_))));
    }
}
