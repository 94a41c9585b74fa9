//! Carries bytes between the agent's pipe and the connection, and knows nothing about them.

use std::os::unix::net::UnixStream as Socket;
use std::time::Duration;

use bytes::Bytes;
use stockade_backends::across::frame::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use crate::serve::Outbox;

/// How much is read at once.
const PIECE: usize = 64 * 1024;
/// How many pieces may wait for the agent.
const WAITING: usize = 32;
/// How long an agent may leave them waiting.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Starts to carry. What the agent is to read goes into the answer.
pub fn carry(pipe: Socket, out: Outbox) -> std::io::Result<mpsc::Sender<Bytes>> {
    pipe.set_nonblocking(true)?;
    let (reader, writer) = UnixStream::from_std(pipe)?.into_split();
    let (inbox, waiting) = mpsc::channel(WAITING);
    tokio::spawn(outward(reader, out));
    tokio::spawn(inward(waiting, writer));
    Ok(inbox)
}

async fn inward(mut waiting: mpsc::Receiver<Bytes>, mut agent: OwnedWriteHalf) {
    while let Some(piece) = waiting.recv().await {
        // An agent that is gone says so on the other half.
        if agent.write_all(&piece).await.is_err() {
            return;
        }
    }
}

async fn outward(mut agent: OwnedReadHalf, out: Outbox) {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let read = agent.read_buf(&mut piece).await.unwrap_or(0);
        if out.send(Frame::Agent(piece.into())).await.is_err() || read == 0 {
            return;
        }
    }
}
