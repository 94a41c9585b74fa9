//! Bytes that two parsers might take for different requests. The server reads what comes to it by the letter of the
//! protocol: whatever a program sends, it gets requests for its own host alone, each with an end that is plain.

use proptest::prelude::*;
use stockade_agent::protocol::network::FromHelper;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::helper::{Said, TestHelper, rule_for};

const STREAM: u32 = 1;
/// What a server does with a request that asks for another protocol: it goes on with HTTP.
const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
/// A request for a second host.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: second.test\r\n\r\n";

/// Reads requests strictly: what is not exactly as the protocol has it is a finding.
struct StrictReader {
    stream: TcpStream,
    bytes: Vec<u8>,
    host: String,
}

/// Why reading has ended.
#[derive(Debug, PartialEq, Eq)]
enum ReadStop {
    /// The connection has, also in the middle of a request.
    Ended,
    /// Something has come that must not.
    Finding(String),
}

fn finding<T>(what: impl Into<String>) -> Result<T, ReadStop> {
    Err(ReadStop::Finding(what.into()))
}

impl StrictReader {
    async fn fill(&mut self) -> Result<(), ReadStop> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer).await {
            Ok(0) | Err(_) => Err(ReadStop::Ended),
            Ok(count) => {
                self.bytes.extend_from_slice(&buffer[..count]);
                Ok(())
            }
        }
    }

    async fn take(&mut self, count: usize) -> Result<Vec<u8>, ReadStop> {
        while self.bytes.len() < count {
            self.fill().await?;
        }
        Ok(self.bytes.drain(..count).collect())
    }

    /// A line without its end, which has to be a carriage return and a line feed.
    async fn take_line(&mut self) -> Result<String, ReadStop> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line = self.take(end + 1).await?;
                let Some(line) = line.strip_suffix(b"\r\n") else {
                    return finding("a bare line feed");
                };
                if line.iter().any(|byte| matches!(byte, 0 | b'\r')) {
                    return finding("a control character in a line");
                }
                return Ok(String::from_utf8_lossy(line).into_owned());
            }
            self.fill().await?;
        }
    }

    /// The lines up to the empty one, as names and values.
    async fn take_headers(&mut self) -> Result<Vec<(String, String)>, ReadStop> {
        let mut headers = Vec::new();
        loop {
            let line = self.take_line().await?;
            if line.is_empty() {
                return Ok(headers);
            }
            let Some((name, value)) = line.split_once(':') else { return finding(line) };
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) {
                return finding(format!("{name:?} is no name of a header"));
            }
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next request: its first line, and its body.
    async fn take_request(&mut self) -> Result<String, ReadStop> {
        let line = self.take_line().await?;
        let words: Vec<_> = line.split(' ').collect();
        let [method, path, "HTTP/1.1" | "HTTP/1.0"] = words[..] else { return finding(line) };
        if !(path.starts_with('/') || path == "*") || method == "CONNECT" {
            return finding(format!("{line:?} asks for more than a path"));
        }
        let headers = self.take_headers().await?;
        let all = |name: &str| -> Vec<&str> {
            headers.iter().filter(|(of, _)| of == name).map(|(_, value)| value.as_str()).collect()
        };
        match all("host")[..] {
            [host] if host.eq_ignore_ascii_case(&self.host) || host == "127.0.0.1" => {}
            ref hosts => return finding(format!("the hosts {hosts:?}")),
        }
        if all("connection").iter().any(|it| it.to_ascii_lowercase().contains("host")) {
            return finding("a host that is to be removed");
        }
        let body = match (&all("transfer-encoding")[..], &all("content-length")[..]) {
            ([], []) => Vec::new(),
            ([], [length]) if length.bytes().all(|it| it.is_ascii_digit()) => {
                let length = length.parse().map_err(|_| ReadStop::Finding("a length".into()))?;
                self.take(length).await?
            }
            ([coding], []) if coding.eq_ignore_ascii_case("chunked") => self.take_chunks().await?,
            lengths => return finding(format!("the lengths {lengths:?}")),
        };
        Ok(format!("{method} {path} [{}]", String::from_utf8_lossy(&body)))
    }

    async fn take_chunks(&mut self) -> Result<Vec<u8>, ReadStop> {
        let mut body = Vec::new();
        loop {
            let line = self.take_line().await?;
            let is_number = line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(length) = usize::from_str_radix(&line, 16).ok().filter(|_| is_number) else {
                return finding(format!("a chunk of {line:?}"));
            };
            if length == 0 {
                break;
            }
            body.extend(self.take(length).await?);
            if self.take(2).await? != b"\r\n" {
                return finding("a chunk that goes on");
            }
        }
        let trailers = self.take_headers().await?;
        let is_plain = |(name, _): &(String, String)| {
            !matches!(name.as_str(), "host" | "content-length" | "transfer-encoding" | "connection")
        };
        if trailers.iter().all(is_plain) { Ok(body) } else { finding(format!("{trailers:?}")) }
    }
}

