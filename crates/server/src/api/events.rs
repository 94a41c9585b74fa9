//! The output and the end of an execution as server-sent events. Each has a number; a client that comes back
//! names the last one that it got, or the next one that it wants, and reads on from there. A client that
//! reads slowly slows no program and costs no memory: what leaves the bounded history meanwhile is a `gap`.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stockade_core::{ErrorCode, StreamId};
use stockade_engine::{OutputEvent, Subscription};

use super::answer::ApiAnswer;
use super::failure::ApiFailure;
use super::named::NamedExecution;
use super::query::ApiQuery;

const LAST_EVENT_HEADER: &str = "last-event-id";
/// How often a comment is sent while nothing happens, so that a connection that is gone is noticed.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Where to begin.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EventsQuery {
    /// The first number that is wanted.
    from: Option<u64>,
}

/// One event as it is sent.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct SentEvent {
    id: u64,
    #[serde(rename = "event")]
    pub(super) kind: &'static str,
    pub(super) data: Value,
}

/// One event that the client has not got, with its number. Of a gap only the part that is one for this client.
#[derive(Debug)]
pub(super) struct NumberedEvent {
    id: u64,
    pub(super) event: OutputEvent,
}

/// One reader and where it is.
#[derive(Debug)]
pub(super) struct EventReader {
    subscription: Subscription,
    position: EventPosition,
}

/// What a reader has got, and where the history is.
#[derive(Debug)]
struct EventPosition {
    /// The first number that the client has not got.
    wanted: u64,
    /// The number behind what was read of the history.
    read: u64,
}

/// `GET /v1/executions/{id}/events`
pub(crate) async fn stream_events(
    NamedExecution(held): NamedExecution,
    ApiQuery(query): ApiQuery<EventsQuery>,
    headers: HeaderMap,
) -> ApiAnswer {
    let reader = EventReader::new(held.watcher.subscribe(), find_wanted(&headers, &query)?);
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?.encode();
        let sent = Event::default().id(event.id.to_string()).event(event.kind);
        Some((Ok::<_, Infallible>(sent.data(event.data.to_string())), reader))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response())
}

/// The first number that is wanted: what the query says, else the one after the last that was got.
pub(super) fn find_wanted(headers: &HeaderMap, query: &EventsQuery) -> Result<u64, ApiFailure> {
    let last = headers.get(LAST_EVENT_HEADER).map(parse_last_event).transpose()?;
    Ok(query.from.or(last.map(|last| last.saturating_add(1))).unwrap_or(0))
}

fn parse_last_event(value: &HeaderValue) -> Result<u64, ApiFailure> {
    let last: Option<u64> = value.to_str().ok().and_then(|last| last.trim().parse().ok());
    last.ok_or_else(|| {
        let message = "`Last-Event-ID` is not the number of an event";
        ApiFailure::new(ErrorCode::Invalid, message)
    })
}

impl EventReader {
    /// A reader that wants events from this number on.
    pub(super) fn new(subscription: Subscription, wanted: u64) -> Self {
        Self { subscription, position: EventPosition { wanted, read: 0 } }
    }

    /// The next event, waiting for it; nothing after the end. Safe to drop half-way.
    pub(super) async fn next(&mut self) -> Option<NumberedEvent> {
        loop {
            let event = self.subscription.next().await?;
            if let Some(wanted) = self.position.take(event) {
                return Some(wanted);
            }
        }
    }
}

impl NumberedEvent {
    /// As it is sent.
    pub(super) fn encode(self) -> SentEvent {
        let id = self.id;
        match self.event {
            OutputEvent::Gap { events, .. } => {
                SentEvent { id, kind: "gap", data: json!({ "missed": events }) }
            }
            OutputEvent::Output { stream, data, .. } => output_event(id, stream, &data),
            OutputEvent::End(outcome) => {
                let data = serde_json::to_value(outcome).unwrap_or_default();
                SentEvent { id, kind: "exit", data }
            }
        }
    }
}

