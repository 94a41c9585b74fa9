//! Carries bytes between the agent's pipe and the connection, and knows nothing about them.

use std::io;
use std::os::unix::net::UnixStream as Socket;
use std::time::Duration;

use bytes::Bytes;
use stockade_backends::peer::frame::Frame;
use stockade_backends::peer::vmm::send;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::serve::Outbox;

/// Chunk size of one read from the agent.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// Capacity of the agent's inbox, in chunks.
const INBOX_CAPACITY: usize = 32;
/// Timeout for an agent to take a chunk: a machine may stand still for seconds on a busy host.
pub const AGENT_TIMEOUT: Duration = Duration::from_secs(30);

/// An agent's pipe.
pub struct Carried {
    pipe: Socket,
    outward: JoinHandle<()>,
    inward: JoinHandle<()>,
}

/// Starts to carry. What the agent is to read goes into the answer.
pub fn spawn_carrier(pipe: Socket, out: Outbox) -> io::Result<(Carried, mpsc::Sender<Bytes>)> {
    pipe.set_nonblocking(true)?;
    let (reader, writer) = UnixStream::from_std(pipe.try_clone()?)?.into_split();
    let (inbox, waiting) = mpsc::channel(INBOX_CAPACITY);
    let outward = tokio::spawn(copy_from_agent(reader, out));
    let inward = tokio::spawn(copy_to_agent(waiting, writer));
    Ok((Carried { pipe, outward, inward }, inbox))
}

impl Carried {
    /// Has the agent go on by another pipe. Nothing comes by this one any more.
    pub async fn reconnect_agent(self, out: Outbox) -> io::Result<(Self, mpsc::Sender<Bytes>)> {
        let (ours, theirs) = Socket::pair()?;
        let old = UnixStream::from_std(self.pipe)?;
        old.async_io(Interest::WRITABLE, || send(&old, &[0], &[&theirs])).await?;
        // It has let go of the old one when that has an end.
        let ended = timeout(AGENT_TIMEOUT, self.outward).await;
        self.inward.abort();
        ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        spawn_carrier(ours, out)
    }
}

async fn copy_to_agent(mut waiting: mpsc::Receiver<Bytes>, mut agent: OwnedWriteHalf) {
    while let Some(piece) = waiting.recv().await {
        // An agent that is gone says so on the other half.
        if agent.write_all(&piece).await.is_err() {
            return;
        }
    }
}

async fn copy_from_agent(mut agent: OwnedReadHalf, out: Outbox) {
    loop {
        let mut piece = Vec::with_capacity(READ_CHUNK_BYTES);
        let read = agent.read_buf(&mut piece).await.unwrap_or(0);
        if out.send_frame(Frame::Agent(piece.into())).await.is_err() || read == 0 {
            return;
        }
    }
}
