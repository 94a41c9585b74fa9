//! Where each request of a connection begins and ends, read from its bytes. The HTTP library drops a length that
//! contradicts another before a handler can see it; a proxy in front may believe that one, and take a part of one
//! client's request for the beginning of another's. So what has more than one length is refused.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::MAX_HEAD_BYTES;

/// The longest line that says how long a chunk is.
const MAX_CHUNK_LINE_BYTES: usize = 1024;

/// Whether a connection has sent a request that can be read in two ways. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct FramingVerdict(Arc<AtomicBool>);

impl FramingVerdict {
    /// Whether it has.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The reading half of a connection, whose requests are looked at as they are read.
#[derive(Debug)]
pub(crate) struct FramedReader<R> {
    reader: R,
    framing: RequestFraming,
    verdict: FramingVerdict,
}

impl<R> FramedReader<R> {
    /// Looks at what is read.
    pub(crate) fn new(reader: R, verdict: FramingVerdict) -> Self {
        Self { reader, framing: RequestFraming::default(), verdict }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for FramedReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(context, buffer))?;
        self.framing.take(&buffer.filled()[before..]);
        if self.framing.place == FramingPlace::Lost {
            self.verdict.0.store(true, Ordering::Release);
        }
        Poll::Ready(Ok(()))
    }
}

/// Where in a request the next byte is.
#[derive(Debug, Default, PartialEq, Eq)]
enum FramingPlace {
    /// In its head.
    #[default]
    Head,
    /// In a part of its body of which this many bytes are left.
    Body(u64),
    /// In a chunk of which this many bytes are left, with the line's end behind it.
    Chunk(u64),
    /// In the line that says how long the next chunk is.
    ChunkLine,
    /// In the lines behind the last chunk.
    Trailer,
    /// Nowhere that all readers would agree on.
    Lost,
}

/// How long the body behind a head is.
#[derive(Debug, PartialEq, Eq)]
enum BodyLength {
    Known(u64),
    Chunked,
}

/// What was read of a connection's requests.
#[derive(Debug, Default)]
struct RequestFraming {
    place: FramingPlace,
    /// What is kept of the head or the line that is being read.
    text: Vec<u8>,
}

impl RequestFraming {
    fn take(&mut self, mut data: &[u8]) {
        while let Some((first, rest)) = data.split_first() {
            match &mut self.place {
                FramingPlace::Lost => return,
                FramingPlace::Body(left) | FramingPlace::Chunk(left) => {
                    let passed = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= passed as u64;
                    data = &data[passed..];
                    self.leave_body();
                }
                FramingPlace::Head | FramingPlace::ChunkLine | FramingPlace::Trailer => {
                    data = rest;
                    self.text.push(*first);
                    if *first == b'\n' {
                        self.end_line();
                    } else if self.text.len() > MAX_HEAD_BYTES {
                        self.lose();
                    }
                }
            }
        }
    }

    fn lose(&mut self) {
        self.enter(FramingPlace::Lost);
    }

    fn enter(&mut self, place: FramingPlace) {
        self.place = place;
        self.text = Vec::new();
    }

    fn leave_body(&mut self) {
        match self.place {
            FramingPlace::Body(0) => self.enter(FramingPlace::Head),
            FramingPlace::Chunk(0) => self.enter(FramingPlace::ChunkLine),
            FramingPlace::Head
            | FramingPlace::Body(_)
            | FramingPlace::Chunk(_)
            | FramingPlace::ChunkLine
            | FramingPlace::Trailer
            | FramingPlace::Lost => {}
        }
    }

    fn end_line(&mut self) {
        if !self.text.ends_with(b"\r\n") {
            return self.lose();
        }
        match self.place {
            // Empty lines in front of a request are skipped by all.
            FramingPlace::Head if self.text == b"\r\n" => self.text.clear(),
            FramingPlace::Head if self.text.ends_with(b"\r\n\r\n") => self.end_head(),
            FramingPlace::ChunkLine => self.end_chunk_line(),
            FramingPlace::Trailer if self.text == b"\r\n" => self.enter(FramingPlace::Head),
            FramingPlace::Trailer => self.text.clear(),
            FramingPlace::Head
            | FramingPlace::Body(_)
            | FramingPlace::Chunk(_)
            | FramingPlace::Lost => {}
        }
    }

