//! Bytes between a thread that may block and tasks that may not, a bounded number of pieces at a time.

use std::io::{self, Read, Write};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Queue length, in chunks.
pub const CHUNK_QUEUE_LENGTH: usize = 8;
/// Size of a chunk.
const CHUNK_BYTES: usize = 64 * 1024;

/// What a thread reads from.
pub struct ChunkSource {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
}

/// What a thread writes to.
pub struct Drain {
    pieces: mpsc::Sender<Bytes>,
    current: Vec<u8>,
}

/// A source and where its pieces are put. It ends when that is dropped.
pub fn source() -> (mpsc::Sender<Bytes>, ChunkSource) {
    let (sender, pieces) = mpsc::channel(CHUNK_QUEUE_LENGTH);
    (sender, ChunkSource { pieces, current: Bytes::new() })
}

/// A drain and where its pieces come out.
pub fn drain() -> (Drain, mpsc::Receiver<Bytes>) {
    let (pieces, receiver) = mpsc::channel(CHUNK_QUEUE_LENGTH);
    (Drain { pieces, current: Vec::new() }, receiver)
}

impl Read for ChunkSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let piece = self.current.split_to(self.current.len().min(into.len()));
        into[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

impl Write for Drain {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(CHUNK_BYTES - self.current.len());
        self.current.extend_from_slice(&data[..taken]);
        if self.current.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.current.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.current));
        self.pieces.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