/// Answers requests until the connection ends; answers what they were.
async fn serve_strictly(stream: TcpStream, host: String) -> Result<Vec<String>, String> {
    let mut reader = StrictReader { stream, bytes: Vec::new(), host };
    let mut seen = Vec::new();
    loop {
        match reader.take_request().await {
            Ok(request) => {
                let body = if request.starts_with("HEAD ") { "" } else { "ok" };
                seen.push(request);
                // The relay may have ended the connection meanwhile.
                let _ = reader.stream.write_all(format!("{ANSWER}{body}").as_bytes()).await;
            }
            Err(ReadStop::Ended) => return Ok(seen),
            Err(ReadStop::Finding(what)) => return Err(format!("{what}, after {seen:?}")),
        }
    }
}

/// What the server saw of a stream of bytes, and what the program heard.
struct Relayed {
    seen: Result<Vec<String>, String>,
    heard: String,
}

/// Sends pieces over one connection, in which `HOST` is the server's name; `ends` says whether the program ends its
/// direction behind them. Returns when the connection is over.
async fn relay_pieces(pieces: &[Vec<u8>], ends: bool) -> Relayed {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(STREAM, "127.0.0.1", address.port());
    let (upstream, _) = server.accept().await.unwrap();
    let serving = tokio::spawn(serve_strictly(upstream, address.to_string()));
    helper.hear_until(&Said::Opened(STREAM)).await;
    for piece in pieces {
        helper.say(&FromHelper::Data(STREAM, piece));
    }
    if ends {
        helper.say(&FromHelper::End(STREAM));
    }
    let mut heard = Vec::new();
    loop {
        let said = helper.hear().await.expect("the engine goes on");
        if matches!(said, Said::End(STREAM) | Said::Reset(STREAM)) {
            break;
        }
        if let Said::Data(STREAM, data) = said {
            heard.extend(data);
        }
    }
    // Ends the connection to the server, if it is still open.
    drop(helper);
    let seen = serving.await.unwrap();
    Relayed { seen, heard: String::from_utf8_lossy(&heard).into_owned() }
}

/// The same for a text, behind which a last request is sent that closes the connection.
async fn relay_text(text: &str) -> Relayed {
    let last = "GET /last HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let text = format!("{text}{last}").replace("HOST", "127.0.0.1");
    relay_pieces(&[text.into_bytes()], false).await
}

/// A request with a body and these headers beside its host.
fn post(headers: &str, body: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: HOST\r\n{headers}\r\n\r\n{body}")
}

