//! Secrets: put in towards their hosts, blocked towards all others, masked in answers.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stockade_agent::protocol::network::FromHelper;
use stockade_core::SecretValue;
use stockade_network::{ConnectionVerdict, EgressLimits, SecretSet, SecretSupply, TrustStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio_rustls::client::TlsStream;

use crate::asking::SameAnswer;
use crate::helper::{KeptLog, Said, TestHelper, rule_for};
use crate::tls_server::{TlsServer, connect_tls, exchange, open_stream, read_request};

const VALUE: &str = "correct-horse-battery-staple";

fn bind_secret(binding: &str, root_pem: &str) -> (Arc<SecretSet>, String) {
    let value = SecretValue::try_from(VALUE.to_owned()).unwrap();
    let trust = TrustStore::from_pem(root_pem.as_bytes().to_vec()).unwrap();
    let supply = Arc::new(SecretSupply::from(value));
    let set = SecretSet::new(vec![(binding.parse().unwrap(), supply)], trust).unwrap();
    let placeholder = set.placeholders().next().unwrap().1.to_owned();
    (Arc::new(set), placeholder)
}

struct OpenedConnection {
    stream: TlsStream<DuplexStream>,
    placeholder: String,
    log: Arc<KeptLog>,
}

/// A TLS connection from inside to a server that a secret is bound to.
async fn open_bound(server: &TlsServer, place: &str) -> OpenedConnection {
    let (set, placeholder) = bind_secret(&format!("KEY=127.0.0.1:{place}"), &server.root_pem);
    let bundle = set.bundle();
    let helper = TestHelper::start_with_secrets(&[rule_for(server.address)], Some(set)).await;
    let log = Arc::clone(&helper.log);
    let stream = open_stream(helper, server.address);
    // Without the certificate of the server's own authority: only the sandbox's is behind it.
    let own = String::from_utf8(bundle.to_vec()).unwrap().split_off(server.root_pem.len());
    let stream = connect_tls(stream, own.as_bytes(), server.address).await.unwrap();
    OpenedConnection { stream, placeholder, log }
}

fn answer_ok(_: &str) -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".into()
}

