//! The network helper: a worker of the agent that takes the connections which programs inside make, and asks
//! the engine about each. It answers name queries with addresses that it invents, listens at those, and
//! offers an HTTP and a SOCKS5 proxy for programs that use one. It also connects to ports inside for the engine;
//! where no other host is to be reached, that is all it does, and it listens nowhere.
//!
//! It decides nothing, and so it need not be trusted: it runs inside the walls, where no network but loopback
//! is. One thread, one poll loop; everything is bounded.

mod dns;
mod greeting;
mod listeners;
mod names;
mod stream;
mod tcp_queries;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::files::WorkerStreams;
use super::run::set_nonblocking;
use crate::protocol::network::{FromHelper, MAX_STREAMS, RefusalKind, Setup, ToHelper};
use crate::protocol::split_frame;
use dns::{DnsQuestion, MAX_MESSAGE_BYTES, Reply, build_reply, parse_query, refuse_query};
use greeting::ProxyKind;
use listeners::Listeners;
use names::NameTable;
use stream::{HelperStream, StreamState};
use tcp_queries::TcpQueries;

/// While more waits to be sent, no socket is read.
const HIGH_WATER_BYTES: usize = 512 * 1024;
/// How much of the engine's messages is read at once.
const READ_BYTES: usize = 128 * 1024;
/// The most name queries under way.
const MAX_QUERIES: usize = 256;

/// Where a name query came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    Datagram(SocketAddr),
    Connection(u32),
}

/// Something that can happen.
#[derive(Debug, Clone, Copy)]
enum HelperSource {
    Input,
    Output,
    Datagrams,
    QueryListener,
    Query(u32),
    Proxy(ProxyKind),
    Name(usize),
    Stream(u32),
}

/// Everything the helper knows.
struct Helper {
    input: File,
    output: File,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    listeners: Listeners,
    tcp_queries: TcpQueries,
    names: NameTable,
    /// The sandbox's own name, which programs look up as they start: it is its loopback's.
    own_name: String,
    queries: HashMap<u32, (DnsQuestion, Asker)>,
    next_query: u32,
    streams: BTreeMap<u32, HelperStream>,
    /// The next number of a stream that begins here: odd.
    next_stream: u32,
}

/// Runs until the engine ends its input. The first message says where to listen, if at all.
pub fn serve(streams: WorkerStreams) -> io::Result<()> {
    let WorkerStreams { mut input, output } = streams;
    set_nonblocking(&output)?;
    let mut inbox = Vec::new();
    let setup = read_setup(&mut input, &mut inbox)?;
    let mut first = Vec::new();
    let opened = setup.map_or_else(|| Ok(Listeners::default()), |setup| Listeners::open(&setup));
    let listeners = match opened {
        Ok(listeners) => listeners,
        Err((what, error)) => {
            let reason = format!("{what}: {error}");
            encode(&mut first, &FromHelper::Failed(&reason));
            return (&output).write_all(&first);
        }
    };
    encode(&mut first, &FromHelper::Ready);
    // Without a setup no name is ever answered.
    let first_address = setup.map_or(Ipv4Addr::UNSPECIFIED, |setup| setup.first.into());
    let mut helper = Helper {
        input,
        output,
        inbox,
        outbox: first,
        listeners,
        tcp_queries: TcpQueries::default(),
        names: NameTable::starting_at(first_address),
        own_name: read_own_name(),
        queries: HashMap::new(),
        next_query: 1,
        streams: BTreeMap::new(),
        next_stream: 1,
    };
    helper.handle_inbox()?;
    while helper.run_once()? {}
    Ok(())
}

fn read_own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

