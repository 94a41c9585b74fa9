//! Method calls over D-Bus to one peer, without a bus in between: what asking a service manager for a scope needs,
//! and no more. The peer's messages are bounded, and no call outlives its deadline.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use stockade_core::clean_foreign;

/// The longest message of the peer that is read.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// The longest line of its answer to the authentication.
const MAX_AUTH_LINE_BYTES: usize = 256;

/// Bytes at the beginning of each message whose meaning depends on no other.
const FIXED_HEADER_BYTES: usize = 16;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Header fields, by their codes.
const PATH_FIELD: u8 = 1;
const INTERFACE_FIELD: u8 = 2;
const MEMBER_FIELD: u8 = 3;
const REPLY_SERIAL_FIELD: u8 = 5;
const DESTINATION_FIELD: u8 = 6;
const SIGNATURE_FIELD: u8 = 8;

const BYTE_ORDER: u8 = if cfg!(target_endian = "little") { b'l' } else { b'B' };

/// A method of a peer's object.
pub(super) struct Method {
    pub destination: &'static str,
    pub path: &'static str,
    pub interface: &'static str,
    pub member: &'static str,
    pub signature: &'static str,
}

/// What the peer answered to a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Returned,
    /// In the peer's words, fit to be shown.
    Refused(String),
}

/// A connection whose calls all end by one deadline.
pub(super) struct Connection {
    stream: UnixStream,
    deadline: Instant,
    serial: u32,
}

impl Connection {
    /// Connects to a program of this user and authenticates by the user id that the kernel tells it.
    pub(super) fn open(socket: &Path, deadline: Instant) -> io::Result<Self> {
        let stream = connect_at_once(socket)?;
        if socket_peercred(&stream)?.uid != rustix::process::geteuid() {
            return Err(io::Error::other("another user's program listens there"));
        }
        Self::authenticate(stream, deadline)
    }

    fn authenticate(stream: UnixStream, deadline: Instant) -> io::Result<Self> {
        let mut connection = Self { stream, deadline, serial: 0 };
        let user = rustix::process::geteuid().as_raw().to_string();
        let user: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        connection.write(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
        let line = connection.read_auth_line()?;
        if !line.starts_with(b"OK ") {
            let line = clean_foreign(&String::from_utf8_lossy(&line));
            return Err(io::Error::other(format!("it refuses this user: {line}")));
        }
        connection.write(b"BEGIN\r\n")?;
        Ok(connection)
    }

    /// Calls a method and waits for its answer. `body` is encoded as the method's signature says.
    pub(super) fn call(&mut self, method: &Method, body: &Encoder) -> io::Result<Reply> {
        self.serial += 1;
        self.write(&encode_call(method, self.serial, &body.0))?;
        loop {
            let message = self.read_message()?;
            if message.reply_serial == Some(self.serial) {
                return message.into_reply();
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.time_left()?))?;
        // Far less than a socket's buffer: a peer that does not read holds up one write at the most.
        self.stream.write_all(bytes).map_err(name_timeout)
    }

    /// Reads until the buffer is full. Each read waits no longer than until the deadline.
    fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(self.time_left()?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(name_timeout(error)),
            }
        }
        Ok(())
    }

    fn time_left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn read_auth_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        // Byte by byte: what follows the line is not part of the authentication.
        while !line.ends_with(b"\r\n") {
            if line.len() >= MAX_AUTH_LINE_BYTES {
                return Err(invalid("a line of the authentication is too long"));
            }
            let mut byte = [0];
            self.read(&mut byte)?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }

    fn read_message(&mut self) -> io::Result<Message> {
        let mut fixed = [0; FIXED_HEADER_BYTES];
        self.read(&mut fixed)?;
        let layout = MessageLayout::parse(&fixed)?;
        let mut rest = vec![0; layout.rest_bytes()];
        self.read(&mut rest)?;
        layout.parse_rest(&rest)
    }
}

/// Fails where too many wait for the peer already: waiting with them would know no deadline.
fn connect_at_once(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connecting = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&connecting, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(connecting);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A peer that is silent is told of as such.
fn name_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a D-Bus message: {what}"))
}

/// The lengths that the first bytes of a message tell.
struct MessageLayout {
    kind: u8,
    fields: usize,
    body: usize,
}