#[tokio::test]
async fn a_value_is_put_into_headers_and_its_echo_is_masked() {
    let echo = |request: &str| {
        let header = request.lines().find(|line| line.starts_with("authorization: "));
        let header = header.unwrap_or_default();
        let sent = header.trim_start_matches("authorization: ");
        let encoded = STANDARD.encode(sent);
        let body = format!("you sent {sent}, in base64 {encoded}");
        let (length, location) = (body.len(), format!("https://other.test/?{sent}"));
        format!(
            "HTTP/1.1 302 {VALUE}\r\nLocation: {location}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let mut server = TlsServer::start(echo).await;
    let mut opened = open_bound(&server, "header").await;
    let placeholder = opened.placeholder.clone();
    let head = format!("GET /x HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: gzip\r\n", server.address);
    for scheme in ["Bearer", "token"] {
        let request = format!("{head}Authorization: {scheme} {placeholder}\r\n\r\n");
        let answer = exchange(&mut opened.stream, &request).await;
        let seen = server.request().await;
        assert!(seen.contains(&format!("authorization: {scheme} {VALUE}\r\n")), "{seen}");
        assert!(seen.contains("accept-encoding: identity\r\n"), "{seen}");
        assert!(!answer.contains(VALUE), "{answer}");
        assert!(!answer.contains(&STANDARD.encode(format!("{scheme} {VALUE}"))), "{answer}");
        let masked = format!("you sent {scheme} {placeholder}, in base64 ");
        assert!(answer.contains(&masked), "{answer}");
        let location = format!("https://other.test/?{scheme} {placeholder}");
        assert!(answer.contains(&location), "{answer}");
    }
}

#[tokio::test]
async fn an_echo_is_masked_wherever_an_answer_is_cut() {
    let echo = |_: &str| {
        let (first, second) = VALUE.split_at(9);
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        let chunks = [first, second, " and ", first, second].map(chunk).concat();
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    };
    let server = TlsServer::start(echo).await;
    let mut opened = open_bound(&server, "header").await;
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let answer = exchange(&mut opened.stream, &request).await;
    assert_eq!(answer.matches(&opened.placeholder).count(), 2, "{answer}");
    assert!(!answer.contains(&VALUE[..9]) && !answer.contains(&VALUE[9..]), "{answer}");
}

#[tokio::test]
async fn a_placeholder_in_another_protocol_ends_the_connection() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let root = TlsServer::start(answer_ok).await.root_pem;
    let (set, placeholder) = bind_secret("KEY=other.test", &root);
    let helper = TestHelper::start_with_secrets(&[rule_for(address)], Some(set)).await;
    let log = Arc::clone(&helper.log);
    let mut stream = open_stream(helper, address);
    let (mut upstream, _) = server.accept().await.unwrap();
    // Its last byte is not held back: the server may wait for it.
    stream.write_all(b"\x00\x01s").await.unwrap();
    let mut first = [0; 3];
    upstream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"\x00\x01s");
    for part in [&placeholder[..20], &placeholder[20..]] {
        stream.write_all(part.as_bytes()).await.unwrap();
    }
    let verdict = wait_for_record(&log).await;
    let ConnectionVerdict::Denied { reason, .. } = verdict else { panic!("{verdict:?}") };
    assert!(reason.contains("`KEY`") && reason.contains("bound to other.test"), "{reason}");
    let mut reached = Vec::new();
    // It may end with a reset.
    let _ = upstream.read_to_end(&mut reached).await;
    assert!(!String::from_utf8_lossy(&reached).contains(&placeholder));
}

/// What a program has stored there could be read back, and nothing would mask it.
#[tokio::test]
async fn a_host_of_a_secret_is_reached_over_https_alone() {
    let root = TlsServer::start(answer_ok).await.root_pem;
    for sent in ["GET /stored HTTP/1.1\r\nHost: HOST\r\n\r\n", "\0\u{1}another protocol"] {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let (set, _) = bind_secret("KEY=127.0.0.1", &root);
        let helper = TestHelper::start_with_secrets(&[rule_for(address)], Some(set)).await;
        let log = Arc::clone(&helper.log);
        let mut stream = open_stream(helper, address);
        let (mut upstream, _) = server.accept().await.unwrap();
        let sent = sent.replace("HOST", &address.to_string());
        stream.write_all(sent.as_bytes()).await.unwrap();
        let verdict = wait_for_record(&log).await;
        let ConnectionVerdict::Denied { reason, .. } = verdict else { panic!("{verdict:?}") };
        assert!(reason.contains("over HTTPS only"), "{reason}");
        drop(stream);
        let mut reached = Vec::new();
        // It may end with a reset.
        let _ = upstream.read_to_end(&mut reached).await;
        assert_eq!(reached, b"");
    }
}

#[tokio::test]
async fn a_placeholder_is_blocked_towards_hosts_that_are_observed_or_asked_about() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let root = TlsServer::start(answer_ok).await.root_pem;
    for word in ["observe", "ask"] {
        let (set, placeholder) = bind_secret("KEY=a.test", &root);
        let person = SameAnswer::new(true);
        // The address is opened by a rule; the name that leads to it is covered by none.
        let rules = [word.to_owned(), rule_for(address)];
        let mut helper = TestHelper::start_egress(&rules, EgressLimits::default(), |egress| {
            egress.with_secrets(Some(set)).with_approver(person)
        })
        .await;
        helper.open(1, "localhost", address.port());
        let (mut upstream, _) = server.accept().await.unwrap();
        helper.hear_until(&Said::Opened(1)).await;
        let host = format!("localhost:{}", address.port());
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Key: {placeholder}\r\n\r\n");
        helper.say(&FromHelper::Data(1, request.as_bytes()));
        let record = helper.wait_for_records(1).await.remove(0);
        let ConnectionVerdict::Denied { reason, .. } = &record.verdict else {
            panic!("{word}: {record:?}")
        };
        assert!(reason.contains("the secret is bound to a.test"), "{word}: {reason}");
        drop(helper);
        let mut reached = Vec::new();
        // It may end with a reset.
        let _ = upstream.read_to_end(&mut reached).await;
        assert!(!String::from_utf8_lossy(&reached).contains(&placeholder), "{word}");
    }
}

