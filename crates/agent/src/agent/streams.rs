//! One channel's output and input, each moving only as far as there is credit for it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::{Errno, write};

use super::link::{Link, LinkStop};
use crate::protocol::{MIN_CHARGE, Stream, WINDOW_BYTES, charge};

/// What a terminal's line discipline takes for the end of input.
const END_OF_INPUT: u8 = 4;

/// What a terminal may hold back that it does not count yet.
const TERMINAL_SLACK_BYTES: u64 = 64 << 10;

/// More credit than was ever given out breaks the protocol.
pub fn add_credit(credit: u32, amount: u32) -> Result<u32, LinkStop> {
    let sum = credit.checked_add(amount).filter(|sum| *sum <= WINDOW_BYTES);
    sum.ok_or(LinkStop::Broken)
}

/// One output stream on its way out.
pub struct OutputPump {
    fd: Option<OwnedFd>,
    stream: Stream,
    credit: u32,
    /// What was there when the writer ended. What others write after that is not its output, and
    /// waiting for them to pause would be waiting for ever.
    last: Option<u64>,
    /// No reader is left: output is counted, and not sent.
    discarding: bool,
    unsent: u64,
    /// Nothing is read until a new peer has said whether it wants it.
    held: bool,
    /// Nothing is sent any more; what still comes is thrown away, so that a background process that
    /// logs is neither blocked nor killed.
    muted: bool,
}

impl OutputPump {
    pub fn new(stream: Stream, fd: Option<OwnedFd>) -> Self {
        let muted = fd.is_none();
        Self {
            fd,
            stream,
            credit: WINDOW_BYTES,
            last: None,
            discarding: false,
            unsent: 0,
            held: false,
            muted,
        }
    }

    pub fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Whether everything that will be sent was sent.
    pub fn is_done(&self) -> bool {
        self.muted
    }

    /// Whether reading from it would lead anywhere now.
    pub fn is_ready(&self, link: &Link) -> bool {
        let is_silent = self.muted || self.discarding;
        self.fd.is_some()
            && !self.held
            && (is_silent || self.credit >= MIN_CHARGE && link.has_room())
    }

    /// A new peer has come: nothing is read until it says whether it wants this.
    pub fn hold_output(&mut self) {
        self.held = true;
    }

    /// The peer wants the output, and grants credit anew.
    pub fn start_over(&mut self) {
        (self.held, self.credit) = (false, 0);
    }

    /// The peer does not want the output.
    pub fn mute_output(&mut self) {
        (self.held, self.muted) = (false, true);
    }

    /// From now on nothing is sent.
    pub fn stop_sending(&mut self) {
        self.discarding = true;
    }

    /// Output that was not sent because no reader was left, in bytes.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// More may be sent.
    pub fn grant_credit(&mut self, amount: u32) -> Result<(), LinkStop> {
        self.credit = add_credit(self.credit, amount)?;
        Ok(())
    }

    /// Sends one piece. `last` says that the writer has ended: once what it left was sent, nothing
    /// more is waited for, even if a descendant holds the stream open or writes to it.
    pub fn pump(&mut self, channel: u32, link: &mut Link, last: bool) {
        if !self.is_ready(link) {
            return;
        }
        let Some(fd) = &self.fd else { return };
        if last && self.last.is_none() {
            self.last =
                rustix::io::ioctl_fionread(fd).ok().map(|there| there + TERMINAL_SLACK_BYTES);
        }
        let got = if self.muted || self.discarding {
            link.discard_output(fd)
        } else {
            link.forward_output(channel, self.stream, fd, self.credit as usize)
        };
        match got {
            Ok(count) if count > 0 => self.spend_credit(count),
            Err(Errno::AGAIN) if !last => {}
            Err(Errno::AGAIN) => self.muted = true,
            Err(Errno::INTR) => {}
            // A terminal says EIO when no process has it open any more.
            Ok(_) | Err(_) => self.close(),
        }
    }

    fn spend_credit(&mut self, count: usize) {
        if self.muted {
            return;
        }
        if self.discarding {
            self.unsent += count as u64;
        } else {
            self.credit = self.credit.saturating_sub(charge(count));
        }
        self.last = self.last.map(|last| last.saturating_sub(count as u64));
        self.muted = self.last == Some(0);
    }

    pub fn close(&mut self) {
        self.muted = true;
        self.fd = None;
    }
}

/// One input stream on its way in.
pub struct InputPump {
    fd: Option<OwnedFd>,
    queue: VecDeque<u8>,
    /// What the peer may still send.
    credit: u32,
    /// What was used up and not yet given back.
    owed: u32,
    ending: bool,
    terminal: bool,
}

impl InputPump {
    pub fn new(fd: Option<OwnedFd>, terminal: bool) -> Self {
        let queue = VecDeque::new();
        Self { fd, queue, credit: WINDOW_BYTES, owed: 0, ending: false, terminal }
    }

    /// The descriptor to wait for, while something waits to be written.
    pub fn waiting_fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| !self.queue.is_empty())
    }

    /// Takes input that arrived.
    pub fn push(&mut self, data: &[u8]) -> Result<(), LinkStop> {
        let length = u32::try_from(data.len()).map_err(|_| LinkStop::Broken)?;
        self.credit = self.credit.checked_sub(length).ok_or(LinkStop::Broken)?;
        if self.ending {
            return Err(LinkStop::Broken);
        }
        self.queue.extend(data);
        Ok(())
    }

    /// Nothing more will arrive.
    pub fn end(&mut self) {
        if !self.ending && self.terminal {
            self.queue.push_back(END_OF_INPUT);
        }
        self.ending = true;
    }

    /// Writes what can be written. Returns the credit to give back, if it is worth a message.
    pub fn pump(&mut self) -> Option<u32> {
        while let Some(fd) = self.fd.as_ref().filter(|_| !self.queue.is_empty()) {
            match write(fd, self.queue.as_slices().0) {
                Ok(count) => self.consume_queue(count),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => self.fd = None,
            }
        }
        if self.fd.is_none() {
            // No reader is left: input is discarded, so that the writer is not blocked for ever.
            self.consume_queue(self.queue.len());
        }
        // A terminal stays: it is also where the output comes from.
        if self.ending && self.queue.is_empty() && !self.terminal {
            self.fd = None;
        }
        (self.owed >= WINDOW_BYTES / 4 && !self.ending).then(|| self.grant_owed_credit())
    }

    fn consume_queue(&mut self, count: usize) {
        self.queue.drain(..count);
        self.owed += count as u32;
    }

    fn grant_owed_credit(&mut self) -> u32 {
        let owed = std::mem::take(&mut self.owed);
        self.credit += owed;
        owed
    }

    /// A new peer has come: the credit that it is given first.
    pub fn start_over(&mut self) -> u32 {
        self.owed = 0;
        self.credit = WINDOW_BYTES.saturating_sub(self.queue.len() as u32);
        self.credit
    }

    pub fn close(&mut self) {
        self.fd = None;
        self.queue.clear();
    }
}
