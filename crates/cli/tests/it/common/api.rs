//! `stockade serve` as a real process, and a client that is as small as can be: one request for each connection,
//! in HTTP/1.0, so that every answer ends with its connection and none comes in chunks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{CliDone, CliPlace, signal, start, wait};

/// Read timeout of a connection.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon that ends with its test.
pub struct ApiDaemon {
    pub place: CliPlace,
    child: Option<Child>,
    pub socket: PathBuf,
    pub tcp: Option<SocketAddr>,
}

/// An answer.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// One server-sent event.
#[derive(Debug)]
pub struct ApiEvent {
    pub id: String,
    pub kind: String,
    pub data: Value,
}

impl ApiDaemon {
    pub fn start() -> Self {
        Self::start_in(CliPlace::new(), &[])
    }

    /// One that listens on TCP too; the place has a token already.
    pub fn start_on_tcp(place: CliPlace) -> Self {
        Self::start_in(place, &["--listen", "127.0.0.1:0"])
    }

    pub fn start_in(place: CliPlace, flags: &[&str]) -> Self {
        let command = place.command(&[&["serve", "--json"], flags].concat());
        Self::start_command(place, command)
    }

    /// One that this command of the place starts, with `--json`.
    pub fn start_command(place: CliPlace, command: Command) -> Self {
        let (child, line) = start(command);
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let tcp = told["url"].as_str().and_then(|url| url.split_once("://"));
        let tcp = tcp.map(|(_, address)| address.parse().unwrap());
        let socket = told["socket"].as_str().unwrap().into();
        Self { place, child: Some(child), socket, tcp }
    }

    /// Sends a request as the socket's own user.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> HttpReply {
        self.ask_with(method, path, &[], body)
    }

    pub fn ask_with(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> HttpReply {
        let headers = [&["Host: localhost"], headers].concat();
        exchange(self.connect(), method, path, &headers, body)
    }

    /// Reads something as the socket's own user, with this `Host`.
    pub fn ask_by_name(&self, host: &str, path: &str) -> HttpReply {
        exchange(self.connect(), "GET", path, &[&format!("Host: {host}")], b"")
    }

    /// Sends a request as the holder of a token.
    pub fn ask_as(&self, token: &str, method: &str, path: &str, body: &[u8]) -> HttpReply {
        let (host, token) = (self.host(), format!("Authorization: Bearer {token}"));
        exchange(self.connect_tcp(), method, path, &[&host, &token], body)
    }

    /// Sends a request by TCP with just these headers.
    pub fn ask_tcp(&self, method: &str, path: &str, headers: &[&str]) -> HttpReply {
        exchange(self.connect_tcp(), method, path, headers, b"")
    }

    pub fn host(&self) -> String {
        format!("Host: {}", self.tcp.unwrap())
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream
    }

    pub fn connect_tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.tcp.unwrap()).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream
    }

    /// A sandbox; its id.
    pub fn create(&self, spec: &str) -> String {
        let made = self.ask("POST", "/v1/sandboxes", format!("{{\"spec\": {spec}}}").as_bytes());
        made.id(201)
    }

    /// A command in it; the execution's id.
    pub fn exec(&self, sandbox: &str, command: &str) -> String {
        let path = format!("/v1/sandboxes/{sandbox}/executions");
        self.ask("POST", &path, command.as_bytes()).id(201)
    }

    /// The events of an execution, as they come.
    pub fn events(&self, job: &str, headers: &[&str]) -> impl Iterator<Item = ApiEvent> + use<> {
        let mut stream = self.connect();
        let headers = headers.iter().map(|header| format!("{header}\r\n")).collect::<String>();
        write!(stream, "GET /v1/executions/{job}/events HTTP/1.0\r\nHost: x\r\n{headers}\r\n")
            .unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        let status = lines.next().unwrap();
        assert!(status.contains(" 200 "), "{status}");
        // The head ends with an empty line; so does each event.
        let mut lines = lines.skip_while(|line| !line.is_empty()).skip(1);
        std::iter::from_fn(move || read_event(&mut lines))
    }

    /// Asks the daemon to end, and waits for that.
    pub fn end(self) -> (CliPlace, CliDone) {
        self.ask_to_end();
        self.wait_for_end()
    }

    /// Waits for the end of a daemon that was asked to end.
    pub fn wait_for_end(mut self) -> (CliPlace, CliDone) {
        let done = wait(self.child.take().unwrap());
        (std::mem::replace(&mut self.place, CliPlace::new()), done)
    }

    /// Kills the daemon.
    pub fn kill(mut self) -> CliPlace {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        std::mem::replace(&mut self.place, CliPlace::new())
    }

    /// Asks the daemon to end, and does not wait.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    pub fn signal(&self, sent: Signal) {
        signal(self.child.as_ref().unwrap(), sent);
    }
}

impl Drop for ApiDaemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_event(lines: &mut impl Iterator<Item = String>) -> Option<ApiEvent> {
    let mut event = ApiEvent { id: String::new(), kind: String::new(), data: Value::Null };
    for line in lines {
        match line.split_once(": ") {
            Some(("id", id)) => event.id = id.to_owned(),
            Some(("event", kind)) => event.kind = kind.to_owned(),
            Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
            Some(_) => {}
            None if line.is_empty() && !event.kind.is_empty() => return Some(event),
            None => {}
        }
    }
    None
}

pub fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> HttpReply {
    let headers = headers.iter().map(|header| format!("{header}\r\n")).collect::<String>();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\n{headers}Content-Length: {length}\r\n\r\n")
        .unwrap();
    // A server that refuses need not read the body.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    HttpReply::parse(&answer)
}

impl HttpReply {
    fn parse(answer: &[u8]) -> Self {
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(answer)));
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: answer[end + 4..].to_vec() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The id of what was made or found.
    #[track_caller]
    pub fn id(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()["id"].as_str().unwrap().to_owned()
    }

    /// Fails unless this is the error, in the one shape.
    #[track_caller]
    pub fn is_error(&self, status: u16, code: &str) {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        let error = &self.json()["error"];
        assert_eq!(error["code"], code, "{text}");
        assert!(error["message"].is_string() && error.get("remedy").is_some(), "{text}");
    }
}
