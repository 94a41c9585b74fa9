//! What the two sides of a teleport say to each other. Here speaks first what is to be made, then the
//! snapshot in pieces; there answers with the sandbox that it has become; here says that it stays; there
//! says that it does. Until then each side undoes what it began when the other one goes away.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use stockade_core::{SandboxId, SandboxSpec, Span};

use crate::daemon::wire_error::WireError;

/// Version of these messages and of the snapshots that they carry. Raised with every change that another
/// side misreads.
pub const TELEPORT_VERSION: &str = "1";
/// First line that the peer sends.
pub const HELLO_LINE: &[u8] = b"stockade-teleport 1\n";
/// Request to keep the sandbox that arrived.
pub const KEEP_LINE: &str = "keep\n";
/// The longest passage: room for every variable a program can be given.
pub const MAX_PASSAGE: u64 = 8 << 20;
/// Longest chunk.
const MAX_CHUNK_BYTES: usize = 64 << 10;

/// What is to be made there of the snapshot that follows. It holds the environment, which is stored
/// nowhere.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Passage {
    /// What it was asked to be.
    pub spec: SandboxSpec,
    /// Idle timeout: how long it lives while it is not in use.
    pub idle: Option<Span>,
    /// How long it lives at most.
    pub lifetime: Option<Span>,
    /// The sandbox whose place it takes. Absent where that one stays.
    pub of: Option<SandboxId>,
}

/// What the peer answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ArrivalAnswer {
    /// It stands there.
    Arrived { sandbox: SandboxId },
    /// It stays there.
    Kept,
    /// Nothing is left there.
    Failed(WireError),
}

/// A stream in pieces, each behind its length; one without any ends it, so that more can follow.
pub struct Pieces<S> {
    stream: S,
    waiting: Vec<u8>,
}

impl<W: Write> Pieces<W> {
    /// Writes to a stream.
    pub fn to(stream: W) -> Self {
        Self { stream, waiting: Vec::with_capacity(MAX_CHUNK_BYTES) }
    }

    /// Says that this was all, and gives the stream back.
    pub fn finish(mut self) -> io::Result<W> {
        self.send_piece()?;
        self.stream.write_all(&0u32.to_le_bytes())?;
        self.stream.flush()?;
        Ok(self.stream)
    }

    fn send_piece(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        // Never longer than a piece.
        let length = self.waiting.len() as u32;
        self.stream.write_all(&length.to_le_bytes())?;
        self.stream.write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }
}

impl<W: Write> Write for Pieces<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(MAX_CHUNK_BYTES - self.waiting.len());
        self.waiting.extend_from_slice(&data[..taken]);
        if self.waiting.len() == MAX_CHUNK_BYTES {
            self.send_piece()?;
        }
        Ok(taken)
    }

    /// Pieces are sent when they are full, and at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The other end of [`Pieces`].
pub struct Whole<S> {
    stream: S,
    left: usize,
    over: bool,
}

impl<R: Read> Whole<R> {
    /// Reads from a stream.
    pub fn of(stream: R) -> Self {
        Self { stream, left: 0, over: false }
    }

    fn read_piece_length(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        self.left = u32::from_le_bytes(length) as usize;
        self.over = self.left == 0;
        match self.left <= MAX_CHUNK_BYTES {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "a piece is too long")),
        }
    }
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        if self.left == 0 && !self.over {
            self.read_piece_length()?;
        }
        let most = data.len().min(self.left);
        if most == 0 {
            return Ok(0);
        }
        let count = self.stream.read(&mut data[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(data: &[u8]) -> Vec<u8> {
        let mut pieces = Pieces::to(Vec::new());
        pieces.write_all(data).unwrap();
        pieces.finish().unwrap()
    }

    #[test]
    fn what_is_sent_in_pieces_arrives_whole_and_what_follows_is_left_alone() {
        for length in
            [0, 1, MAX_CHUNK_BYTES - 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 3 * MAX_CHUNK_BYTES]
        {
            let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let sent = [&in_pieces(&data), KEEP_LINE.as_bytes()].concat();
            let mut rest = &sent[..];
            let mut arrived = Vec::new();
            Whole::of(&mut rest).read_to_end(&mut arrived).unwrap();
            assert!(arrived == data, "{length}");
            assert_eq!(rest, KEEP_LINE.as_bytes());
        }
    }

    #[test]
    fn one_that_breaks_off_anywhere_is_not_taken_for_whole() {
        let sent = in_pieces(b"everything");
        for cut in 0..sent.len() {
            let read = Whole::of(&sent[..cut]).read_to_end(&mut Vec::new());
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
        let read = Whole::of(&[0xff; 8][..]).read_to_end(&mut Vec::new());
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
