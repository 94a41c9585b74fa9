//! `/v1/executions/{id}/terminal`: a program at a WebSocket, by a client of its own. The program outlives the connection,
//! and a token opens what it may open elsewhere.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tungstenite::handshake::client::Response;
use tungstenite::{ClientRequestBuilder, Error, HandshakeError, Message, WebSocket};

use crate::common::CliPlace;
use crate::common::api::ApiDaemon;
use crate::common::lasting::eventually;
use crate::serve_tenants::issue;

/// Says the size of its terminal after a line of input.
const SIZE_COMMAND: &str = r#"{"run": {"shell": "echo ready; read line; stty size; echo got $line; exit 3"},
    "stdin": "stream", "terminal": {"rows": 24, "cols": 80}}"#;
/// Echoes one line of its input between two of its own.
const ECHO_COMMAND: &str =
    r#"{"run": {"shell": "echo one; read line; echo got $line; exit 3"}, "stdin": "stream"}"#;
const CAT_COMMAND: &str = r#"{"run": {"program": ["cat"]}, "stdin": "stream"}"#;
/// The longest message that is taken.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
const SUBPROTOCOL: &str = "stockade.terminal.v1";

/// What came over a WebSocket.
#[derive(Debug, Default)]
struct HeardTerminal {
    bytes: Vec<u8>,
    /// Text messages.
    events: Vec<Value>,
    is_closed: bool,
}

impl HeardTerminal {
    /// Listens until enough was heard, or the connection ends.
    fn hear(
        socket: &mut WebSocket<impl Read + Write>,
        is_enough: impl Fn(&HeardTerminal) -> bool,
    ) -> Self {
        let mut heard = Self::default();
        while !is_enough(&heard) && !heard.is_closed {
            match socket.read() {
                Ok(Message::Binary(data)) => heard.bytes.extend_from_slice(&data),
                Ok(Message::Text(text)) => heard.events.push(serde_json::from_str(&text).unwrap()),
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Close(_)) | Err(_) => heard.is_closed = true,
            }
        }
        heard
    }

    fn hear_all(socket: &mut WebSocket<impl Read + Write>) -> Self {
        Self::hear(socket, |_| false)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// How the execution ended, as the last message says.
    #[track_caller]
    fn exit(&self) -> &Value {
        let last = self.events.last().unwrap_or_else(|| panic!("{}", self.text()));
        assert_eq!(last["event"], "exit", "{last}");
        &last["data"]
    }
}

fn path_of(job: &str) -> String {
    format!("/v1/executions/{job}/terminal")
}

/// Opens a terminal as the socket's own user.
fn open(daemon: &ApiDaemon, job: &str, query: &str) -> WebSocket<UnixStream> {
    let url = format!("ws://localhost{}{query}", path_of(job));
    let request = ClientRequestBuilder::new(url.parse().unwrap());
    tungstenite::client(request, daemon.connect()).unwrap().0
}

/// A request for a terminal by TCP.
fn ask_by_tcp(daemon: &ApiDaemon, job: &str) -> ClientRequestBuilder {
    let url = format!("ws://{}{}", daemon.tcp.unwrap(), path_of(job));
    ClientRequestBuilder::new(url.parse().unwrap())
}

fn ask_as(daemon: &ApiDaemon, job: &str, token: &str) -> ClientRequestBuilder {
    ask_by_tcp(daemon, job).with_header("Authorization", format!("Bearer {token}"))
}

/// A token as a page offers it.
fn offer(token: &str) -> String {
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(token);
    format!("base64url.bearer.authorization.stockade.{encoded}")
}

/// The status of a request that is refused.
#[track_caller]
fn refused(daemon: &ApiDaemon, request: ClientRequestBuilder) -> u16 {
    match tungstenite::client(request, daemon.connect_tcp()) {
        Err(HandshakeError::Failure(Error::Http(response))) => response.status().as_u16(),
        other => panic!("{:?}", other.map(|_| "it was opened")),
    }
}

/// Starts a command as the holder of a token.
fn start_as(daemon: &ApiDaemon, token: &str, command: &str) -> String {
    let sandbox = daemon.ask_as(token, "POST", "/v1/sandboxes", b"{}").id(201);
    let path = format!("/v1/sandboxes/{sandbox}/executions");
    daemon.ask_as(token, "POST", &path, command.as_bytes()).id(201)
}