impl EventPosition {
    /// Takes one event of the history in; what the client has not got yet comes out.
    fn take(&mut self, event: OutputEvent) -> Option<NumberedEvent> {
        match event {
            OutputEvent::Gap { events, bytes } => {
                self.read += events;
                let missed = self.read.saturating_sub(self.wanted);
                self.wanted = self.wanted.max(self.read);
                // By its number the client goes on behind the gap.
                let id = self.read.saturating_sub(1);
                let event = OutputEvent::Gap { events: missed, bytes };
                (missed > 0).then_some(NumberedEvent { id, event })
            }
            OutputEvent::Output { seq, .. } => {
                self.read = seq + 1;
                let known = seq < self.wanted;
                self.wanted = self.wanted.max(self.read);
                (!known).then_some(NumberedEvent { id: seq, event })
            }
            OutputEvent::End(_) => Some(NumberedEvent { id: self.read, event }),
        }
    }
}

pub(super) fn output_event(id: u64, stream: StreamId, data: &Bytes) -> SentEvent {
    let kind = match stream {
        StreamId::Stdout => "stdout",
        StreamId::Stderr => "stderr",
    };
    let data = match std::str::from_utf8(data) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "base64": BASE64_STANDARD.encode(data) }),
    };
    SentEvent { id, kind, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(seq: u64) -> OutputEvent {
        OutputEvent::Output { seq, stream: StreamId::Stdout, data: Bytes::from_static(b"x") }
    }

    fn sent(
        wanted: u64,
        events: impl IntoIterator<Item = OutputEvent>,
    ) -> Vec<(u64, &'static str)> {
        let mut position = EventPosition { wanted, read: 0 };
        let sent = events.into_iter().filter_map(|event| position.take(event));
        sent.map(|sent| sent.encode()).map(|sent| (sent.id, sent.kind)).collect()
    }

    #[test]
    fn a_client_that_comes_back_gets_what_it_has_not_got() {
        assert_eq!(sent(0, (0..3).map(output)), [(0, "stdout"), (1, "stdout"), (2, "stdout")]);
        assert_eq!(sent(2, (0..3).map(output)), [(2, "stdout")]);
        assert!(sent(9, (0..3).map(output)).is_empty());
    }

    #[test]
    fn a_gap_is_told_only_as_far_as_it_is_one_for_this_client() {
        let events = || [OutputEvent::Gap { events: 5, bytes: 9 }, output(5)];
        assert_eq!(sent(0, events()), [(4, "gap"), (5, "stdout")]);
        assert_eq!(sent(5, events()), [(5, "stdout")]);
        let mut position = EventPosition { wanted: 3, read: 0 };
        let [gap, _] = events();
        assert_eq!(position.take(gap).unwrap().encode().data, json!({ "missed": 2 }));
    }

    #[test]
    fn bytes_that_are_no_text_stay_what_they_are() {
        let event = output_event(0, StreamId::Stderr, &Bytes::from_static(b"\xff\x00"));
        assert_eq!((event.kind, event.data), ("stderr", json!({ "base64": "/wA=" })));
    }

    #[test]
    fn where_to_begin_is_a_number() {
        let headers = |last: &str| {
            let name = http::HeaderName::from_static(LAST_EVENT_HEADER);
            HeaderMap::from_iter([(name, last.parse().unwrap())])
        };
        let from = |from| EventsQuery { from };
        assert_eq!(find_wanted(&headers("4"), &from(None)).unwrap(), 5);
        assert_eq!(find_wanted(&headers("4"), &from(Some(2))).unwrap(), 2);
        assert_eq!(find_wanted(&HeaderMap::new(), &from(None)).unwrap(), 0);
        assert_eq!(find_wanted(&headers(&u64::MAX.to_string()), &from(None)).unwrap(), u64::MAX);
        for wrong in ["-1", "x", "", "18446744073709551616"] {
            assert!(find_wanted(&headers(wrong), &from(None)).is_err(), "{wrong}");
            assert!(find_wanted(&headers(wrong), &from(Some(2))).is_err(), "{wrong}");
        }
    }
}