#[tokio::test]
async fn a_value_is_put_into_basic_authorization() {
    let mut server = TlsServer::start(answer_ok).await;
    let mut opened = open_bound(&server, "header").await;
    let basic = STANDARD.encode(format!("me:{}", opened.placeholder));
    let host = server.address;
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: basic {basic}\r\n\r\n");
    exchange(&mut opened.stream, &request).await;
    let expected = STANDARD.encode(format!("me:{VALUE}"));
    let seen = server.request().await;
    assert!(seen.contains(&format!("authorization: Basic {expected}\r\n")), "{seen}");
}

#[tokio::test]
async fn a_value_is_put_into_bodies_where_it_is_bound_to_them() {
    let mut server = TlsServer::start(answer_ok).await;
    let mut opened = open_bound(&server, "body").await;
    let (host, placeholder) = (server.address, opened.placeholder.clone());
    let body = format!("{{\"key\": \"{placeholder}\"}}");
    let length = body.len();
    let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\n");
    exchange(&mut opened.stream, &format!("{head}Content-Length: {length}\r\n\r\n{body}")).await;
    let seen = server.request().await;
    let expected = format!("{{\"key\": \"{VALUE}\"}}");
    assert!(seen.ends_with(&expected), "{seen}");
    assert!(seen.contains(&format!("content-length: {}\r\n", expected.len())), "{seen}");
    // In chunks that cut it in two.
    let (first, second) = placeholder.split_at(20);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let chunks = format!("{}{}0\r\n\r\n", chunk(first), chunk(second));
    let request = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}");
    exchange(&mut opened.stream, &request).await;
    let seen = server.request().await;
    assert!(seen.contains(VALUE) && !seen.contains(first), "{seen}");
}

#[tokio::test]
async fn a_placeholder_in_another_place_is_blocked_and_recorded() {
    for (request, named) in [
        ("GET /?key=KEY HTTP/1.1\r\nHost: HOST\r\n\r\n", "request line"),
        ("GET / HTTP/1.1\r\nHost: HOST\r\nX-KEY: 1\r\n\r\n", "request line"),
        ("POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 48\r\n\r\nKEY", "HOST:body` would"),
    ] {
        let mut server = TlsServer::start(answer_ok).await;
        let mut opened = open_bound(&server, "header").await;
        let request = request.replace("KEY", &opened.placeholder);
        let request = request.replace("HOST", &server.address.to_string());
        let answer = exchange(&mut opened.stream, &request).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(named), "{answer}");
        // It may have been closed by the other side already.
        let _ = opened.stream.shutdown().await;
        let record = wait_for_record(&opened.log).await;
        let ConnectionVerdict::Denied { reason, .. } = record else { panic!("{record:?}") };
        assert!(reason.contains("`KEY`") && !reason.contains(VALUE), "{reason}");
        assert!(server.requests.try_recv().is_err(), "the server was asked");
    }
}

