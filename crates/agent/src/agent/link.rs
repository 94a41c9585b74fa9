//! The pipe to the engine: whole frames in, whole frames out, never blocking, bounded.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::{Errno, write};

use super::run::set_nonblocking;
use super::sys;

use crate::protocol::{DecodeError, FromAgent, MAX_DATA, MAX_FRAME, Stream, TooLong, put_output};

/// The high-water mark of the outbox: while more is waiting to be sent, nothing is read from
/// anywhere.
const HIGH_WATER_BYTES: usize = 512 * 1024;
/// How much is read from the pipe at once.
const READ_CHUNK_BYTES: usize = 64 * 1024;

/// Why the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkStop {
    /// The pipe closed.
    Closed,
    /// The peer broke the protocol.
    Broken,
}

impl From<DecodeError> for LinkStop {
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
    /// Whether both directions are one socket, over which another can come to take its place.
    is_one: bool,
    /// Channels that the current peer does not know.
    unheard: BTreeSet<u32>,
}

impl Link {
    pub fn new(input: OwnedFd, output: OwnedFd, is_one: bool) -> Self {
        let (inbox, outbox, unheard) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { input, output, inbox, outbox, sent: 0, is_one, unheard }
    }

    /// The link that takes its place. What was queued in the old one is dropped.
    pub fn renewed(socket: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&socket)?;
        Ok(Self::new(socket.try_clone()?, socket, true))
    }

    /// Nothing more is said of this channel.
    pub fn keep_from(&mut self, channel: u32) {
        self.unheard.insert(channel);
    }

    /// Whether more may be queued.
    pub fn has_room(&self) -> bool {
        self.outbox.len() - self.sent < HIGH_WATER_BYTES
    }

    /// Whether something waits to be sent.
    pub fn is_waiting(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Queues a message. The sizes of all texts are bounded where they are made, so it fits.
    pub fn send(&mut self, message: &FromAgent<'_>) {
        if message.channel().is_some_and(|channel| self.unheard.contains(&channel)) {
            return;
        }
        let fits: Result<(), TooLong> = message.encode(&mut self.outbox);
        debug_assert!(fits.is_ok(), "{message:?}");
    }

    /// Passes on what can be read, at most `most` bytes. Returns how many; 0 is the end.
    pub fn forward_output(
        &mut self,
        channel: u32,
        stream: Stream,
        from: &OwnedFd,
        most: usize,
    ) -> Result<usize, Errno> {
        let most = most.min(MAX_DATA);
        put_output(&mut self.outbox, channel, stream, |out| sys::read_more(from, out, most))
    }

    /// Throws away what can be read. Returns how many bytes; 0 is the end.
    pub fn discard_output(&mut self, from: &OwnedFd) -> Result<usize, Errno> {
        let end = self.outbox.len();
        let got = sys::read_more(from, &mut self.outbox, MAX_DATA);
        self.outbox.truncate(end);
        got
    }

    /// Reads once. Returns the socket that is to take this one's place, if that is what came.
    pub fn fill_input(&mut self) -> Result<Option<OwnedFd>, LinkStop> {
        let read = match self.is_one {
            true => sys::receive_more(&self.input, &mut self.inbox, READ_CHUNK_BYTES),
            false => sys::read_more(&self.input, &mut self.inbox, READ_CHUNK_BYTES)
                .map(|count| (count, None)),
        };
        match read {
            Ok((0, None)) => Err(LinkStop::Closed),
            Ok((_, socket)) => Ok(socket),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(LinkStop::Closed),
        }
    }

    /// Whether reading more would be of use: a whole frame always fits.
    pub fn wants_input(&self) -> bool {
        self.has_room() && self.inbox.len() <= MAX_FRAME + READ_CHUNK_BYTES
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
    pub fn flush(&mut self) -> Result<(), LinkStop> {
        while self.is_waiting() {
            match write(&self.output, &self.outbox[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(LinkStop::Closed),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }
}
