//! One connection of a program inside, between its socket and the helper's pipe.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};

use rustix::event::PollFlags;

use super::greeting::{Greeting, MAX_HEAD_BYTES, ProxyKind};
use super::listeners::begin_connecting;
use crate::protocol::network::{
    FromHelper, MAX_STREAM_DATA, RefusalKind, STREAM_WINDOW_BYTES, Via,
};

/// How far a connection has come.
enum StreamPhase {
    /// A client of a proxy has not said yet where to. With what it has said.
    Greeting { kind: ProxyKind, greeted: bool, said: Vec<u8> },
    /// The engine was asked.
    Asked(Via),
    /// The engine asked, and the socket connects; where that fails, to this address.
    Connecting { otherwise: Option<SocketAddr> },
    /// It stands.
    Open,
}

/// One connection.
pub struct HelperStream {
    socket: TcpStream,
    phase: StreamPhase,
    /// Bytes for the program that its socket has not taken yet.
    inward: VecDeque<u8>,
    /// How many of them, at the front, are the helper's own words, for which the engine gets no credit.
    own: usize,
    /// How many bytes may still be sent to the engine.
    credit: u32,
    /// Bytes that the socket took and for which no credit was given back yet.
    owed: u32,
    /// The program's side has ended, and that was told.
    outward_over: bool,
    /// The engine's side has ended.
    inward_ends: bool,
    /// The socket was told so.
    inward_over: bool,
    /// It is closed as soon as the socket has taken everything.
    closing: bool,
}

/// What became of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// It goes on.
    Live,
    /// It is over, and the engine knows.
    Over,
    /// It is over, and the engine is to be told.
    Broken,
}