async fn wait_for_record(log: &KeptLog) -> ConnectionVerdict {
    loop {
        if let Some(record) = log.records().pop() {
            return record.verdict;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_placeholder_goes_to_no_other_host_and_not_over_plain_http() {
    for (bound_to, reason) in [
        ("other.test", "the placeholder of the secret `KEY`"),
        ("127.0.0.1", "a secret is bound to `127.0.0.1`"),
    ] {
        for request in [
            "GET /KEY HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer KEY\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 48\r\n\r\nKEY",
        ] {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = server.local_addr().unwrap();
            let root = TlsServer::start(answer_ok).await.root_pem;
            let (set, placeholder) = bind_secret(&format!("KEY={bound_to}"), &root);
            let rules = [rule_for(address)];
            let helper = TestHelper::start_with_secrets(&rules, Some(set)).await;
            let mut stream = open_stream(helper, address);
            let (mut upstream, _) = server.accept().await.unwrap();
            let request = request.replace("KEY", &placeholder);
            let request = request.replace("HOST", &address.to_string());
            let answer = exchange(&mut stream, &request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert!(answer.contains(reason), "{answer}");
            drop(stream);
            let reached = read_request(&mut upstream).await.unwrap_or_default();
            assert!(!reached.contains(&placeholder), "{reached}");
        }
    }
}

#[tokio::test]
async fn a_placeholder_is_no_part_of_a_name() {
    let root = TlsServer::start(answer_ok).await.root_pem;
    let (set, placeholder) = bind_secret("KEY=a.test", &root);
    let rules = ["**.b.test".to_owned()];
    let mut helper = TestHelper::start_with_secrets(&rules, Some(set)).await;
    let name = format!("{}.b.test", placeholder.to_ascii_uppercase());
    helper.say(&FromHelper::Lookup(1, &name));
    assert_eq!(helper.hear().await, Some(Said::Found(1, Vec::new())));
    helper.open(1, &name, 443);
    let Some(Said::Refused(1, reason)) = helper.hear().await else { panic!("it was connected to") };
    assert!(reason.contains("`KEY`"), "{reason}");
    assert_eq!(helper.wait_for_records(2).await.len(), 2);
}

#[tokio::test]
async fn a_server_that_this_host_does_not_trust_gets_nothing() {
    let mut server = TlsServer::start(answer_ok).await;
    server.root_pem = TlsServer::start(answer_ok).await.root_pem;
    let mut opened = open_bound(&server, "header").await;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\n\r\n",
        server.address, opened.placeholder
    );
    let answer = exchange(&mut opened.stream, &request).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && !answer.contains(VALUE), "{answer}");
    assert!(server.requests.try_recv().is_err(), "the server was asked");
}

#[tokio::test]
async fn a_host_without_a_secret_is_not_opened() {
    let mut server = TlsServer::start(answer_ok).await;
    let (set, _) = bind_secret("KEY=other.test", &server.root_pem);
    let rules = [rule_for(server.address)];
    let helper = TestHelper::start_with_secrets(&rules, Some(set)).await;
    let stream = open_stream(helper, server.address);
    // The server's own certificate, and no other, is behind it.
    let root = server.root_pem.clone();
    let mut stream = connect_tls(stream, root.as_bytes(), server.address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    assert!(exchange(&mut stream, &request).await.ends_with("ok"));
    server.request().await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_looked_through_is_held_back() {
    let packed = |_: &str| {
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nGZIP".to_owned()
    };
    let server = TlsServer::start(packed).await;
    let mut opened = open_bound(&server, "header").await;
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let answer = exchange(&mut opened.stream, &request).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && !answer.contains("GZIP"), "{answer}");
}

#[test]
fn one_value_within_another_is_refused() {
    let root = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap().cert.pem();
    let trust = TrustStore::from_pem(root.into_bytes()).unwrap();
    let held = |binding: &str, value: &str| {
        let value = SecretValue::try_from(value.to_owned()).unwrap();
        (binding.parse().unwrap(), Arc::new(SecretSupply::from(value)))
    };
    let both = vec![held("A=a.test", "12345678"), held("B=a.test", "0123456789")];
    let error = SecretSet::new(both, trust).err().unwrap();
    assert!(error.message().contains("`A`") && !error.message().contains("1234"), "{error}");
}
