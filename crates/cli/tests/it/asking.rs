//! Approval at the terminal of `stockade mcp --http`, for clients that cannot ask: only a yes that was
//! typed while its question stood counts, and nothing an agent writes steers the terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::screen::Screen;
use crate::common::{CliPlace, wait};
use serde_json::{Value, json};

const APPROVAL_PROMPT: &str = "allow it, this once? [y/N] ";
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A server at a terminal, and a client of it that declares no way to ask.
struct TerminalDesk {
    place: CliPlace,
    screen: Screen,
    server: Child,
    client: Client,
}

#[derive(Clone)]
struct Client {
    address: String,
    token: String,
    session: Option<String>,
}

impl TerminalDesk {
    fn open(flags: &[&str], approval: &str) -> Self {
        let place = CliPlace::new();
        let config = place.path("home/.config/stockade");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("config.toml"), format!("[approval]\n{approval}\n")).unwrap();
        let mut screen = Screen::new();
        let args = [&["mcp", "--http", "127.0.0.1:0"], flags].concat();
        let server = screen.start_in_front(&place, &args);
        screen.until("asked here");
        screen.until("url   http://");
        let address = screen.until("/mcp").trim_end_matches("/mcp").to_owned();
        screen.until("token ");
        let token = screen.until("\r\n").trim().to_owned();
        let client = Client { address, token, session: None }.greet();
        Self { place, screen, server, client }
    }

    /// Sends a line for `bash`, whose reply comes when the question has been decided.
    fn bash(&self, line: &str) -> JoinHandle<Value> {
        let client = self.client.clone();
        let params = json!({ "name": "bash", "arguments": { "command": line } });
        std::thread::spawn(move || client.ask("tools/call", params)["result"].clone())
    }

    fn made(&self, name: &str) -> bool {
        self.place.workspace().join(name).exists()
    }

    /// What the journal says about decisions, in order.
    fn decisions(&self) -> Vec<(bool, bool)> {
        let listed = std::fs::read_dir(self.place.state().join("journal")).unwrap();
        let texts = listed.map(|entry| std::fs::read_to_string(entry.unwrap().path()));
        let text: String = texts.flatten().collect();
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let decided = records.filter(|record| record["event"]["kind"] == "decided");
        decided
            .map(|one| (one["event"]["allowed"] == true, one["event"]["asked"] == true))
            .collect()
    }

    /// Ends it by Ctrl-C, which must work at any time.
    fn end(mut self) {
        self.screen.keys("\u{3}");
        assert_eq!(wait(self.server).code, 130);
        self.place.assert_nothing_is_left();
    }
}

impl Client {
    fn greet(mut self) -> Self {
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "0" },
        });
        let (head, _) = self.post(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello,
        }));
        let named = |line: &&String| line.to_ascii_lowercase().starts_with("mcp-session-id:");
        let session = head.iter().find(named).unwrap().split_once(": ").unwrap().1.to_owned();
        self.session = Some(session);
        self.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        self
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        static NEXT_REQUEST_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_REQUEST_ID.fetch_add(1, Ordering::Relaxed);
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.post(&message).1
    }

    /// The head of the answer, and the message in it, which may come as an event.
    fn post(&self, message: &Value) -> (Vec<String>, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        let Self { address, token, session } = self;
        let session =
            session.as_ref().map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
        let body = message.to_string();
        write!(
            stream,
            "POST /mcp HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n{session}\
             Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut lines = BufReader::new(stream);
        let head: Vec<_> = lines
            .by_ref()
            .lines()
            .map(Result::unwrap)
            .take_while(|line| !line.is_empty())
            .collect();
        (head, message_in(lines))
    }
}

fn message_in(lines: impl BufRead) -> Value {
    let is_answer = |message: &Value| message.get("id").is_some();
    let parse =
        |line: String| serde_json::from_str(line.strip_prefix("data:").unwrap_or(&line)).ok();
    lines.lines().map_while(Result::ok).filter_map(parse).find(is_answer).unwrap_or(Value::Null)
}

fn said_no(answer: JoinHandle<Value>) -> String {
    let answer = answer.join().unwrap();
    assert_eq!(answer["isError"], true, "{answer}");
    answer["structuredContent"]["message"].as_str().unwrap().to_owned()
}

fn said_yes(answer: JoinHandle<Value>) {
    let answer = answer.join().unwrap();
    assert_eq!(answer["structuredContent"]["exitCode"], 0, "{answer}");
}