fn read_setup(input: &mut File, inbox: &mut Vec<u8>) -> io::Result<Option<Setup>> {
    loop {
        if let Some((body, rest)) = split_frame(inbox).map_err(broken)? {
            let ToHelper::Setup(setup) = ToHelper::decode(body).map_err(broken)? else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            *inbox = rest.to_vec();
            return Ok(setup);
        }
        if fill_inbox(input, inbox)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn fill_inbox(input: &mut File, inbox: &mut Vec<u8>) -> io::Result<usize> {
    let start = inbox.len();
    inbox.resize(start + READ_BYTES, 0);
    let read = input.read(&mut inbox[start..]);
    inbox.truncate(start + read.as_ref().map_or(0, |count| *count));
    match read {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => fill_inbox(input, inbox),
        read => read,
    }
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn encode(outbox: &mut Vec<u8>, message: &FromHelper<'_>) {
    let encoded = message.encode(outbox);
    debug_assert!(encoded.is_ok(), "every message here is shorter than a frame");
}

impl Helper {
    /// Waits for something to happen and deals with all of it. False: the engine has ended its input.
    fn run_once(&mut self) -> io::Result<bool> {
        for (source, flags) in self.wait_for_sources()? {
            if !self.serve_source(source, flags)? {
                return Ok(false);
            }
        }
        self.flush().map(|()| true)
    }

    fn wait_for_sources(&self) -> io::Result<Vec<(HelperSource, PollFlags)>> {
        let waits = self.list_sources();
        let mut fds: Vec<_> = waits.iter().map(|(_, fd, flags)| PollFd::new(fd, *flags)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = waits.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|((source, ..), fd)| (*source, fd.revents())).collect())
    }

    fn list_sources(&self) -> Vec<(HelperSource, BorrowedFd<'_>, PollFlags)> {
        let mut waits = vec![(HelperSource::Input, self.input.as_fd(), PollFlags::IN)];
        if !self.outbox.is_empty() {
            waits.push((HelperSource::Output, self.output.as_fd(), PollFlags::OUT));
        }
        let room = self.outbox.len() < HIGH_WATER_BYTES;
        if room && self.queries.len() < MAX_QUERIES {
            let Listeners { datagrams, queries, .. } = &self.listeners;
            let datagrams = datagrams.iter().map(|it| (HelperSource::Datagrams, it.as_fd()));
            let queries = queries.iter().map(|it| (HelperSource::QueryListener, it.as_fd()));
            waits.extend(datagrams.chain(queries).map(|(of, fd)| (of, fd, PollFlags::IN)));
            waits.extend(
                self.tcp_queries
                    .fds()
                    .map(|(number, fd)| (HelperSource::Query(number), fd, PollFlags::IN)),
            );
        }
        if room && self.streams.len() < MAX_STREAMS {
            for (kind, listener) in &self.listeners.proxies {
                waits.push((HelperSource::Proxy(*kind), listener.as_fd(), PollFlags::IN));
            }
            let names = self.listeners.names.iter().enumerate();
            waits.extend(
                names.map(|(at, name)| {
                    (HelperSource::Name(at), name.listener.as_fd(), PollFlags::IN)
                }),
            );
        }
        // A stream that waits for nothing is still watched for the end of its connection.
        waits.extend(self.streams.iter().map(|(number, stream)| {
            (HelperSource::Stream(*number), stream.socket().as_fd(), stream.poll_flags(room))
        }));
        waits
    }

    fn serve_source(&mut self, source: HelperSource, flags: PollFlags) -> io::Result<bool> {
        match source {
            HelperSource::Input => {
                if fill_inbox(&mut self.input, &mut self.inbox)? == 0 {
                    return Ok(false);
                }
                self.handle_inbox()?;
            }
            // Every turn ends by sending.
            HelperSource::Output => {}
            HelperSource::Datagrams => self.receive_datagrams(),
            HelperSource::QueryListener => {
                if let Some(listener) = &self.listeners.queries {
                    self.tcp_queries.accept(listener);
                }
            }
            HelperSource::Query(number) => {
                for message in self.tcp_queries.read(number) {
                    self.start_query(&message, Asker::Connection(number));
                }
            }
            HelperSource::Proxy(kind) => {
                if let Some(socket) = self.listeners.accept_proxy(kind) {
                    let number = self.take_number();
                    self.streams.insert(number, HelperStream::to_proxy(socket, kind));
                }
            }
            HelperSource::Name(at) => self.accept_name(at),
            HelperSource::Stream(number) => self.serve_stream(number, flags),
        }
        Ok(true)
    }

    fn take_number(&mut self) -> u32 {
        let number = self.next_stream;
        self.next_stream += 2;
        number
    }

    fn accept_name(&mut self, at: usize) {
        let Some((socket, name, port)) = self.listeners.accept_name(at) else { return };
        let number = self.take_number();
        let via = crate::protocol::network::Via::Name;
        encode(&mut self.outbox, &FromHelper::Open { stream: number, host: &name, port, via });
        self.streams.insert(number, HelperStream::to_name(socket));
    }

    fn serve_stream(&mut self, number: u32, flags: PollFlags) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let outbox = &mut self.outbox;
        let state = stream.serve(number, flags, &mut |message| encode(outbox, message));
        self.settle_stream(number, state);
    }

    fn settle_stream(&mut self, number: u32, state: StreamState) {
        match state {
            StreamState::Live => {}
            StreamState::Over => drop(self.streams.remove(&number)),
            StreamState::Broken => {
                self.reset_stream(number);
                encode(&mut self.outbox, &FromHelper::Reset(number));
            }
        }
    }

    /// Closes a connection so that the program sees that it broke.
    fn reset_stream(&mut self, number: u32) {
        if let Some(stream) = self.streams.remove(&number) {
            // Without it the program sees an orderly end, which is less than the truth but harmless.
            let linger = Some(std::time::Duration::ZERO);
            let _ = rustix::net::sockopt::set_socket_linger(stream.socket(), linger);
        }
    }

    fn receive_datagrams(&mut self) {
        let mut buffer = [0; MAX_MESSAGE_BYTES];
        while self.queries.len() < MAX_QUERIES
            && let Some(socket) = &self.listeners.datagrams
            && let Ok((length, from)) = socket.recv_from(&mut buffer)
        {
            self.start_query(&buffer[..length], Asker::Datagram(from));
        }
    }

    fn start_query(&mut self, message: &[u8], asker: Asker) {
        let Some(question) = parse_query(message) else {
            if let Some(reply) = refuse_query(message) {
                self.send_answer(asker, &reply);
            }
            return;
        };
        if question.name == self.own_name {
            let own = Reply::Address(Ipv4Addr::LOCALHOST);
            let reply = if question.wants_address { own } else { Reply::Empty };
            return self.send_answer(asker, &build_reply(&question, reply));
        }
        let number = self.next_query;
        self.next_query = self.next_query.wrapping_add(1);
        encode(&mut self.outbox, &FromHelper::Lookup(number, &question.name));
        self.queries.insert(number, (question, asker));
    }

    /// The engine has said at which ports a name may be reached.
    fn answer_query(&mut self, number: u32, ports: &[u16]) {
        let Some((question, asker)) = self.queries.remove(&number) else { return };
        let reply = self.find_reply(&question, ports);
        self.send_answer(asker, &build_reply(&question, reply));
    }

    fn send_answer(&mut self, asker: Asker, message: &[u8]) {
        match asker {
            // A program that does not take its answer asks again.
            Asker::Datagram(to) => {
                if let Some(socket) = &self.listeners.datagrams {
                    let _ = socket.send_to(message, to);
                }
            }
            Asker::Connection(connection) => self.tcp_queries.answer(connection, message),
        }
    }

    fn find_reply(&mut self, question: &DnsQuestion, ports: &[u16]) -> Reply {
        if ports.is_empty() {
            return Reply::NoSuchName;
        }
        if !question.wants_address {
            return Reply::Empty;
        }
        let Some((address, _)) = self.names.assign(&question.name) else {
            return Reply::Failed;
        };
        match self.listeners.listen_for_name(&question.name, address, ports) {
            Ok(()) => Reply::Address(address),
            Err(_) => Reply::Failed,
        }
    }

    fn handle_inbox(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.inbox);
        let mut rest = &bytes[..];
        while let Some((body, after)) = split_frame(rest).map_err(broken)? {
            self.handle_message(ToHelper::decode(body).map_err(broken)?)?;
            rest = after;
        }
        self.inbox = rest.to_vec();
        Ok(())
    }

    fn handle_message(&mut self, message: ToHelper<'_>) -> io::Result<()> {
        match message {
            ToHelper::Setup(_) => return Err(io::ErrorKind::InvalidData.into()),
            ToHelper::Found(query, ports) => self.answer_query(query, &ports),
            ToHelper::Opened(number) => self.change_stream(number, |stream| {
                stream.opened();
                true
            }),
            ToHelper::Refused(number, kind, reason) => self.refuse_stream(number, kind, reason),
            ToHelper::Data(number, data) => self.change_stream(number, |stream| stream.push(data)),
            ToHelper::End(number) => self.change_stream(number, |stream| {
                stream.end_inward();
                true
            }),
            ToHelper::Reset(number) => self.reset_stream(number),
            ToHelper::Credit(number, amount) => {
                self.change_stream(number, |stream| stream.grant_credit(amount));
            }
            ToHelper::Connect(number, port) => self.connect_inward(number, port),
        }
        Ok(())
    }

    /// Changes a stream and passes on what can be. One that the engine misuses is broken.
    fn change_stream(&mut self, number: u32, change: impl FnOnce(&mut HelperStream) -> bool) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        if change(stream) {
            self.serve_stream(number, PollFlags::OUT);
        } else {
            self.settle_stream(number, StreamState::Broken);
        }
    }

    fn refuse_stream(&mut self, number: u32, kind: RefusalKind, reason: &str) {
        let told = self.streams.get_mut(&number).is_some_and(|stream| stream.refused(kind, reason));
        if told {
            self.serve_stream(number, PollFlags::OUT);
        } else {
            self.reset_stream(number);
        }
    }

    /// Connects to a server of the sandbox.
    fn connect_inward(&mut self, number: u32, port: u16) {
        match HelperStream::to_port(port) {
            Ok(stream) if self.streams.len() < MAX_STREAMS => {
                self.streams.insert(number, stream);
            }
            Ok(_) | Err(_) => encode(&mut self.outbox, &FromHelper::Reset(number)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.outbox.len() {
            match self.output.write(&self.outbox[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.outbox.drain(..sent);
        Ok(())
    }
}
