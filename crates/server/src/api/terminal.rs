//! An execution's terminal as a WebSocket: binary messages are bytes that the program reads and writes, text messages
//! are JSON about everything else. The program outlives the connection; a client that comes back names the number that
//! it wants next, as for events. A client that does not read slows no program and costs no memory beyond one message.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::{Error as AxumError, Extension};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use stockade_core::{ErrorCode, StreamId, TerminalSize};
use stockade_engine::OutputEvent;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::answer::ApiAnswer;
use super::body::MAX_BODY_BYTES;
use super::caller::{ApiCaller, RouteNeed};
use super::events::{EventReader, EventsQuery, KEEP_ALIVE_INTERVAL, NumberedEvent, find_wanted};
use super::executions::{SentSignal, set_terminal_size, signal_program, write_input};
use super::failure::ApiFailure;
use super::held::HeldExecution;
use super::named::NamedExecution;
use super::query::ApiQuery;
use super::state::Api;
use super::tokens::TokenRight;
use super::upgraded::UpgradeHold;

/// The subprotocol that is spoken. A client that offers others, such as its token, has to offer this one too.
const TERMINAL_SUBPROTOCOL: &str = "stockade.terminal.v1";
/// Memory for what is read of a client at once.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Memory for what a client has not taken: one chunk of output, also as escaped text, and answers to pings.
const MAX_WRITE_BUFFER_BYTES: usize = 2 << 20;
/// Timeout for a whole message of a client. Its answers to pings are messages too.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a client to close its side after the end was told.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a client says beside its input. The data is the body of the path with that name.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "kebab-case", deny_unknown_fields)]
enum TerminalRequest {
    /// The terminal has another size.
    Resize(TerminalSize),
    /// The program gets a signal.
    Signal(SentSignal),
    /// No more input follows.
    End,
}

/// `GET /v1/executions/{id}/terminal`
pub(crate) async fn open_terminal(
    State(api): State<Api>,
    NamedExecution(held): NamedExecution,
    ApiQuery(query): ApiQuery<EventsQuery>,
    Extension(caller): Extension<ApiCaller>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    Extension(hold): Extension<UpgradeHold>,
    headers: HeaderMap,
) -> ApiAnswer {
    // Output is read too: that takes the other right.
    caller.check_need(RouteNeed::Right(TokenRight::Read))?;
    let reader = EventReader::new(held.watcher.subscribe(), find_wanted(&headers, &query)?);
    let upgrade = bound_messages(upgrade.map_err(no_websocket)?).protocols([TERMINAL_SUBPROTOCOL]);
    let terminal = HeldTerminal { api, held };
    Ok(upgrade.on_upgrade(move |socket| hold.run(terminal.serve(socket, reader))))
}

fn no_websocket(rejection: WebSocketUpgradeRejection) -> ApiFailure {
    ApiFailure::new(ErrorCode::Invalid, rejection.body_text())
        .remedy("open this path as a WebSocket, over HTTP/1.1")
}

fn bound_messages(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_frame_size(MAX_BODY_BYTES)
        .max_message_size(MAX_BODY_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
        // Nothing waits for more to be written with it.
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES)
}

/// The execution whose terminal it is.
struct HeldTerminal {
    api: Api,
    held: Arc<HeldExecution>,
}

impl HeldTerminal {
    /// Passes input and output on until the client is gone, or has learnt how the execution ended.
    async fn serve(self, socket: WebSocket, reader: EventReader) {
        let (sink, mut stream) = socket.split();
        // A failure is sent before the next message is read: a client that takes none is not read from either.
        let (told, failures) = mpsc::channel(1);
        let sent = tokio::select! {
            sent = send_output(sink, reader, failures) => sent,
            () = self.take_messages(&mut stream, told) => return,
        };
        if sent.is_ok() {
            // A connection that is closed with something unread is reset, and the end is lost.
            let _ = timeout(CLOSE_TIMEOUT, discard_messages(stream)).await;
        }
    }

