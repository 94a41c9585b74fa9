//! What travels between the engine and the network helper, a worker of the agent: connections that programs
//! inside make, names that they look up, and the engine's decisions. It is carried as the worker's input and
//! output, in the same frames as the pipe's own messages.
//!
//! The helper decides nothing. Each name and each connection is asked about, and the engine treats everything
//! that the helper says as guest input.
//!
//! Streams that the helper opens have odd numbers, those of the engine even ones. The helper numbers a connection
//! when it accepts it and opens its stream when it knows where it goes, so numbers come in any order; none is used
//! for two streams at once. Each direction of a stream starts with [`STREAM_WINDOW_BYTES`] of credit and ends by itself
//! with `End`; `Reset` ends both at once. A message for a stream that is over is ignored: it may have crossed
//! the end.

use super::parts::byte_enum;
use super::wire::{DecodeError, Put, Take, TooLong, put_frame, take_whole};

/// The credit that each direction of a stream starts with.
pub const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The most data in one frame of a stream.
pub const MAX_STREAM_DATA: usize = 64 * 1024;
/// The most streams open at once.
pub const MAX_STREAMS: usize = 1024;
/// The longest name of a host, as text.
pub const MAX_HOST_BYTES: usize = 253;
/// The most ports that one name is reached at.
pub const MAX_PORTS_PER_NAME: usize = 64;

/// A stream's number.
type StreamNumber = u32;

byte_enum!(
    /// How a program inside came to a connection.
    Via, "way of a connection" {
        /// By an address that the helper invented for a name.
        Name = 1,
        /// By `CONNECT` to the HTTP proxy.
        Connect = 2,
        /// By a plain request to the HTTP proxy.
        Http = 3,
        /// By SOCKS5.
        Socks = 4,
    }
);

byte_enum!(
    /// Why a connection was not made.
    RefusalKind, "kind of refusal" {
        /// The policy does not allow it.
        Denied = 1,
        /// It is allowed, and the host cannot be reached.
        Unreachable = 2,
        /// There are too many connections.
        Busy = 3,
    }
);

/// What the engine tells the helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHelper<'a> {
    /// The first message: where to listen. Nothing where other hosts are not to be reached: the helper then
    /// listens nowhere, and only connects to ports inside.
    Setup(Option<Setup>),
    /// The answer to a lookup: the ports at which this name may be reached; none where it may not.
    Found(u32, Vec<u16>),
    /// The connection stands.
    Opened(StreamNumber),
    /// It does not, and why. Ends the stream.
    Refused(StreamNumber, RefusalKind, &'a str),
    /// Bytes for the program inside.
    Data(StreamNumber, &'a [u8]),
    /// No more bytes for it.
    End(StreamNumber),
    /// The connection is gone.
    Reset(StreamNumber),
    /// More bytes of this stream may be sent.
    Credit(StreamNumber, u32),
    /// Connects to a port of the sandbox's own loopback, IPv4 before IPv6.
    Connect(StreamNumber, u16),
}

/// What the helper tells the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromHelper<'a> {
    /// All sockets listen.
    Ready,
    /// They do not: why. Nothing follows.
    Failed(&'a str),
    /// A program looks up this name.
    Lookup(u32, &'a str),
    /// A program connects to this host and port.
    Open {
        /// The new stream.
        stream: StreamNumber,
        /// A name, or an address as text.
        host: &'a str,
        /// The port.
        port: u16,
        /// How it came.
        via: Via,
    },
    /// The connection that the engine asked for stands.
    Opened(StreamNumber),
    /// Bytes from the program inside.
    Data(StreamNumber, &'a [u8]),
    /// No more bytes from it.
    End(StreamNumber),
    /// The connection is gone.
    Reset(StreamNumber),
    /// More bytes of this stream may be sent.
    Credit(StreamNumber, u32),
}

/// Where the helper listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// The address of the name server and of the proxies, in the loopback range.
    pub address: [u8; 4],
    /// The first address that is invented; the next ones follow, up to the end of its /10.
    pub first: [u8; 4],
    /// The name server's port.
    pub dns_port: u16,
    /// The HTTP proxy's port.
    pub http_port: u16,
    /// The SOCKS5 proxy's port.
    pub socks_port: u16,
}

impl Setup {
    fn put(self, to: &mut Vec<u8>) {
        to.bytes(&self.address);
        to.bytes(&self.first);
        to.u16(self.dns_port);
        to.u16(self.http_port);
        to.u16(self.socks_port);
    }

    fn take(from: &mut Take<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            address: from.array()?,
            first: from.array()?,
            dns_port: from.u16()?,
            http_port: from.u16()?,
            socks_port: from.u16()?,
        })
    }
}

