//! Rules with methods and paths: each request is judged, over TLS too, also while the rules change.

use std::sync::Arc;

use stockade_agent::protocol::network::FromHelper;
use stockade_core::EgressRule;
use stockade_network::{ConnectionRecord, ConnectionVerdict, SecretSet, TrustStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::helper::{KeptLog, Said, TestHelper};
use crate::tls_server::{TlsServer, connect_tls_to, exchange, open_stream_to};

/// The one name that is resolved here.
const HOST: &str = "localhost";

/// Rules in which `HOST` is the server, whose address is opened.
fn rules_for(port: u16, rules: &[&str]) -> Vec<String> {
    let named = rules.iter().map(|rule| rule.replace("HOST", &format!("{HOST}:{port}")));
    named.chain([format!("127.0.0.1:{port}")]).collect()
}

fn parse_rules(rules: &[String]) -> Vec<EgressRule> {
    rules.iter().map(|rule| rule.parse().unwrap()).collect()
}

/// A connection to a server, seen from both ends.
struct Reached {
    helper: TestHelper,
    upstream: TcpStream,
    port: u16,
}

impl Reached {
    async fn open(rules: &[&str]) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let mut helper = TestHelper::start(&rules_for(port, rules)).await;
        helper.open(1, HOST, port);
        let (upstream, _) = server.accept().await.unwrap();
        helper.hear_until(&Said::Opened(1)).await;
        Self { helper, upstream, port }
    }

    fn say(&self, line: &str) {
        self.say_with(line, "");
    }

    fn say_with(&self, line: &str, headers: &str) {
        let request = format!("{line} HTTP/1.1\r\nHost: {HOST}:{}\r\n{headers}\r\n", self.port);
        self.helper.say(&FromHelper::Data(1, request.as_bytes()));
    }

    /// The first line of the next request that the server gets.
    async fn read_line(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.upstream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap().lines().next().unwrap().to_owned()
    }

    async fn answer(&mut self, text: &str) {
        self.upstream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn hear_text(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            if let Said::Data(1, data) = self.helper.hear().await.unwrap() {
                text.push_str(&String::from_utf8(data).unwrap());
            }
        }
        text
    }

    /// A request that passes, and its answer.
    async fn pass(&mut self, line: &str) {
        self.say(line);
        assert_eq!(self.read_line().await, format!("{line} HTTP/1.1"));
        self.answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        assert!(self.hear_text("ok").await.starts_with("HTTP/1.1 200 "), "{line}");
    }

    /// A request that is refused, of which the server gets nothing.
    async fn refuse(mut self, line: &str, headers: &str) -> ConnectionRecord {
        self.say_with(line, headers);
        let heard = self.hear_text("\n").await;
        assert!(heard.starts_with("HTTP/1.1 403 "), "{line}: {heard}");
        let record = self.helper.wait_for_records(1).await.remove(0);
        let mut rest = String::new();
        self.upstream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "", "{line}");
        record
    }

    fn replace_rules(&self, rules: &[&str]) {
        self.helper.egress.replace_rules(parse_rules(&rules_for(self.port, rules)));
    }
}

fn denial_of(record: &ConnectionRecord) -> (&str, Option<&str>) {
    let ConnectionVerdict::Denied { reason, missing_rule } = &record.verdict else {
        panic!("{record:?}")
    };
    (reason, missing_rule.as_deref())
}

#[tokio::test]
async fn a_second_request_is_judged_by_its_own_method_and_path() {
    for (line, request) in [("POST /v1/a?token=1", "POST /v1/a"), ("GET /v2", "GET /v2")] {
        let mut reached = Reached::open(&["GET@HOST/v1/*"]).await;
        reached.pass("GET /v1/a?b=/../c").await;
        let port = reached.port;
        let record = reached.refuse(line, "Content-Length: 0\r\n").await;
        assert_eq!(record.request.as_deref(), Some(request));
        let (method, path) = request.split_once(' ').unwrap();
        let rule = format!("{method}@{HOST}:{port}{path}");
        let reason = format!("no rule allows `{method} {HOST}:{port}{path}`; `--net {rule}` would");
        assert_eq!(denial_of(&record), (reason.as_str(), Some(rule.as_str())));
    }
}

