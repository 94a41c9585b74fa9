//! The messages of each direction. Their data is borrowed from the buffer they arrived in.

use super::HEADER_BYTES;
use super::parts::{
    End, FileEntry, FileErrorKind, FileRequest, Hello, Size, Spawn, StartKind, Stream,
};
use super::wire::{DecodeError, Put, Take, TooLong, put_frame, take_whole};

/// A channel's number.
type ChannelNumber = u32;

/// What the engine tells the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAgent<'a> {
    /// The first message.
    Hello(Hello),
    /// Opens a channel with a program.
    Spawn(ChannelNumber, Spawn<'a>),
    /// Input.
    Stdin(ChannelNumber, &'a [u8]),
    /// The end of input.
    StdinEnd(ChannelNumber),
    /// More output of this stream may be sent.
    Credit(ChannelNumber, Stream, u32),
    /// A signal for the program and its descendants.
    Signal(ChannelNumber, u8),
    /// Ends everything that belongs to the channel.
    Kill(ChannelNumber),
    /// The terminal's new size.
    Resize(ChannelNumber, Size),
    /// The program's output has no reader any more: it is counted, and not sent.
    DiscardOutput(ChannelNumber),
    /// To an agent that has a new peer: channel numbers up to the first were used, and the channels in the list are
    /// known to the new peer. Sent right after the hello.
    Keep(ChannelNumber, Vec<ChannelNumber>),
    /// Opens a channel with a file operation.
    File(ChannelNumber, FileRequest<'a>),
    /// Opens a channel with the network helper: what [`super::network`] describes is its input and output.
    /// Answered by output, and by `FileDone` or `FileError` at its end.
    Network(ChannelNumber),
}

/// What the agent tells the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromAgent<'a> {
    /// The first message.
    Hello(Hello),
    /// The program runs, with this process id.
    Started(ChannelNumber, u32),
    /// It never ran: why, the system's error number, a sentence. Ends the channel.
    StartFailed(ChannelNumber, StartKind, i32, &'a str),
    /// Output.
    Output(ChannelNumber, Stream, &'a [u8]),
    /// The program ended, and no output follows.
    Exited {
        /// The channel.
        channel: ChannelNumber,
        /// How it ended.
        end: End,
        /// Processor time in microseconds, of the program and its descendants that ended before it.
        cpu_us: u64,
        /// Highest memory of one of them, in KiB.
        peak_kib: u64,
        /// Bytes that were not sent because of [`ToAgent::DiscardOutput`]: of the output, and of the errors.
        unsent: [u64; 2],
    },
    /// No process of this execution is left. Before or after `Exited`; with it, ends the channel.
    Ended(ChannelNumber),
    /// As `Ended`, but the keeper was killed from inside, so descendants may have got away from it.
    KeeperLost(ChannelNumber),
    /// More input may be sent.
    StdinCredit(ChannelNumber, u32),
    /// The file request succeeded. Ends the channel, except a watch's.
    FileDone(ChannelNumber),
    /// What is at the path. Ends the channel.
    FileEntry(ChannelNumber, FileEntry<'a>),
    /// What was read. Ends the channel.
    FileData(ChannelNumber, &'a [u8]),
    /// The file request failed: why, the system's error number, at which path, a sentence. Ends the
    /// channel.
    FileError(ChannelNumber, FileErrorKind, i32, &'a str, &'a str),
}

impl<'a> ToAgent<'a> {
    /// Appends it as a frame, or leaves `out` as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_frame(out, |to| self.put(to))
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                to.u8(1);
                hello.put(to);
            }
            Self::Spawn(channel, spawn) => {
                to.head(2, *channel);
                spawn.put(to);
            }
            Self::Stdin(channel, data) => {
                to.head(3, *channel);
                to.data(data);
            }
            Self::StdinEnd(channel) => to.head(4, *channel),
            Self::Credit(channel, stream, amount) => {
                to.head(5, *channel);
                to.u8(stream.tag());
                to.u32(*amount);
            }
            Self::Signal(channel, number) => {
                to.head(6, *channel);
                to.u8(*number);
            }
            Self::Kill(channel) => to.head(7, *channel),
            Self::Resize(channel, size) => {
                to.head(8, *channel);
                size.put(to);
            }
            Self::File(channel, request) => {
                to.head(9, *channel);
                request.put(to);
            }
            Self::DiscardOutput(channel) => to.head(10, *channel),
            Self::Keep(last, kept) => {
                to.head(11, *last);
                to.count(kept.len());
                kept.iter().for_each(|channel| to.u32(*channel));
            }
            Self::Network(channel) => to.head(12, *channel),
        }
    }

    /// Reads a frame's body. Every tag, length and text is checked; nothing may be left over.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        take_whole(body, Self::take)
    }

    fn take(from: &mut Take<'a>) -> Result<Self, DecodeError> {
        let tag = from.u8()?;
        if tag == 1 {
            return Hello::take(from).map(Self::Hello);
        }
        let channel = from.u32()?;
        Ok(match tag {
            2 => Self::Spawn(channel, Spawn::take(from)?),
            3 => Self::Stdin(channel, from.data()?),
            4 => Self::StdinEnd(channel),
            5 => Self::Credit(channel, Stream::take(from)?, from.u32()?),
            6 => Self::Signal(channel, from.u8()?),
            7 => Self::Kill(channel),
            8 => Self::Resize(channel, Size::take(from)?),
            9 => Self::File(channel, FileRequest::take(from)?),
            10 => Self::DiscardOutput(channel),
            11 => Self::Keep(channel, from.list(Take::u32)?),
            12 => Self::Network(channel),
            tag => return Err(DecodeError::Tag { what: "message to the agent", tag }),
        })
    }
}

impl<'a> FromAgent<'a> {
    /// The channel that it is about.
    pub fn channel(&self) -> Option<ChannelNumber> {
        match self {
            Self::Hello(_) => None,
            Self::Started(channel, _)
            | Self::StartFailed(channel, ..)
            | Self::Output(channel, ..)
            | Self::Exited { channel, .. }
            | Self::Ended(channel)
            | Self::KeeperLost(channel)
            | Self::StdinCredit(channel, _)
            | Self::FileDone(channel)
            | Self::FileEntry(channel, _)
            | Self::FileData(channel, _)
            | Self::FileError(channel, ..) => Some(*channel),
        }
    }

    /// Appends it as a frame, or leaves `out` as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_frame(out, |to| self.put(to))
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                to.u8(1);
                hello.put(to);
            }
            Self::Started(channel, pid) => {
                to.head(2, *channel);
                to.u32(*pid);
            }
            Self::StartFailed(channel, kind, errno, detail) => {
                to.head(3, *channel);
                to.u8(kind.tag());
                to.bytes(&errno.to_le_bytes());
                to.text(detail);
            }
            Self::Output(channel, stream, data) => {
                to.head(4, *channel);
                to.u8(stream.tag());
                to.data(data);
            }
            Self::Exited { channel, end, cpu_us, peak_kib, unsent: [output, errors] } => {
                to.head(5, *channel);
                end.put(to);
                to.u64(*cpu_us);
                to.u64(*peak_kib);
                to.u64(*output);
                to.u64(*errors);
            }
            Self::Ended(channel) => to.head(6, *channel),
            Self::KeeperLost(channel) => to.head(7, *channel),
            Self::StdinCredit(channel, amount) => {
                to.head(8, *channel);
                to.u32(*amount);
            }
            Self::FileDone(channel) => to.head(9, *channel),
            Self::FileEntry(channel, entry) => {
                to.head(10, *channel);
                entry.put(to);
            }
            Self::FileData(channel, data) => {
                to.head(11, *channel);
                to.data(data);
            }
            Self::FileError(channel, kind, errno, path, detail) => {
                to.head(12, *channel);
                to.u8(kind.tag());
                to.bytes(&errno.to_le_bytes());
                to.text(path);
                to.text(detail);
            }
        }
    }

    /// Reads a frame's body. Every tag, length and text is checked; nothing may be left over.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        take_whole(body, Self::take)
    }

    fn take(from: &mut Take<'a>) -> Result<Self, DecodeError> {
        let tag = from.u8()?;
        if tag == 1 {
            return Hello::take(from).map(Self::Hello);
        }
        let channel = from.u32()?;
        Ok(match tag {
            2 => Self::Started(channel, from.u32()?),
            3 => Self::StartFailed(channel, StartKind::take(from)?, from.i32()?, from.text()?),
            4 => Self::Output(channel, Stream::take(from)?, from.data()?),
            5 => Self::Exited {
                channel,
                end: End::take(from)?,
                cpu_us: from.u64()?,
                peak_kib: from.u64()?,
                unsent: [from.u64()?, from.u64()?],
            },
            6 => Self::Ended(channel),
            7 => Self::KeeperLost(channel),
            8 => Self::StdinCredit(channel, from.u32()?),
            9 => Self::FileDone(channel),
            10 => Self::FileEntry(channel, FileEntry::take(from)?),
            11 => Self::FileData(channel, from.data()?),
            12 => Self::FileError(
                channel,
                FileErrorKind::take(from)?,
                from.i32()?,
                from.text()?,
                from.text()?,
            ),
            tag => return Err(DecodeError::Tag { what: "message from the agent", tag }),
        })
    }
}

/// Appends an output frame whose data `fill` appends itself, so that it is copied only once. Leaves
/// `out` as it was when `fill` fails or adds nothing.
pub fn put_output<E>(
    out: &mut Vec<u8>,
    channel: ChannelNumber,
    stream: Stream,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<usize, E>,
) -> Result<usize, E> {
    let start = out.len();
    // The prefix of an empty frame, without the last field: the data's length.
    let empty = put_frame(out, |to| FromAgent::Output(channel, stream, &[]).put(to));
    debug_assert!(empty.is_ok());
    let data = out.len();
    let filled = fill(out);
    let added = out.len() - data;
    if added == 0 || filled.is_err() {
        out.truncate(start);
        return filled;
    }
    let body = (data - start - HEADER_BYTES + added) as u32;
    out[start..start + HEADER_BYTES].copy_from_slice(&body.to_le_bytes());
    out[data - 4..data].copy_from_slice(&(added as u32).to_le_bytes());
    filled
}
