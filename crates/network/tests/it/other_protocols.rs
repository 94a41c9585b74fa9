//! HTTP/2 towards hosts whose connections are opened, and towards others: a second host cannot be named by it where
//! requests are judged, and the name in TLS counts where they are not.

use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use stockade_agent::protocol::network::FromHelper;
use stockade_network::{ConnectionVerdict, SecretSet, TrustStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::helper::{Said, TestHelper};
use crate::tls_server::{TlsServer, exchange, open_stream_to};

/// The one name that is resolved here.
const HOST: &str = "localhost";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that offers these protocols.
fn client_config(trusted_pem: &[u8], protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted_pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A connection to a server whose requests are judged, by a client that offers these protocols.
async fn connect_judged(
    server: &TlsServer,
    protocols: &[&str],
) -> std::io::Result<TlsStream<DuplexStream>> {
    let trust = TrustStore::from_pem(server.root_pem.as_bytes().to_vec()).unwrap();
    let set = Arc::new(SecretSet::new(Vec::new(), trust).unwrap());
    let bundle = String::from_utf8(set.bundle().to_vec()).unwrap();
    let port = server.address.port();
    let rules = [format!("GET@{HOST}:{port}/v1"), format!("127.0.0.1:{port}")];
    let helper = TestHelper::start_with_secrets(&rules, Some(set)).await;
    let stream = open_stream_to(helper, HOST, port);
    // Of the certificates inside only the sandbox's own, so that nothing else can have answered.
    let own = bundle.split_at(server.root_pem.len()).1;
    let connector = TlsConnector::from(client_config(own.as_bytes(), protocols));
    connector.connect(ServerName::try_from(HOST).unwrap(), stream).await
}

fn answer_ok(_: &str) -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".into()
}

/// A request as HTTP/2 has it: settings, and a head in which `:authority` names this host, by literals alone.
fn write_http2_request(authority: &str) -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in
        [(":method", "GET"), (":scheme", "https"), (":path", "/v1"), (":authority", authority)]
    {
        head.push(0);
        for text in [name, value] {
            head.push(text.len() as u8);
            head.extend(text.as_bytes());
        }
    }
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = payload.len() as u8;
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    // Settings; then headers that end both the head and the stream.
    [PREFACE, &frame(4, 0, 0, &[]), &frame(1, 5, 1, &head)].concat()
}

#[tokio::test]
async fn a_client_that_offers_http2_speaks_http1_where_requests_are_judged() {
    let mut server = TlsServer::start(answer_ok).await;
    let mut stream = connect_judged(&server, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let request = format!("GET /v1 HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    assert!(exchange(&mut stream, &request).await.ends_with("ok"));
    server.request().await;
}

#[tokio::test]
async fn http2_is_spoken_to_no_host_whose_requests_are_judged() {
    // Asked for alone, it is not agreed on.
    let mut server = TlsServer::start(answer_ok).await;
    assert!(connect_judged(&server, &["h2"]).await.is_err());
    // Spoken all the same, it gets nowhere, whatever host it names.
    for protocols in [&["http/1.1"][..], &[]] {
        for authority in [HOST, "second.test"] {
            let mut stream = connect_judged(&server, protocols).await.unwrap();
            stream.write_all(&write_http2_request(authority)).await.unwrap();
            let mut answer = Vec::new();
            // It may be cut.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(!answer.windows(3).any(|it| it == b"200"), "{}", answer.escape_ascii());
        }
    }
    assert!(server.requests.try_recv().is_err(), "the server was asked");
}

/// The first message of a TLS client that asks for this host over HTTP/2.
fn hello_for(host: &str) -> Vec<u8> {
    let config = client_config(&[], &["h2"]);
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[tokio::test]
async fn the_name_in_tls_counts_where_http2_is_not_looked_into() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let rules = [format!("{HOST}:{port}"), format!("127.0.0.1:{port}")];
    for (named, passes) in [(HOST, true), ("LOCALHOST", true), ("second.test", false)] {
        let mut helper = TestHelper::start(&rules).await;
        helper.open(1, HOST, port);
        let (mut upstream, _) = server.accept().await.unwrap();
        helper.hear_until(&Said::Opened(1)).await;
        let hello = hello_for(named);
        helper.say(&FromHelper::Data(1, &hello));
        if passes {
            let mut came = vec![0; hello.len()];
            upstream.read_exact(&mut came).await.unwrap();
            assert!(came == hello, "{named}");
            continue;
        }
        helper.hear_until(&Said::Reset(1)).await;
        let record = helper.wait_for_records(1).await.remove(0);
        let ConnectionVerdict::Denied { reason, .. } = &record.verdict else {
            panic!("{record:?}")
        };
        assert!(reason.contains("asks for `second.test`"), "{reason}");
        let mut came = Vec::new();
        upstream.read_to_end(&mut came).await.unwrap();
        assert!(came.is_empty(), "{named}");
    }
}

#[tokio::test]
async fn http2_without_tls_is_let_through_to_no_host() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    for authority in ["127.0.0.1", "second.test"] {
        let mut helper = TestHelper::start(&[format!("127.0.0.1:{port}")]).await;
        helper.open(1, "127.0.0.1", port);
        let (mut upstream, _) = server.accept().await.unwrap();
        helper.hear_until(&Said::Opened(1)).await;
        // Byte by byte: it is known before the first one goes on.
        for byte in write_http2_request(authority) {
            helper.say(&FromHelper::Data(1, &[byte]));
        }
        helper.hear_until(&Said::Reset(1)).await;
        let mut came = Vec::new();
        upstream.read_to_end(&mut came).await.unwrap();
        assert!(came.is_empty(), "{}", came.escape_ascii());
    }
}