#[test]
fn a_terminal_has_input_output_a_size_and_an_end() {
    let daemon = ApiDaemon::start();
    let job = daemon.exec(&daemon.create("{}"), SIZE_COMMAND);
    let mut socket = open(&daemon, &job, "");
    HeardTerminal::hear(&mut socket, |heard| heard.text().contains("ready"));
    let resize = json!({ "event": "resize", "data": { "rows": 40, "cols": 100 } }).to_string();
    socket.send(Message::text(resize)).unwrap();
    socket.send(Message::binary(&b"it\n"[..])).unwrap();
    let heard = HeardTerminal::hear_all(&mut socket);
    let text = heard.text();
    assert!(text.contains("40 100") && text.contains("got it"), "{text}");
    assert_eq!((heard.exit()["exitCode"].clone(), heard.is_closed), (json!(3), true));
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_client_that_comes_back_reads_on_where_it_was() {
    let daemon = ApiDaemon::start();
    let job = daemon.exec(&daemon.create("{}"), ECHO_COMMAND);
    let mut socket = open(&daemon, &job, "");
    let first = HeardTerminal::hear(&mut socket, |heard| !heard.bytes.is_empty());
    assert_eq!(first.text(), "one\n");
    drop(socket);
    // The connection is gone; the program is not.
    let running = daemon.ask("GET", &format!("/v1/executions/{job}"), b"").json();
    assert_eq!(running["state"], "running");
    let mut socket = open(&daemon, &job, "?from=1");
    socket.send(Message::binary(&b"it\n"[..])).unwrap();
    let second = HeardTerminal::hear_all(&mut socket);
    let third = HeardTerminal::hear_all(&mut open(&daemon, &job, "?from=1"));
    for heard in [second, third] {
        assert_eq!((&*heard.text(), &heard.exit()["exitCode"]), ("got it\n", &json!(3)));
        assert_eq!(heard.events[0]["id"], 2);
    }
    daemon.ask("GET", &format!("{}?from=x", path_of(&job)), b"").is_error(400, "invalid");
    daemon.ask("GET", &path_of(&job), b"").is_error(400, "invalid");
}

#[test]
fn what_is_wrong_is_told_and_the_terminal_stays_open() {
    let daemon = ApiDaemon::start();
    let job = daemon.exec(&daemon.create("{}"), CAT_COMMAND);
    let mut socket = open(&daemon, &job, "");
    for wrong in ["ls", "{}", r#"{"event": "signal", "data": {"signal": "NONE"}}"#] {
        socket.send(Message::text(wrong)).unwrap();
        let heard = HeardTerminal::hear(&mut socket, |heard| !heard.events.is_empty());
        assert_eq!(heard.events[0]["event"], "error", "{heard:?}");
        assert_eq!(heard.events[0]["data"]["code"], "invalid", "{heard:?}");
    }
    socket.send(Message::binary(&b"hello"[..])).unwrap();
    HeardTerminal::hear(&mut socket, |heard| heard.text() == "hello");
    socket.send(Message::text(r#"{"event": "end"}"#)).unwrap();
    assert_eq!(HeardTerminal::hear_all(&mut socket).exit()["exitCode"], 0);
}

#[test]
fn a_message_that_is_too_long_ends_the_connection_and_not_the_program() {
    let daemon = ApiDaemon::start();
    let job = daemon.exec(&daemon.create("{}"), CAT_COMMAND);
    let mut socket = open(&daemon, &job, "");
    // The server ends the connection before everything is sent.
    let _ = socket.send(Message::binary(vec![b'x'; MAX_MESSAGE_BYTES + 1]));
    let heard = HeardTerminal::hear_all(&mut socket);
    assert!(heard.bytes.is_empty() && heard.events.is_empty(), "{heard:?}");
    let mut socket = open(&daemon, &job, "");
    socket.send(Message::binary(vec![b'y'; MAX_MESSAGE_BYTES / 2])).unwrap();
    socket.send(Message::text(r#"{"event": "end"}"#)).unwrap();
    let heard = HeardTerminal::hear_all(&mut socket);
    assert_eq!(heard.exit()["exitCode"], 0);
    assert!(heard.bytes.iter().all(|byte| *byte == b'y'));
}

#[test]
fn a_client_that_does_not_read_holds_no_program_up() {
    let daemon = ApiDaemon::start();
    let flood = r#"{"run": {"program": ["head", "-c", "8388608", "/dev/zero"]}}"#;
    let job = daemon.exec(&daemon.create("{}"), flood);
    let _unread = open(&daemon, &job, "");
    eventually("the program ends", || {
        let view = daemon.ask("GET", &format!("/v1/executions/{job}"), b"").json();
        view["state"] == "ended"
    });
    let heard = HeardTerminal::hear_all(&mut open(&daemon, &job, ""));
    assert_eq!(heard.events[0]["event"], "gap", "{:?}", heard.events);
    assert_eq!(heard.exit()["exitCode"], 0);
    assert!(heard.bytes.len() <= 1 << 20, "{}", heard.bytes.len());
}

#[test]
fn a_token_opens_a_terminal_as_header_and_as_subprotocol() {
    let place = CliPlace::new();
    let token = issue(&place, &["a", "--tenant", "team"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let job = start_as(&daemon, &token, ECHO_COMMAND);
    let page = |token: &str| {
        let request = ask_by_tcp(&daemon, &job).with_sub_protocol(SUBPROTOCOL);
        request.with_sub_protocol(offer(token)).with_header("Origin", "http://localhost:3000")
    };
    let chosen = |response: &Response| response.headers()["sec-websocket-protocol"].clone();
    for request in [ask_as(&daemon, &job, &token).with_sub_protocol(SUBPROTOCOL), page(&token)] {
        let (mut socket, response) = tungstenite::client(request, daemon.connect_tcp()).unwrap();
        // What carries the token is not sent back.
        assert_eq!(chosen(&response), SUBPROTOCOL);
        let heard = HeardTerminal::hear(&mut socket, |heard| !heard.bytes.is_empty());
        assert_eq!(heard.text(), "one\n");
    }
    assert_eq!(refused(&daemon, page("stockade_none")), 401);
    assert_eq!(refused(&daemon, page(&token).with_sub_protocol(offer(&token))), 401);
    let twice = page(&token).with_header("Authorization", format!("Bearer {token}"));
    assert_eq!(refused(&daemon, twice), 401);
    assert_eq!(refused(&daemon, ask_by_tcp(&daemon, &job).with_sub_protocol(SUBPROTOCOL)), 401);
}

#[test]
fn a_terminal_is_as_closed_to_others_as_every_path() {
    let place = CliPlace::new();
    let token = issue(&place, &["a", "--tenant", "team"]);
    let other = issue(&place, &["other"]);
    let [runs, reads] =
        ["run", "read"].map(|right| issue(&place, &[right, "--tenant", "team", "--rights", right]));
    let daemon = ApiDaemon::start_on_tcp(place);
    let job = start_as(&daemon, &token, ECHO_COMMAND);
    assert_eq!(refused(&daemon, ask_by_tcp(&daemon, &job)), 401);
    assert_eq!(refused(&daemon, ask_as(&daemon, &job, &other)), 404);
    for half in [runs, reads] {
        assert_eq!(refused(&daemon, ask_as(&daemon, &job, &half)), 403);
    }
    for origin in ["http://evil.example", "null"] {
        let page = ask_as(&daemon, &job, &token).with_header("Origin", origin);
        assert_eq!(refused(&daemon, page), 403, "{origin}");
    }
}

#[test]
fn a_revoked_token_closes_its_terminals_and_no_others() {
    let place = CliPlace::new();
    let revoked = issue(&place, &["old", "--tenant", "team"]);
    let kept = issue(&place, &["new", "--tenant", "team"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let job = start_as(&daemon, &revoked, ECHO_COMMAND);
    let [mut cut, mut whole] = [&revoked, &kept].map(|token| {
        let request = ask_as(&daemon, &job, token);
        let mut socket = tungstenite::client(request, daemon.connect_tcp()).unwrap().0;
        HeardTerminal::hear(&mut socket, |heard| !heard.bytes.is_empty());
        socket
    });
    daemon.place.stockade(&["token", "revoke", "old"]).code_is(0);
    let rest = HeardTerminal::hear_all(&mut cut);
    assert!(rest.bytes.is_empty() && rest.events.is_empty(), "{rest:?}");
    whole.send(Message::binary(&b"it\n"[..])).unwrap();
    let rest = HeardTerminal::hear_all(&mut whole);
    assert_eq!((&*rest.text(), &rest.exit()["exitCode"]), ("got it\n", &json!(3)));
}

#[test]
fn open_terminals_are_requests_of_their_tenant() {
    let place = CliPlace::new();
    let greedy = issue(&place, &["greedy"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let job = start_as(&daemon, &greedy, ECHO_COMMAND);
    let mut opened = Vec::new();
    let beyond = loop {
        let request = ask_as(&daemon, &job, &greedy);
        match tungstenite::client(request, daemon.connect_tcp()) {
            Ok((socket, _)) => opened.push(socket),
            Err(HandshakeError::Failure(Error::Http(response))) => break response,
            Err(other) => panic!("{other:?}"),
        }
        assert!(opened.len() <= 64, "there is no bound");
    };
    assert_eq!((beyond.status().as_u16(), opened.len()), (429, 64));
    // The room of those that are gone is there again.
    drop(opened);
    eventually("a request is answered", || {
        daemon.ask_as(&greedy, "GET", "/v1/sandboxes", b"").status == 200
    });
}

#[test]
fn when_the_daemon_ends_a_terminal_is_told_how() {
    let daemon = ApiDaemon::start();
    let job = daemon.exec(&daemon.create("{}"), SIZE_COMMAND);
    let mut socket = open(&daemon, &job, "");
    HeardTerminal::hear(&mut socket, |heard| heard.text().contains("ready"));
    daemon.ask_to_end();
    assert_eq!(HeardTerminal::hear_all(&mut socket).exit()["ending"], "cancelled");
    drop(socket);
    let (place, done) = daemon.wait_for_end();
    done.code_is(0);
    place.assert_nothing_is_left();
}
