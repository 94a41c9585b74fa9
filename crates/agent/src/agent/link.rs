//! The pipe to the engine: whole frames in, whole frames out, never blocking, bounded.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, write};

use super::sys;

use crate::protocol::{DecodeError, FromAgent, MAX_DATA, MAX_FRAME, Stream, TooLong, put_output};

/// While more than this is waiting to be sent, nothing is read from anywhere.
const ENOUGH: usize = 512 * 1024;
/// How much is read from the pipe at once.
const PIECE: usize = 64 * 1024;

/// Why the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The pipe closed.
    Closed,
    /// The other side broke the protocol.
    Broken,
}

impl From<DecodeError> for Stop {
    fn from(_: DecodeError) -> Self {
        Self::Broken
    }
}

/// The pipe to the engine.
pub struct Link {
    pub input: OwnedFd,
    pub output: OwnedFd,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
}

impl Link {
    pub fn new(input: OwnedFd, output: OwnedFd) -> Self {
        Self { input, output, inbox: Vec::new(), outbox: Vec::new(), sent: 0 }
    }

    /// Whether more may be queued.
    pub fn has_room(&self) -> bool {
        self.outbox.len() - self.sent < ENOUGH
    }

    /// Whether something waits to be sent.
    pub fn is_waiting(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Queues a message. The sizes of all texts are bounded where they are made, so it fits.
    pub fn send(&mut self, message: &FromAgent<'_>) {
        let fits: Result<(), TooLong> = message.encode(&mut self.outbox);
        debug_assert!(fits.is_ok(), "{message:?}");
    }

    /// Passes on what can be read, at most `most` bytes. Returns how many; 0 is the end.
    pub fn forward(
        &mut self,
        channel: u32,
        stream: Stream,
        from: &OwnedFd,
        most: usize,
    ) -> Result<usize, Errno> {
        let most = most.min(MAX_DATA);
        put_output(&mut self.outbox, channel, stream, |out| sys::read_more(from, out, most))
    }

    /// Reads once.
    pub fn fill(&mut self) -> Result<(), Stop> {
        match sys::read_more(&self.input, &mut self.inbox, PIECE) {
            Ok(0) => Err(Stop::Closed),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Stop::Closed),
        }
    }

    /// Whether reading more would be of use: a whole frame always fits.
    pub fn wants_input(&self) -> bool {
        self.has_room() && self.inbox.len() <= MAX_FRAME + PIECE
    }

    /// Takes the bytes that arrived, to be looked at while the link is in use.
    pub fn take_inbox(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.inbox)
    }

    /// Gives back those of them that were not used.
    pub fn return_inbox(&mut self, mut bytes: Vec<u8>, used: usize) {
        bytes.drain(..used);
        self.inbox = bytes;
    }

    /// Sends as much as the pipe takes.
    pub fn flush(&mut self) -> Result<(), Stop> {
        while self.is_waiting() {
            match write(&self.output, &self.outbox[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Stop::Closed),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }
}