/// A host's name, which is never longer than this, with a dot at its end.
fn take_host<'a>(from: &mut Take<'a>) -> Result<&'a str, DecodeError> {
    let host = from.text()?;
    if host.len() <= MAX_HOST_BYTES + 1 { Ok(host) } else { Err(DecodeError::Text) }
}

impl<'a> ToHelper<'a> {
    /// Appends it as a frame, or leaves `out` as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_frame(out, |to| self.put(to))
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Setup(setup) => {
                to.u8(1);
                to.flag(setup.is_some());
                if let Some(setup) = setup {
                    setup.put(to);
                }
            }
            Self::Found(query, ports) => {
                to.head(2, *query);
                to.count(ports.len());
                ports.iter().for_each(|port| to.u16(*port));
            }
            Self::Opened(stream) => to.head(3, *stream),
            Self::Refused(stream, kind, reason) => {
                to.head(4, *stream);
                to.u8(kind.tag());
                to.text(reason);
            }
            Self::Data(stream, data) => {
                to.head(5, *stream);
                to.data(data);
            }
            Self::End(stream) => to.head(6, *stream),
            Self::Reset(stream) => to.head(7, *stream),
            Self::Credit(stream, amount) => {
                to.head(8, *stream);
                to.u32(*amount);
            }
            Self::Connect(stream, port) => {
                to.head(9, *stream);
                to.u16(*port);
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
            return from.option(Setup::take).map(Self::Setup);
        }
        let number = from.u32()?;
        Ok(match tag {
            2 => Self::Found(number, from.list(Take::u16)?),
            3 => Self::Opened(number),
            4 => Self::Refused(number, RefusalKind::take(from)?, from.text()?),
            5 => Self::Data(number, from.data()?),
            6 => Self::End(number),
            7 => Self::Reset(number),
            8 => Self::Credit(number, from.u32()?),
            9 => Self::Connect(number, from.u16()?),
            tag => return Err(DecodeError::Tag { what: "message to the network helper", tag }),
        })
    }
}

impl<'a> FromHelper<'a> {
    /// Appends it as a frame, or leaves `out` as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_frame(out, |to| self.put(to))
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Ready => to.u8(1),
            Self::Failed(reason) => {
                to.u8(2);
                to.text(reason);
            }
            Self::Lookup(query, name) => {
                to.head(3, *query);
                to.text(name);
            }
            Self::Open { stream, host, port, via } => {
                to.head(4, *stream);
                to.text(host);
                to.u16(*port);
                to.u8(via.tag());
            }
            Self::Opened(stream) => to.head(5, *stream),
            Self::Data(stream, data) => {
                to.head(6, *stream);
                to.data(data);
            }
            Self::End(stream) => to.head(7, *stream),
            Self::Reset(stream) => to.head(8, *stream),
            Self::Credit(stream, amount) => {
                to.head(9, *stream);
                to.u32(*amount);
            }
        }
    }

    /// Reads a frame's body. Every tag, length and text is checked; nothing may be left over.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        take_whole(body, Self::take)
    }

    fn take(from: &mut Take<'a>) -> Result<Self, DecodeError> {
        let tag = from.u8()?;
        match tag {
            1 => return Ok(Self::Ready),
            2 => return from.text().map(Self::Failed),
            _ => {}
        }
        let number = from.u32()?;
        Ok(match tag {
            3 => Self::Lookup(number, take_host(from)?),
            4 => Self::Open {
                stream: number,
                host: take_host(from)?,
                port: from.u16()?,
                via: Via::take(from)?,
            },
            5 => Self::Opened(number),
            6 => Self::Data(number, from.data()?),
            7 => Self::End(number),
            8 => Self::Reset(number),
            9 => Self::Credit(number, from.u32()?),
            tag => return Err(DecodeError::Tag { what: "message from the network helper", tag }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_for_ports_alone_names_no_place_to_listen() {
        let (address, first) = ([127, 63, 0, 53], [127, 64, 0, 1]);
        let setup = Setup { address, first, dns_port: 53, http_port: 3128, socks_port: 1080 };
        for setup in [None, Some(setup)] {
            let message = ToHelper::Setup(setup);
            let mut frame = Vec::new();
            message.encode(&mut frame).unwrap();
            assert_eq!(ToHelper::decode(&frame[super::super::HEADER_BYTES..]), Ok(message));
        }
        assert_eq!(ToHelper::decode(&[1, 0, 0]), Err(DecodeError::Trailing));
    }
}