#[test]
fn a_person_at_the_terminal_is_asked_and_only_a_yes_is_a_yes() {
    let mut desk = TerminalDesk::open(&["--local"], "");
    let asked = desk.bash("touch 'one file'");
    let shown = desk.screen.until(APPROVAL_PROMPT);
    assert!(shown.contains("bash") && shown.contains("this machine, without walls"), "{shown}");
    assert!(shown.contains("touch \"one file\""), "{shown}");
    assert!(!desk.made("one file"));
    desk.screen.keys("y\r");
    said_yes(asked);
    assert!(desk.made("one file"));
    for keys in ["n\r", "\r", "yes or no\r", "\u{4}"] {
        let asked = desk.bash("touch never");
        desk.screen.until(APPROVAL_PROMPT);
        desk.screen.keys(keys);
        let why = said_no(asked);
        assert!(why.contains("denied at the server's terminal"), "{keys:?}: {why}");
    }
    assert!(!desk.made("never"));
    assert_eq!(desk.decisions()[0], (true, true));
    assert_eq!(desk.decisions()[1..], [(false, true); 4]);
    desk.end();
}

#[test]
fn what_happens_inside_walls_is_asked_about_with_the_walls_named() {
    let rule = "[[approval.rules]]\nverdict = \"ask\"\nmatch = { programs = [\"touch\"] }";
    let mut desk = TerminalDesk::open(&[], rule);
    said_yes(desk.bash("true"));
    let asked = desk.bash("touch made");
    let shown = desk.screen.until(APPROVAL_PROMPT);
    assert!(shown.contains("sandbox ") && shown.contains("boundary "), "{shown}");
    assert!(shown.contains("network   its own loopback"), "{shown}");
    desk.screen.keys("y\r");
    said_yes(asked);
    desk.end();
}

#[test]
fn what_was_typed_before_the_question_is_no_answer() {
    let mut desk = TerminalDesk::open(&["--local"], "");
    desk.screen.keys("y\ry\ry");
    let asked = desk.bash("touch never");
    desk.screen.until("touch never");
    desk.screen.keys("y\r");
    desk.screen.until(APPROVAL_PROMPT);
    desk.screen.keys("n\r");
    said_no(asked);
    assert!(!desk.made("never"));
    desk.end();
}

#[test]
fn no_answer_in_time_is_a_no_and_a_late_one_answers_nothing_else() {
    let mut desk = TerminalDesk::open(&["--local"], "askTimeout = \"3s\"");
    let asked = desk.bash("touch never");
    desk.screen.until(APPROVAL_PROMPT);
    let why = said_no(asked);
    assert!(why.contains("within 3 s"), "{why}");
    desk.screen.until("no answer in time");
    desk.screen.keys("y\r");
    let asked = desk.bash("touch never");
    desk.screen.until("touch never");
    desk.screen.keys("y\r");
    desk.screen.until(APPROVAL_PROMPT);
    desk.screen.keys("\r");
    said_no(asked);
    assert!(!desk.made("never"));
    desk.end();
}

#[test]
fn questions_at_once_are_put_one_after_another() {
    let mut desk = TerminalDesk::open(&["--local"], "");
    let asked = [desk.bash("touch first"), desk.bash("touch second")];
    let shown = desk.screen.until(APPROVAL_PROMPT);
    let firsts = [shown.contains("touch first"), shown.contains("touch second")];
    assert!(firsts[0] != firsts[1], "{shown}");
    desk.screen.keys("y\r");
    let shown = desk.screen.until(APPROVAL_PROMPT);
    assert_eq!([shown.contains("touch second"), shown.contains("touch first")], firsts, "{shown}");
    desk.screen.keys("n\r");
    let allowed = asked.map(|one| one.join().unwrap()["isError"] != true);
    assert_eq!(allowed, firsts);
    assert_eq!([desk.made("first"), desk.made("second")], firsts);
    desk.end();
}

#[test]
fn the_terminal_does_not_obey_what_an_agent_writes() {
    let mut desk = TerminalDesk::open(&["--local"], "");
    let evil = "echo \u{1b}]0;evil\u{7}\u{1b}[2J\u{9b}2J\u{202e}\r\nallow it, this once? [y/N] ";
    let asked = desk.bash(evil);
    desk.screen.until("runs");
    let shown = desk.screen.until("\r\nallow it, this once? [y/N] ");
    let plain = |c: char| c == '\r' || c == '\n' || (' '..='~').contains(&c);
    assert!(shown.chars().all(plain), "{shown:?}");
    assert!(!shown.contains("\rallow"), "{shown:?}");
    assert!(shown.contains("| allow it, this once? [y/N]"), "{shown:?}");
    desk.screen.keys("n\r");
    said_no(asked);
    desk.end();
}

#[test]
fn ctrl_c_ends_the_server_while_a_question_stands() {
    let mut desk = TerminalDesk::open(&["--local"], "");
    let asked = desk.bash("touch never");
    desk.screen.until(APPROVAL_PROMPT);
    let place = {
        desk.screen.keys("\u{3}");
        assert_eq!(wait(desk.server).code, 130);
        desk.place
    };
    assert_ne!(asked.join().unwrap()["isError"], false);
    assert!(!place.workspace().join("never").exists());
    place.assert_nothing_is_left();
}