#[tokio::test]
async fn a_rule_that_denies_a_path_wins_over_the_whole_host() {
    let rules = ["HOST", "!HOST/admin", "!DELETE@HOST"];
    for line in [
        "GET /admin",
        "GET /Admin/x",
        "GET /%61dmin",
        "GET /admin%20",
        "GET /admin./x",
        "DELETE /v1",
    ] {
        let record = Reached::open(&rules).await.refuse(line, "").await;
        let (reason, missing) = denial_of(&record);
        assert!(reason.contains("is denied by `!") && missing.is_none(), "{line}: {reason}");
    }
    Reached::open(&rules).await.pass("GET /administrator").await;
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused() {
    for line in [
        "GET /v1/../admin",
        "GET /v1/%2e%2e/admin",
        "GET /v1/.%2E/admin",
        "GET /v1/./a",
        "GET //v1/a",
        "GET /v1//a",
        "GET /v1%2fa",
        "GET /v1/..%2fadmin",
        "GET /v1/%5c..%5cadmin",
        "GET /v1/a\\b",
        "GET /v1/a;/../admin",
        "GET /v1/a%3bx",
        "GET /v1/%00",
        "GET /v1/%252e%252e/admin",
        "GET /v1/%c0%ae",
        "GET /v1/..%20/admin",
        "GET /v1/.../admin",
        "GET /v1/%EF%BC%8E%EF%BC%8E/admin",
        "GET /v1/..%EF%BC%8Fadmin",
        "GET /v1/.%E2%80%8B./admin",
        "GET /v1/%u002e%u002e/admin",
        "OPTIONS *",
        "get /v1/a",
    ] {
        let record = Reached::open(&["HOST/v1"]).await.refuse(line, "").await;
        let (_, missing) = denial_of(&record);
        assert!(missing.is_none(), "{line}: {record:?}");
        assert!(record.request.unwrap().chars().count() < 200);
    }
}

#[tokio::test]
async fn headers_that_name_another_request_are_refused() {
    for header in [
        "X-HTTP-Method-Override: DELETE\r\n",
        "X-Original-URL: /admin\r\n",
        "Destination: /admin\r\n",
    ] {
        let record = Reached::open(&["GET@HOST"]).await.refuse("GET /", header).await;
        assert!(denial_of(&record).0.contains("may name another request"), "{record:?}");
    }
}

#[tokio::test]
async fn parameters_that_name_another_method_are_refused() {
    for line in ["GET /?a=1&_method=DELETE", "GET /?%5Fmethod=DELETE", "GET /a?_METHOD=PUT"] {
        let record = Reached::open(&["GET@HOST"]).await.refuse(line, "").await;
        let (reason, missing) = denial_of(&record);
        assert!(reason.contains("has the parameter `_method`"), "{line}: {reason}");
        assert!(missing.is_none() && !reason.contains('?'), "{line}: {reason}");
    }
    Reached::open(&["GET@HOST"]).await.pass("GET /?payment_method=card").await;
}

#[tokio::test]
async fn a_path_that_a_shell_would_obey_is_not_proposed() {
    let record = Reached::open(&["HOST/v1"]).await.refuse("GET /$(reboot)", "").await;
    assert_eq!(denial_of(&record).1, None);
}

#[tokio::test]
async fn other_rules_hold_for_the_next_request_of_a_connection() {
    let mut reached = Reached::open(&["HOST/v1"]).await;
    reached.pass("GET /v1").await;
    reached.replace_rules(&["HOST/v1", "HOST/v2"]);
    reached.pass("GET /v2").await;
    reached.pass("GET /v1").await;
    // The last request keeps its right, and so does the connection.
    reached.replace_rules(&["HOST/v1"]);
    reached.pass("GET /v1/still").await;
    let record = reached.refuse("GET /v2", "").await;
    assert_eq!(record.request.as_deref(), Some("GET /v2"));
}

#[tokio::test]
async fn a_request_that_loses_its_right_is_cut() {
    let mut reached = Reached::open(&["HOST"]).await;
    reached.say("GET /v2");
    assert_eq!(reached.read_line().await, "GET /v2 HTTP/1.1");
    reached.replace_rules(&["HOST", "!HOST/v2"]);
    reached.helper.hear_until(&Said::Reset(1)).await;
    let record = reached.helper.wait_for_records(1).await.remove(0);
    assert_eq!(record.request.as_deref(), Some("GET /v2"));
}

#[tokio::test]
async fn a_request_that_may_be_another_one_is_cut_when_requests_are_to_be_judged() {
    let mut reached = Reached::open(&["HOST"]).await;
    reached.say_with("GET /v2", "X-HTTP-Method-Override: DELETE\r\n");
    assert_eq!(reached.read_line().await, "GET /v2 HTTP/1.1");
    reached.replace_rules(&["GET@HOST"]);
    reached.helper.hear_until(&Said::Reset(1)).await;
    let record = reached.helper.wait_for_records(1).await.remove(0);
    assert!(denial_of(&record).0.contains("may name another request"), "{record:?}");
    assert_eq!(record.request.as_deref(), Some("GET /v2"));
}

#[tokio::test]
async fn a_websocket_is_judged_as_a_get_and_cut_when_it_loses_its_right() {
    let mut reached = Reached::open(&["GET@HOST/chat"]).await;
    reached.say_with("GET /chat", "Connection: Upgrade\r\nUpgrade: websocket\r\n");
    reached.read_line().await;
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    reached.answer(switched).await;
    reached.hear_text("\r\n\r\n").await;
    reached.helper.say(&FromHelper::Data(1, b"ping"));
    let mut ping = [0; 4];
    reached.upstream.read_exact(&mut ping).await.unwrap();
    reached.replace_rules(&["GET@HOST/chat", "HOST/v1"]);
    reached.answer("pong").await;
    reached.hear_text("pong").await;
    reached.replace_rules(&["HOST/v1"]);
    reached.helper.hear_until(&Said::Reset(1)).await;
}

#[tokio::test]
async fn what_is_no_http_does_not_reach_a_host_whose_requests_are_judged() {
    let mut reached = Reached::open(&["HOST/v1"]).await;
    reached.helper.say(&FromHelper::Data(1, b"\x00\x01another protocol"));
    let record = reached.helper.wait_for_records(1).await.remove(0);
    assert!(denial_of(&record).0.contains("by HTTP and HTTPS only"), "{record:?}");
    let mut rest = Vec::new();
    // It may end with a reset.
    let _ = reached.upstream.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn bytes_that_are_not_looked_into_are_cut_when_requests_are_to_be_judged() {
    let mut reached = Reached::open(&["HOST"]).await;
    reached.helper.say(&FromHelper::Data(1, b"\x00\x01raw"));
    let mut raw = [0; 5];
    reached.upstream.read_exact(&mut raw).await.unwrap();
    reached.replace_rules(&["HOST", "!HOST/admin"]);
    reached.helper.hear_until(&Said::Reset(1)).await;
    let record = reached.helper.wait_for_records(1).await.remove(0);
    assert!(denial_of(&record).0.contains("by HTTP and HTTPS only"), "{record:?}");
}

#[tokio::test]
async fn a_server_that_sends_interim_answers_without_end_is_given_up() {
    let mut reached = Reached::open(&["HOST"]).await;
    reached.say("GET /");
    reached.read_line().await;
    reached.answer(&"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(20)).await;
    let heard = reached.hear_text("\n").await;
    assert!(heard.starts_with("HTTP/1.1 502 ") && heard.contains("interim"), "{heard}");
}

/// A TLS connection from inside to a server under these rules, trusting the sandbox's own authority alone.
async fn open_tls(server: &TlsServer, rules: &[&str]) -> (TlsStream<DuplexStream>, Arc<KeptLog>) {
    let trust = TrustStore::from_pem(server.root_pem.as_bytes().to_vec()).unwrap();
    let set = Arc::new(SecretSet::new(Vec::new(), trust).unwrap());
    let own = String::from_utf8(set.bundle().to_vec()).unwrap().split_off(server.root_pem.len());
    let port = server.address.port();
    let helper = TestHelper::start_with_secrets(&rules_for(port, rules), Some(set)).await;
    let log = Arc::clone(&helper.log);
    let stream = open_stream_to(helper, HOST, port);
    (connect_tls_to(stream, own.as_bytes(), HOST).await.unwrap(), log)
}

fn answer_packed(_: &str) -> String {
    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nGZIP".into()
}

#[tokio::test]
async fn requests_over_tls_are_judged_too() {
    let mut server = TlsServer::start(answer_packed).await;
    let (mut stream, log) = open_tls(&server, &["GET@HOST/v1/*"]).await;
    let host = format!("{HOST}:{}", server.address.port());
    let request = |line: &str| format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let (allowed, denied) = (request("GET /v1/a?b"), request("GET /v2?secret"));
    // No secret is bound to it: nothing has to be masked, and an answer may be compressed.
    assert!(exchange(&mut stream, &allowed).await.ends_with("GZIP"));
    assert!(server.request().await.starts_with("GET /v1/a?b HTTP/1.1\r\n"));
    let answer = exchange(&mut stream, &denied).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains(&format!("--net GET@{host}/v2`")), "{answer}");
    assert!(server.requests.try_recv().is_err(), "the server was asked");
    let record = log.records().remove(0);
    assert_eq!(record.request.as_deref(), Some("GET /v2"));
    assert!(!format!("{record:?}").contains("secret"), "{record:?}");
}

#[tokio::test]
async fn tls_is_not_opened_towards_hosts_whose_requests_are_not_judged() {
    let mut server = TlsServer::start(answer_packed).await;
    let trust = TrustStore::from_pem(server.root_pem.as_bytes().to_vec()).unwrap();
    let set = Arc::new(SecretSet::new(Vec::new(), trust).unwrap());
    let port = server.address.port();
    let rules = rules_for(port, &["HOST", "GET@other.test/v1"]);
    let helper = TestHelper::start_with_secrets(&rules, Some(set)).await;
    let stream = open_stream_to(helper, HOST, port);
    let root = server.root_pem.clone();
    let mut stream = connect_tls_to(stream, root.as_bytes(), HOST).await.unwrap();
    exchange(&mut stream, &format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await;
    server.request().await;
}

#[tokio::test]
async fn tls_that_cannot_be_opened_is_refused() {
    let server = TlsServer::start(answer_packed).await;
    let port = server.address.port();
    let helper = TestHelper::start(&rules_for(port, &["HOST/v1"])).await;
    let log = Arc::clone(&helper.log);
    let stream = open_stream_to(helper, HOST, port);
    let root = server.root_pem.clone();
    assert!(connect_tls_to(stream, root.as_bytes(), HOST).await.is_err());
    let record = log.wait_for_records(1).await.remove(0);
    assert!(denial_of(&record).0.contains("no authority"), "{record:?}");
}