    fn end_head(&mut self) {
        match find_body_length(&self.text) {
            Some(BodyLength::Known(0)) => self.enter(FramingPlace::Head),
            Some(BodyLength::Known(length)) => self.enter(FramingPlace::Body(length)),
            Some(BodyLength::Chunked) => self.enter(FramingPlace::ChunkLine),
            None => self.lose(),
        }
    }

    fn end_chunk_line(&mut self) {
        let line = self.text.trim_ascii_end();
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size).ok().filter(|_| line.len() <= MAX_CHUNK_LINE_BYTES);
        let digits = size.map(str::trim_end).filter(|size| !size.starts_with('+'));
        match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(0) => self.enter(FramingPlace::Trailer),
            Some(size) => self.enter(FramingPlace::Chunk(size.saturating_add(2))),
            None => self.lose(),
        }
    }
}

/// How long the body behind a head is; nothing where the head says it in more than one way, names more than one
/// host, or has a line that continues another.
fn find_body_length(head: &[u8]) -> Option<BodyLength> {
    let (mut lengths, mut codings, mut hosts) = (Vec::new(), Vec::new(), 0);
    let lines = head.split(|byte| *byte == b'\n').skip(1).map(<[u8]>::trim_ascii_end);
    for line in lines.take_while(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || name.iter().any(u8::is_ascii_whitespace) {
            return None;
        }
        match name.to_ascii_lowercase().as_slice() {
            b"content-length" => lengths.push(value),
            b"transfer-encoding" => codings.push(value),
            b"host" => hosts += 1,
            _ => {}
        }
    }
    match (&lengths[..], &codings[..], hosts) {
        ([], [], 0..=1) => Some(BodyLength::Known(0)),
        ([length], [], 0..=1) => parse_length(length).map(BodyLength::Known),
        ([], [coding], 0..=1) if coding.eq_ignore_ascii_case(b"chunked") => {
            Some(BodyLength::Chunked)
        }
        _ => None,
    }
}

fn parse_length(value: &[u8]) -> Option<u64> {
    let digits = value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a reader is after these bytes, however they are cut into pieces.
    fn read(data: &str) -> FramingPlace {
        let mut places = [1, 7, data.len()].map(|size| {
            let mut framing = RequestFraming::default();
            data.as_bytes().chunks(size).for_each(|piece| framing.take(piece));
            assert!(framing.text.len() <= MAX_HEAD_BYTES + 1);
            framing.place
        });
        assert!(places.iter().all(|place| *place == places[0]), "{data}: {places:?}");
        std::mem::take(&mut places[0])
    }

    fn read_head(headers: &str) -> FramingPlace {
        read(&format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n"))
    }

    #[test]
    fn requests_with_one_length_are_followed_to_their_end() {
        assert_eq!(read_head(""), FramingPlace::Head);
        assert_eq!(read_head("Content-Length: 12\r\n"), FramingPlace::Body(12));
        let sized = "PUT / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
        let chunked = "PUT / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nab\n\r\n0\r\nT: 1\r\n\r\n";
        let plain = "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for request in [sized, chunked, plain] {
            assert_eq!(read(&request.repeat(3)), FramingPlace::Head, "{request}");
            let smuggled = format!("{request}GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n");
            assert_eq!(read(&smuggled), FramingPlace::Lost, "{request}");
        }
    }

    #[test]
    fn what_has_two_lengths_or_hosts_is_ambiguous() {
        for headers in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\ncontent-LENGTH: 3\r\n",
            "Content-Length: 3\r\nContent-Length: 3\r\n",
            "Content-Length: 3, 3\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: \r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Content-Length : 3\r\n",
            "X: 1\r\n Content-Length: 3\r\n",
            "X: 1\nContent-Length: 3\r\n",
            "Host: y\r\n",
            "Content-Length\r\n",
        ] {
            assert_eq!(read_head(headers), FramingPlace::Lost, "{headers}");
        }
    }

    #[test]
    fn lines_without_an_end_cost_bounded_memory() {
        assert_eq!(read(&"x".repeat(3 * MAX_HEAD_BYTES)), FramingPlace::Lost);
        let chunk = "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        for line in
            ["-1", "+1", "", "g", &"0".repeat(MAX_CHUNK_LINE_BYTES + 1), "10000000000000000"]
        {
            assert_eq!(read(&format!("{chunk}{line}\r\n")), FramingPlace::Lost, "{line}");
        }
    }
}
