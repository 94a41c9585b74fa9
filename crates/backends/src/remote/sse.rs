//! Server-sent events of a daemon, within bounds of size and silence.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::client::DaemonConnection;

/// Bytes of one event: room for one piece of output (256 KiB) with each byte of it escaped, and less than what a
/// terminal holds for a client, to which it may go on.
const MAX_EVENT_BYTES: usize = 7 << 18;
/// The longest silence. A daemon sends a comment at least every ten seconds.
const MAX_SILENCE: Duration = Duration::from_secs(45);

/// Why no more events come.
#[derive(Debug, thiserror::Error)]
pub(super) enum SseFault {
    #[error("the daemon was silent for {} s", MAX_SILENCE.as_secs())]
    Silent,
    #[error("the connection to the daemon was lost")]
    Broken(#[source] hyper::Error),
    #[error("the daemon sent an event of more than {MAX_EVENT_BYTES} bytes")]
    TooLong,
    #[error("the daemon sent something that is no event of this version")]
    NotAnEvent,
    #[error("the daemon ended the stream early")]
    Ended,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SseEvent {
    pub kind: String,
    data: String,
}

impl SseEvent {
    /// What it says.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, SseFault> {
        serde_json::from_str(&self.data).map_err(|_| SseFault::NotAnEvent)
    }
}

/// A stream of events. The connection is closed when this is dropped.
pub(super) struct SseReader {
    body: Incoming,
    text: SseBuffer,
    _connection: DaemonConnection,
}

/// What has come of a stream and was not taken yet.
#[derive(Debug, Default)]
struct SseBuffer {
    bytes: BytesMut,
    /// Bytes in which no event ends.
    searched: usize,
}

impl SseReader {
    pub(super) fn new(body: Incoming, connection: DaemonConnection) -> Self {
        Self { body, text: SseBuffer::default(), _connection: connection }
    }

    /// The next event. Safe to drop half-way.
    pub(super) async fn next(&mut self) -> Result<SseEvent, SseFault> {
        loop {
            if let Some(event) = self.text.take_event()? {
                return Ok(event);
            }
            let frame = tokio::time::timeout(MAX_SILENCE, self.body.frame()).await;
            match frame.map_err(|_| SseFault::Silent)? {
                None => return Err(SseFault::Ended),
                Some(Err(error)) => return Err(SseFault::Broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.text.push(&data);
                    }
                }
            }
        }
    }
}

impl SseBuffer {
    fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// The first whole event; comments are left out.
    fn take_event(&mut self) -> Result<Option<SseEvent>, SseFault> {
        loop {
            let from = self.searched.saturating_sub(1);
            let found = self.bytes[from..].windows(2).position(|two| two == b"\n\n");
            let Some(at) = found else {
                self.searched = self.bytes.len();
                let is_too_long = self.bytes.len() > MAX_EVENT_BYTES;
                return if is_too_long { Err(SseFault::TooLong) } else { Ok(None) };
            };
            if from + at > MAX_EVENT_BYTES {
                return Err(SseFault::TooLong);
            }
            let block = self.bytes.split_to(from + at);
            self.bytes.advance(2);
            self.searched = 0;
            if let Some(event) = parse_event(&block)? {
                return Ok(Some(event));
            }
        }
    }
}

fn parse_event(block: &[u8]) -> Result<Option<SseEvent>, SseFault> {
    let text = std::str::from_utf8(block).map_err(|_| SseFault::NotAnEvent)?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    match (field("event: "), field("data: ")) {
        (Some(kind), Some(data)) => Ok(Some(SseEvent { kind: kind.into(), data: data.into() })),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err(SseFault::NotAnEvent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let text =
            b":\n\nid: 0\nevent: stdout\ndata: {\"text\":\"a\"}\n\n:\n\nevent: exit\ndata: {}\n\n";
        for piece in 1..text.len() {
            let (mut buffer, mut kinds) = (SseBuffer::default(), Vec::new());
            for part in text.chunks(piece) {
                buffer.push(part);
                while let Some(event) = buffer.take_event().unwrap() {
                    kinds.push((event.kind, event.data));
                }
            }
            let expected = [("stdout", "{\"text\":\"a\"}"), ("exit", "{}")];
            assert_eq!(kinds, expected.map(|(kind, data)| (kind.to_owned(), data.to_owned())));
        }
    }

    #[test]
    fn a_flood_without_an_end_and_what_is_no_event_are_refused() {
        let mut buffer = SseBuffer::default();
        let flood = vec![b'x'; MAX_EVENT_BYTES];
        buffer.push(&flood);
        assert!(buffer.take_event().unwrap().is_none());
        buffer.push(b"x");
        assert!(matches!(buffer.take_event(), Err(SseFault::TooLong)));
        buffer.push(b"\n\n");
        assert!(matches!(buffer.take_event(), Err(SseFault::TooLong)));
        for wrong in [&b"event: a\n\n"[..], b"data: {}\n\n", b"\xff\n\n"] {
            let mut buffer = SseBuffer::default();
            buffer.push(wrong);
            assert!(matches!(buffer.take_event(), Err(SseFault::NotAnEvent)), "{wrong:?}");
        }
    }
}