#[tokio::test]
async fn requests_that_are_plain_pass_one_after_the_other() {
    let chunks = "3\r\none\r\n4;name=value\r\n-two\r\n0\r\nX-Sum: 7\r\n\r\n";
    for (text, seen) in [
        (String::new(), &["GET /last []"][..]),
        (
            "GET http://HOST/x?y HTTP/1.1\r\nHost: HOST\r\n\r\n".into(),
            &["GET /x?y []", "GET /last []"],
        ),
        // Line feeds alone are written anew.
        ("GET /x HTTP/1.1\nHost: HOST\nX: y\n\n".into(), &["GET /x []", "GET /last []"]),
        (post("Content-Length: 5", "hello"), &["POST /a [hello]", "GET /last []"]),
        (
            post("Content-Length: 5\r\nContent-Length: 5", "hello"),
            &["POST /a [hello]", "GET /last []"],
        ),
        (post("Transfer-Encoding: Chunked", chunks), &["POST /a [one-two]", "GET /last []"]),
        // Asks for another protocol, and is answered in this one: what follows is a request like others.
        (
            "GET /ws HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                .into(),
            &["GET /ws []", "GET /last []"],
        ),
    ] {
        let relayed = relay_text(&text).await;
        assert_eq!(
            relayed.seen.as_deref(),
            Ok(&seen.iter().map(ToString::to_string).collect::<Vec<_>>()[..]),
            "{text:?}: {}",
            relayed.heard
        );
        assert_eq!(relayed.heard.matches("HTTP/1.1 200 ").count(), seen.len(), "{text:?}");
    }
}

#[tokio::test]
async fn of_two_lengths_the_chunks_count_and_nothing_follows_them() {
    let length = SMUGGLED.len();
    // Whoever went by the length would take the second request for a body.
    let hidden = format!("0\r\n\r\n{SMUGGLED}");
    // Whoever went by the length would take the rest of the chunk for a request.
    let chunk = format!("{length:x}\r\n{SMUGGLED}\r\n0\r\n\r\n");
    let (coding, whole) = ("Transfer-Encoding: chunked", format!("POST /a [{SMUGGLED}]"));
    for (body, length, seen) in [(&hidden, hidden.len(), "POST /a []"), (&chunk, 4, &whole)] {
        let length = format!("Content-Length: {length}");
        for headers in [format!("{length}\r\n{coding}"), format!("{coding}\r\n{length}")] {
            let relayed = relay_text(&post(&headers, body)).await;
            assert_eq!(relayed.seen, Ok(vec![seen.to_owned()]), "{headers}");
            // The connection is over, so that the rest is no request of it.
            assert_eq!(relayed.heard.matches("HTTP/1.1 ").count(), 1, "{}", relayed.heard);
        }
    }
}

#[tokio::test]
async fn a_request_that_can_be_read_in_two_ways_is_refused() {
    let mut texts = Vec::new();
    for length in [
        "5, 5",
        "+5",
        "-5",
        "0x5",
        "5 5",
        "",
        "5;",
        "99999999999999999999",
        "5\r\nContent-Length: 6",
    ] {
        texts.push(post(&format!("Content-Length: {length}"), "hello"));
    }
    for coding in [
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: \u{b}chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: chunked\r\n , identity",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
    ] {
        let body = format!("0\r\n\r\n{SMUGGLED}");
        texts.push(post(&format!("{coding}\r\nContent-Length: {}", body.len()), &body));
        texts.push(post(coding, &body));
    }
    for chunks in [
        "+5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "fffffffffffffffff\r\n",
        "5\nhello\r\n",
        "5\r\nhelloX\r\n",
        "5;a=\nhello\r\n",
        "\r\n5\r\nhello\r\n",
        "5\rhello\r\n",
        "-1\r\n",
    ] {
        texts.push(post("Transfer-Encoding: chunked", &format!("{chunks}0\r\n\r\n{SMUGGLED}")));
    }
    for head in [
        // Folded lines, and lines that are none.
        "GET / HTTP/1.1\r\nHost: HOST\r\n second.test\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: second.test\r\nHost: HOST\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\n\tHost: second.test\r\nHost: HOST\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\r\nX: y\rHost: second.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\r\nX: y\0Host: second.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\r\nHost\r\n\r\n",
        // Two hosts, or none.
        "GET / HTTP/1.1\r\nHost: HOST\r\nhost: second.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\r\nX: y\nHost: second.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST, second.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: second.test#@HOST\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: HOST\\@second.test\r\n\r\n",
        "GET http://second.test/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET http://HOST/ HTTP/1.1\r\nHost: second.test\r\n\r\n",
        "GET http://HOST@second.test/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET //second.test/\\..http://HOST/ HTTP/1.1\r\nHost: second.test\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        // A host that servers on the way would remove.
        "GET / HTTP/1.1\r\nHost: HOST\r\nConnection: close, Host\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: HOST\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello",
        // Other versions.
        "POST / HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: HOST\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: HOST\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        texts.push(head.into());
    }
    for text in texts {
        // On a connection of its own, and on one that is kept open.
        for earlier in [0, 1] {
            let good = "GET /good HTTP/1.1\r\nHost: HOST\r\n\r\n".repeat(earlier);
            let relayed = relay_text(&format!("{good}{text}")).await;
            assert_eq!(
                relayed.seen.as_ref().map(Vec::len),
                Ok(earlier),
                "{text:?}: {:?}",
                relayed.seen
            );
        }
    }
}