/// Messages for the engine.
pub type Outbox<'a> = &'a mut dyn FnMut(&FromHelper<'_>);

impl HelperStream {
    /// A program that connected to an invented address. The engine was asked.
    pub fn to_name(socket: TcpStream) -> Self {
        Self::new(socket, StreamPhase::Asked(Via::Name))
    }

    /// A client of a proxy.
    pub fn to_proxy(socket: TcpStream, kind: ProxyKind) -> Self {
        Self::new(socket, StreamPhase::Greeting { kind, greeted: false, said: Vec::new() })
    }

    /// A connection that the engine wants to a port of the sandbox, under way. Some servers listen at the
    /// IPv6 loopback alone.
    pub fn to_port(port: u16) -> io::Result<Self> {
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let first = begin_connecting(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let (socket, otherwise) = match first {
            Ok(socket) => (socket, Some(v6)),
            Err(_) => (begin_connecting(v6)?, None),
        };
        Ok(Self::new(socket, StreamPhase::Connecting { otherwise }))
    }

    fn new(socket: TcpStream, phase: StreamPhase) -> Self {
        // Without it small answers wait for others. A socket that refuses it works as well.
        let _ = socket.set_nodelay(true);
        let (credit, owed) = (STREAM_WINDOW_BYTES, 0);
        let (outward_over, inward_ends, inward_over, closing) = (false, false, false, false);
        let (inward, own) = (VecDeque::new(), 0);
        Self {
            socket,
            phase,
            inward,
            own,
            credit,
            owed,
            outward_over,
            inward_ends,
            inward_over,
            closing,
        }
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// What its socket is waited for.
    pub fn poll_flags(&self, room: bool) -> PollFlags {
        let mut flags = PollFlags::empty();
        let connecting = matches!(self.phase, StreamPhase::Connecting { .. });
        let greeting = matches!(self.phase, StreamPhase::Greeting { .. });
        let readable = greeting || (self.credit > 0 && !connecting);
        if room && readable && !self.outward_over && !self.closing {
            flags |= PollFlags::IN;
        }
        if connecting || !self.inward.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    /// Deals with a socket that is ready.
    pub fn serve(&mut self, number: u32, ready: PollFlags, tell: Outbox<'_>) -> StreamState {
        let served = self.serve_socket(number, ready, tell);
        match served {
            Ok(()) if self.is_over() => StreamState::Over,
            Ok(()) => StreamState::Live,
            Err(_) => StreamState::Broken,
        }
    }

    fn is_over(&self) -> bool {
        (self.closing && self.inward.is_empty()) || (self.outward_over && self.inward_over)
    }

    fn serve_socket(&mut self, number: u32, ready: PollFlags, tell: Outbox<'_>) -> io::Result<()> {
        if let StreamPhase::Connecting { otherwise } = self.phase {
            return self.finish_connecting(otherwise, number, tell);
        }
        self.write_inward(number, tell)?;
        // Nothing more would be read from it, so this is the only sign that it is gone.
        if ready.contains(PollFlags::ERR) && (self.outward_over || self.credit == 0) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && !self.closing {
            self.read_outward(number, tell)?;
        }
        Ok(())
    }

    fn finish_connecting(
        &mut self,
        otherwise: Option<SocketAddr>,
        number: u32,
        tell: Outbox<'_>,
    ) -> io::Result<()> {
        match (self.socket.take_error()?, otherwise) {
            (None, _) => {
                self.phase = StreamPhase::Open;
                tell(&FromHelper::Opened(number));
            }
            (Some(_), Some(address)) => {
                self.socket = begin_connecting(address)?;
                // A socket that refuses it works as well.
                let _ = self.socket.set_nodelay(true);
                self.phase = StreamPhase::Connecting { otherwise: None };
            }
            (Some(error), None) => return Err(error),
        }
        Ok(())
    }

    fn read_outward(&mut self, number: u32, tell: Outbox<'_>) -> io::Result<()> {
        let mut buffer = [0; MAX_STREAM_DATA];
        if let StreamPhase::Greeting { said, .. } = &mut self.phase {
            let room = MAX_HEAD_BYTES - said.len().min(MAX_HEAD_BYTES);
            match read_some(&mut self.socket, &mut buffer[..room])? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => said.extend_from_slice(&buffer[..count]),
                None => return Ok(()),
            }
            return self.go_on_greeting(number, tell);
        }
        if self.outward_over || self.credit == 0 {
            return Ok(());
        }
        let most = buffer.len().min(self.credit as usize);
        match read_some(&mut self.socket, &mut buffer[..most])? {
            Some(0) => {
                self.outward_over = true;
                tell(&FromHelper::End(number));
            }
            Some(count) => self.send_outward(number, &buffer[..count], tell),
            None => {}
        }
        Ok(())
    }

    fn send_outward(&mut self, number: u32, data: &[u8], tell: Outbox<'_>) {
        // A head is shorter than the window, and nothing was sent before it.
        self.credit = self.credit.saturating_sub(data.len() as u32);
        if !data.is_empty() {
            tell(&FromHelper::Data(number, data));
        }
    }

    fn go_on_greeting(&mut self, number: u32, tell: Outbox<'_>) -> io::Result<()> {
        while let StreamPhase::Greeting { kind, greeted, said } = &mut self.phase {
            match kind.read_greeting(said, *greeted) {
                Greeting::Incomplete => return Ok(()),
                Greeting::Reply(reply, used) => {
                    said.drain(..used);
                    *greeted = true;
                    self.say(reply);
                }
                Greeting::Bad(reply) => {
                    self.say(reply);
                    self.closing = true;
                    return self.write_inward(number, tell);
                }
                Greeting::Wants { host, port, via, used } => {
                    let rest = said.split_off(used);
                    self.phase = StreamPhase::Asked(via);
                    tell(&FromHelper::Open { stream: number, host: &host, port, via });
                    self.send_outward(number, &rest, tell);
                }
            }
        }
        self.write_inward(number, tell)
    }

    /// The engine has connected.
    pub fn opened(&mut self) {
        if let StreamPhase::Asked(via) = self.phase {
            self.say(match via {
                Via::Connect => b"HTTP/1.1 200 Connection established\r\n\r\n",
                Via::Socks => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
                Via::Name | Via::Http => &[],
            });
            self.phase = StreamPhase::Open;
        }
    }

    /// The engine has not. Returns whether the program is told so in its protocol, and otherwise sees a reset.
    pub fn refused(&mut self, kind: RefusalKind, reason: &str) -> bool {
        let StreamPhase::Asked(via) = self.phase else {
            return false;
        };
        match via {
            Via::Name => return false,
            Via::Connect | Via::Http => self.say(http_refusal(kind, reason).as_bytes()),
            Via::Socks => self.say(&[5, socks_code(kind), 0, 1, 0, 0, 0, 0, 0, 0]),
        }
        self.closing = true;
        true
    }

    /// Words of the helper's own. They come before any of the engine's.
    fn say(&mut self, words: &[u8]) {
        self.inward.extend(words);
        self.own += words.len();
    }

    /// Bytes for the program. False where they are more than was allowed.
    pub fn push(&mut self, data: &[u8]) -> bool {
        let waiting = self.inward.len() - self.own + data.len();
        if self.inward_ends || waiting > STREAM_WINDOW_BYTES as usize {
            return false;
        }
        self.inward.extend(data);
        true
    }

    /// No more bytes for the program.
    pub fn end_inward(&mut self) {
        self.inward_ends = true;
    }

    /// More may be sent to the engine. False where that is more than there ever was.
    pub fn grant_credit(&mut self, amount: u32) -> bool {
        let sum = self.credit.checked_add(amount).filter(|sum| *sum <= STREAM_WINDOW_BYTES);
        self.credit = sum.unwrap_or(self.credit);
        sum.is_some()
    }

    fn write_inward(&mut self, number: u32, tell: Outbox<'_>) -> io::Result<()> {
        while !self.inward.is_empty() {
            match self.socket.write(self.inward.as_slices().0) {
                Ok(count) => {
                    self.inward.drain(..count);
                    let own = count.min(self.own);
                    self.own -= own;
                    self.owed = self.owed.saturating_add((count - own) as u32);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.owed >= STREAM_WINDOW_BYTES / 4 && !self.inward_ends {
            tell(&FromHelper::Credit(number, std::mem::take(&mut self.owed)));
        }
        if self.inward.is_empty() && self.inward_ends && !self.inward_over {
            self.inward_over = true;
            // A socket that is gone already needs no end.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }
}

/// Nothing: not now.
fn read_some(socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match socket.read(buffer) {
        Ok(count) => Ok(Some(count)),
        Err(error) if is_for_later(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn http_refusal(kind: RefusalKind, reason: &str) -> String {
    let status = match kind {
        RefusalKind::Denied => "403 Forbidden",
        RefusalKind::Unreachable => "502 Bad Gateway",
        RefusalKind::Busy => "503 Service Unavailable",
    };
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\n\r\nstockade: {reason}\n",
        "stockade: \n".len() + reason.len()
    )
}

fn socks_code(kind: RefusalKind) -> u8 {
    match kind {
        RefusalKind::Denied => 2,
        RefusalKind::Unreachable => 4,
        RefusalKind::Busy => 1,
    }
}