    /// Does what a client says until it is gone, or says nothing for too long.
    async fn take_messages(
        &self,
        stream: &mut SplitStream<WebSocket>,
        told: mpsc::Sender<ApiFailure>,
    ) {
        while let Ok(Some(Ok(message))) = timeout(MESSAGE_TIMEOUT, stream.next()).await {
            let Err(failure) = self.take_message(message).await else { continue };
            if told.send(failure).await.is_err() {
                return;
            }
        }
    }

    async fn take_message(&self, message: Message) -> Result<(), ApiFailure> {
        match message {
            Message::Binary(data) => write_input(&self.api, &self.held, data, false).await,
            Message::Text(text) => self.take_request(parse_request(&text)?).await,
            // The library answers them.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => Ok(()),
        }
    }

    async fn take_request(&self, request: TerminalRequest) -> Result<(), ApiFailure> {
        let (api, held) = (&self.api, &self.held);
        match request {
            TerminalRequest::Resize(size) => set_terminal_size(api, held, size).await,
            TerminalRequest::Signal(signal) => signal_program(api, held, &signal).await,
            TerminalRequest::End => write_input(api, held, Bytes::new(), true).await,
        }
    }
}

fn parse_request(text: &str) -> Result<TerminalRequest, ApiFailure> {
    serde_json::from_str(text).map_err(|error| {
        ApiFailure::new(ErrorCode::Invalid, format!("the text is not what it must be: {error}"))
            .remedy("send `resize`, `signal` or `end` as text, and input as binary messages")
    })
}

/// Sends output and what has failed until the end was told. Pings show whether the client is there.
async fn send_output(
    mut sink: SplitSink<WebSocket, Message>,
    mut reader: EventReader,
    mut failures: mpsc::Receiver<ApiFailure>,
) -> Result<(), AxumError> {
    let mut pings = interval_at(Instant::now() + KEEP_ALIVE_INTERVAL, KEEP_ALIVE_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            event = reader.next() => match event {
                Some(event) => encode_event(event),
                None => break,
            },
            Some(failure) = failures.recv() => encode_failure(&failure),
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        sink.send(message).await?;
    }
    let reason = Utf8Bytes::from_static("the execution has ended");
    sink.send(Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason }))).await
}

/// What a terminal shows as bytes; all else as text. A program without a terminal has a second stream.
fn encode_event(event: NumberedEvent) -> Message {
    match event.event {
        OutputEvent::Output { stream: StreamId::Stdout, data, .. } => Message::Binary(data),
        OutputEvent::Output { stream: StreamId::Stderr, .. }
        | OutputEvent::Gap { .. }
        | OutputEvent::End(_) => Message::text(json!(event.encode()).to_string()),
    }
}

fn encode_failure(failure: &ApiFailure) -> Message {
    Message::text(json!({ "event": "error", "data": failure.to_json() }).to_string())
}

async fn discard_messages(mut stream: SplitStream<WebSocket>) {
    while let Some(Ok(_)) = stream.next().await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_strictly() {
        let resize = parse_request(r#"{"event": "resize", "data": {"rows": 2, "cols": 3}}"#);
        let resized =
            matches!(resize.unwrap(), TerminalRequest::Resize(TerminalSize { rows: 2, cols: 3 }));
        assert!(resized);
        let signal = parse_request(r#"{"event": "signal", "data": {"signal": "INT"}}"#);
        assert!(matches!(signal.unwrap(), TerminalRequest::Signal(_)));
        assert!(matches!(parse_request(r#"{"event": "end"}"#).unwrap(), TerminalRequest::End));
        for wrong in [
            "",
            "ls",
            "{}",
            r#"{"event": "resize"}"#,
            r#"{"event": "resize", "data": {"rows": 2, "cols": 65536}}"#,
            r#"{"event": "resize", "data": {"rows": 2, "cols": 3, "x": 1}}"#,
            r#"{"event": "end", "more": 1}"#,
            r#"{"event": "input", "data": "ls"}"#,
        ] {
            let refused = parse_request(wrong).unwrap_err();
            assert_eq!(refused.to_json()["code"], "invalid", "{wrong}");
        }
    }
}