impl MessageLayout {
    fn parse(fixed: &[u8; FIXED_HEADER_BYTES]) -> io::Result<Self> {
        if fixed[0] != BYTE_ORDER || fixed[3] != 1 {
            return Err(invalid("another byte order or version"));
        }
        let number = |at: usize| {
            let bytes = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
            usize::try_from(u32::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (fields, body) = (number(12), number(4));
        if fields > MAX_MESSAGE_BYTES || body > MAX_MESSAGE_BYTES {
            return Err(invalid("it is too long"));
        }
        Ok(Self { kind: fixed[1], fields, body })
    }

    fn rest_bytes(&self) -> usize {
        self.fields.next_multiple_of(8) + self.body
    }

    fn parse_rest(&self, rest: &[u8]) -> io::Result<Message> {
        let (fields, body) = rest.split_at(self.fields.next_multiple_of(8));
        let mut fields = Decoder { bytes: &fields[..self.fields], at: 0 };
        let mut reply_serial = None;
        while !fields.is_at_end() {
            fields.align(8);
            let code = fields.byte()?;
            match (code, fields.variant()?) {
                (REPLY_SERIAL_FIELD, Value::Number(serial)) => reply_serial = Some(serial),
                (_, Value::Number(_) | Value::Other) => {}
            }
        }
        Ok(Message { kind: self.kind, reply_serial, body: body.to_vec() })
    }
}

struct Message {
    kind: u8,
    reply_serial: Option<u32>,
    body: Vec<u8>,
}

impl Message {
    fn into_reply(self) -> io::Result<Reply> {
        match self.kind {
            METHOD_RETURN => Ok(Reply::Returned),
            ERROR => {
                let mut body = Decoder { bytes: &self.body, at: 0 };
                let told = body.string().unwrap_or_else(|_| "it gives no reason".into());
                Ok(Reply::Refused(clean_foreign(&told)))
            }
            _ => Err(invalid("an answer of no known kind")),
        }
    }
}

/// Values in the order and alignment of a message's body.
#[derive(Default)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn number(&mut self, value: u32) -> &mut Self {
        self.align(4);
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn long(&mut self, value: u64) -> &mut Self {
        self.align(8);
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        self.number(length_of(text.as_bytes()));
        self.0.extend(text.as_bytes());
        self.byte(0)
    }

    pub(super) fn signature(&mut self, text: &str) -> &mut Self {
        // Ours alone, and short.
        self.byte(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.byte(0)
    }

    /// An array of values that are aligned to so many bytes.
    pub(super) fn array(&mut self, alignment: usize, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let begin = self.0.len();
        fill(self);
        let length = length_of(&self.0[begin..]);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// A structure of a name and a value of this type.
    pub(super) fn property(&mut self, name: &str, signature: &str) -> &mut Self {
        self.align(8);
        self.string(name).signature(signature)
    }

    fn field(&mut self, code: u8, signature: &str) -> &mut Self {
        self.align(8);
        self.byte(code).signature(signature)
    }
}

fn length_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn encode_call(method: &Method, serial: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Encoder::default();
    message.byte(BYTE_ORDER).byte(METHOD_CALL).byte(0).byte(1);
    message.number(length_of(body)).number(serial);
    message.array(8, |fields| {
        fields.field(PATH_FIELD, "o").string(method.path);
        fields.field(INTERFACE_FIELD, "s").string(method.interface);
        fields.field(MEMBER_FIELD, "s").string(method.member);
        fields.field(DESTINATION_FIELD, "s").string(method.destination);
        fields.field(SIGNATURE_FIELD, "g").signature(method.signature);
    });
    message.align(8);
    message.0.extend(body);
    message.0
}

/// The value of a header field.
enum Value {
    Number(u32),
    /// One that no answer depends on.
    Other,
}

/// Reads what a peer sent; nothing beyond its end.
struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Decoder<'_> {
    fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        self.at = self.at.saturating_add(count);
        taken.ok_or_else(|| invalid("it ends too early"))
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u32> {
        self.align(4);
        let bytes = self.take(4)?;
        Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn string(&mut self) -> io::Result<String> {
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        self.text(length)
    }

    fn text(&mut self, length: usize) -> io::Result<String> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.byte()?;
        Ok(text)
    }

    fn variant(&mut self) -> io::Result<Value> {
        let length = self.byte()?.into();
        match self.text(length)?.as_str() {
            "u" => Ok(Value::Number(self.number()?)),
            "s" | "o" => self.string().map(|_| Value::Other),
            "g" => {
                let length = self.byte()?.into();
                self.text(length).map(|_| Value::Other)
            }
            _ => Err(invalid("a header field of no known type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, JoinHandle};

    use proptest::prelude::*;

    use super::*;

    const PING: Method = Method {
        destination: "org.example",
        path: "/org/example",
        interface: "org.example.Peer",
        member: "Ping",
        signature: "su",
    };

    /// A stream to a peer that plays a part and then listens until the stream is closed.
    fn open_with(
        peer: impl FnOnce(&mut UnixStream) + Send + 'static,
    ) -> (UnixStream, JoinHandle<()>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let play = move || {
            peer(&mut theirs);
            // A client that goes away before it has read everything resets the stream.
            let _ = io::copy(&mut theirs, &mut io::sink());
        };
        (ours, thread::spawn(play))
    }

    /// Reads what the client says until it has authenticated, and lets it in.
    fn let_in(stream: &mut UnixStream) {
        read_until(stream, b"\r\n");
        stream.write_all(b"OK 0123\r\n").unwrap();
        read_until(stream, b"BEGIN\r\n");
    }

    fn read_until(stream: &mut UnixStream, end: &[u8]) {
        let mut all = Vec::new();
        while !all.ends_with(end) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            all.push(byte[0]);
        }
    }

    fn answer(kind: u8, reply_serial: u32, body: &Encoder) -> Vec<u8> {
        let mut message = Encoder::default();
        message.byte(BYTE_ORDER).byte(kind).byte(0).byte(1);
        message.number(length_of(&body.0)).number(7);
        message.array(8, |fields| {
            fields.field(REPLY_SERIAL_FIELD, "u").number(reply_serial);
            fields.field(SIGNATURE_FIELD, "g").signature("s");
        });
        message.align(8);
        message.0.extend(&body.0);
        message.0
    }

    fn ping(stream: UnixStream, timeout: Duration) -> io::Result<Reply> {
        let mut connection = Connection::authenticate(stream, Instant::now() + timeout)?;
        connection.call(&PING, Encoder::default().string("hello").number(7))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_is_told_from_what_else_comes_in_and_a_refusal_in_words() {
        let refused = Reply::Refused("not \u{fffd}[31mnow".into());
        for (kind, expected) in [(METHOD_RETURN, Reply::Returned), (ERROR, refused)] {
            let (stream, peer) = open_with(move |stream| {
                let_in(stream);
                let mut told = Encoder::default();
                told.string("not \x1b[31mnow");
                // Another's answer first.
                stream.write_all(&answer(METHOD_RETURN, 99, &Encoder::default())).unwrap();
                stream.write_all(&answer(kind, 1, &told)).unwrap();
            });
            assert_eq!(ping(stream, LONG).unwrap(), expected);
            peer.join().unwrap();
        }
    }

    #[test]
    fn a_silent_peer_is_given_up_and_one_that_drips_too() {
        let (stream, peer) = open_with(|stream| {
            let_in(stream);
            // A message that never ends, one byte at a time, until the client is gone.
            let long = answer(METHOD_RETURN, 1, Encoder::default().string(&"x".repeat(60_000)));
            for byte in long {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let error = ping(stream, Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        peer.join().unwrap();
    }

    #[test]
    fn a_peer_that_refuses_this_user_or_sends_too_much_is_an_error() {
        let (stream, peer) = open_with(|stream| stream.write_all(b"REJECTED\r\n").unwrap());
        assert!(ping(stream, LONG).unwrap_err().to_string().contains("refuses this user"));
        peer.join().unwrap();
        let (stream, peer) = open_with(|stream| {
            let_in(stream);
            let mut huge = answer(METHOD_RETURN, 1, &Encoder::default());
            huge[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
            stream.write_all(&huge).unwrap();
        });
        assert_eq!(ping(stream, LONG).unwrap_err().kind(), io::ErrorKind::InvalidData);
        peer.join().unwrap();
    }

    #[test]
    fn a_call_is_laid_out_as_the_specification_says() {
        let mut body = Encoder::default();
        body.string("a").array(8, |list| {
            list.property("K", "b").number(1);
        });
        let expected = [
            // The string, its array's length on the next multiple of four, and a structure on one of eight.
            &[1, 0, 0, 0, b'a', 0, 0, 0][..],
            &[16, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, b'K', 0, 1, b'b', 0, 0, 0, 0, 1, 0, 0, 0],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(body.0, expected.concat());
        }
        let call = encode_call(&PING, 3, &body.0);
        assert_eq!(call.len() % 8, 0);
        assert!(call.ends_with(&body.0));
    }

    proptest! {
        #[test]
        fn no_header_of_a_peer_is_read_beyond_its_end(
            kind in any::<u8>(),
            fields in prop::collection::vec(any::<u8>(), 0..64),
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let layout = MessageLayout { kind, fields: fields.len(), body: body.len() };
            let mut rest = fields.clone();
            rest.resize(fields.len().next_multiple_of(8), 0);
            rest.extend(&body);
            let _ = layout.parse_rest(&rest).and_then(Message::into_reply);
        }
    }
}
