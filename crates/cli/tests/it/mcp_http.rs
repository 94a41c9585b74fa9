//! `stockade mcp --http` byte for byte: what can be read in two ways is refused, pages of this machine may
//! ask, and a peer without the token keeps no client out.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{CliPlace, signal, wait};
use rustix::process::Signal;

const BEARER_TOKEN: &str = "0123456789abcdef";
const INITIALIZE_REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#;
/// Read timeout of a connection that is not served.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

struct McpHttpServer {
    place: CliPlace,
    child: Child,
    address: SocketAddr,
}

impl McpHttpServer {
    fn start() -> Self {
        let place = CliPlace::new();
        let file = place.path("token");
        std::fs::write(&file, BEARER_TOKEN).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let args = ["mcp", "--http", "127.0.0.1:0", "--token-file", file.to_str().unwrap()];
        let (child, line) = common::start(place.command(&args));
        let address = line.trim_start_matches("url   http://").trim_end_matches("/mcp");
        let address = address.parse().unwrap();
        Self { place, child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream
    }

    /// The status of a request with this first line and these headers.
    fn status(&self, line: &str, headers: &[String]) -> u16 {
        let mut stream = self.connect();
        let mut head = format!("{line}\r\n");
        headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
        let length = INITIALIZE_REQUEST.len();
        write!(
            stream,
            "{head}Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{INITIALIZE_REQUEST}"
        )
        .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        std::str::from_utf8(&answer[9..]).unwrap().parse().unwrap()
    }

    fn host(&self) -> String {
        format!("Host: {}", self.address)
    }

    fn end(self) {
        signal(&self.child, Signal::TERM);
        wait(self.child).code_is(143);
        self.place.assert_nothing_is_left();
    }
}

fn key() -> String {
    format!("Authorization: Bearer {BEARER_TOKEN}")
}

#[test]
fn a_request_that_can_be_read_in_two_ways_is_refused() {
    let server = McpHttpServer::start();
    let post = "POST /mcp HTTP/1.1";
    assert_eq!(server.status(post, &[server.host(), key()]), 200);
    for headers in [
        vec![],
        vec![server.host(), server.host()],
        vec![server.host(), "Host: evil.example".to_owned()],
        vec![format!("Host: evil@{}", server.address)],
        vec![server.host(), "Origin: http://localhost".to_owned(), "Origin: null".to_owned()],
    ] {
        let headers = [headers, vec![key()]].concat();
        assert_eq!(server.status(post, &headers), 400, "{headers:?}");
    }
    for at in ["evil.example".to_owned(), server.address.to_string()] {
        let line = format!("POST http://{at}/mcp HTTP/1.1");
        assert_eq!(server.status(&line, &[server.host(), key()]), 400, "{line}");
    }
    server.end();
}

#[test]
fn a_page_of_this_machine_may_ask_with_the_token_and_no_other_page() {
    let server = McpHttpServer::start();
    let post = "POST /mcp HTTP/1.1";
    for origin in
        ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:8080", "https://localhost"]
    {
        let origin = format!("Origin: {origin}");
        assert_eq!(server.status(post, &[server.host(), key(), origin.clone()]), 200, "{origin}");
        assert_eq!(server.status(post, &[server.host(), origin.clone()]), 401, "{origin}");
    }
    for origin in
        ["http://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.evil"]
    {
        let headers = [server.host(), key(), format!("Origin: {origin}")];
        assert_eq!(server.status(post, &headers), 403, "{origin}");
    }
    server.end();
}

/// More connections than there are slots, of which none ever says anything.
#[test]
fn connections_without_the_token_keep_nobody_out() {
    let server = McpHttpServer::start();
    let crowd: Vec<_> = (0..700).map(|_| server.connect()).collect();
    let begun = Instant::now();
    let post = "POST /mcp HTTP/1.1";
    assert_eq!(server.status(post, &[server.host(), key()]), 200);
    // Far below the ten seconds that a silent connection may stay.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // One that only says what is wrong does not stay either.
    let mut stream = server.connect();
    write!(stream, "GET /mcp HTTP/1.1\r\n{}\r\n\r\n", server.host()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    drop(crowd);
    server.end();
}