#[tokio::test]
async fn no_tunnel_leads_through_a_proxy_that_an_allowed_host_runs() {
    for target in ["second.test:443", "HOST:443", "127.0.0.2:443", "second.test"] {
        for head in [
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
            format!("CONNECT {target} HTTP/1.1\r\nHost: HOST\r\n\r\n"),
            format!("CONNECT {target} HTTP/1.0\r\n\r\n"),
            format!("CONNECT {target} HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\n\r\nhello"),
            format!("CONNECT http://{target}/ HTTP/1.1\r\nHost: HOST\r\n\r\n"),
        ] {
            for earlier in [0, 1] {
                let good = "GET /good HTTP/1.1\r\nHost: HOST\r\n\r\n".repeat(earlier);
                let relayed = relay_text(&format!("{good}{head}{SMUGGLED}")).await;
                assert_eq!(
                    relayed.seen.as_ref().map(Vec::len),
                    Ok(earlier),
                    "{head:?}: {:?}",
                    relayed.seen
                );
            }
        }
    }
}

/// The reader of these tests finds what they rely on.
#[tokio::test]
async fn the_strict_reader_finds_what_a_lenient_one_would_take() {
    for text in [
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: x, chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: second.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n X: y\r\n\r\n",
        "GET / HTTP/1.1\nHost: 127.0.0.1\n\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: x\r\n\r\n",
    ] {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let (stream, _) = server.accept().await.unwrap();
        let seen = serve_strictly(stream, "127.0.0.1".into()).await;
        assert!(seen.is_err(), "{text:?}: {seen:?}");
    }
}

/// Pieces of requests, as they are and spoilt, and any bytes.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let parts = [
        "GET / HTTP/1.1\r\n",
        "POST /b HTTP/1.1\r\n",
        "HEAD / HTTP/1.0\r\n",
        "CONNECT second.test:443 HTTP/1.1\r\n",
        "GET http://second.test/ HTTP/1.1\r\n",
        "Host: 127.0.0.1\r\n",
        "Host: second.test\r\n",
        "Host:second.test\n",
        " Host: second.test\r\n",
        "Content-Length: 4\r\n",
        "Content-Length: 40\r\n",
        "Content-Length:\t0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: x\r\n",
        "Transfer-Encoding:chunked\n",
        "Connection: keep-alive\r\n",
        "Connection: Upgrade, Host\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "Expect: 100-continue\r\n",
        "Trailer: Host\r\n",
        "\r\n",
        "\n",
        "\r",
        "0\r\n\r\n",
        "4\r\nabcd\r\n",
        "4;x=y\r\nabcd\r\n",
        "0\r\nHost: second.test\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        SMUGGLED,
    ];
    prop_oneof![
        8 => proptest::sample::select(parts.to_vec()).prop_map(|part| part.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn whatever_is_sent_the_server_gets_requests_for_its_own_host_alone(
        pieces in proptest::collection::vec(any_piece(), 0..24),
        cut in any::<prop::sample::Index>(),
    ) {
        // Begun as HTTP: at this port other protocols are let through as they are.
        let first = b"GET /first HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec();
        let whole = [vec![first], pieces].concat().concat();
        let (start, rest) = whole.split_at(cut.index(whole.len()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let relayed = runtime.block_on(relay_pieces(&[start.to_vec(), rest.to_vec()], true));
        prop_assert!(relayed.seen.is_ok(), "{:?} of {}", relayed.seen, whole.escape_ascii());
    }
}
