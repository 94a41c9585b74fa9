//! Plain HTTP, request by request.

use stockade_agent::protocol::network::FromHelper;
use stockade_network::ConnectionVerdict;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::helper::{Said, TestHelper, rule_for};

/// Reads one head of a request.
pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Hears data of the first stream until it ends like this.
pub async fn hear_text(helper: &mut TestHelper, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        if let Said::Data(1, data) = helper.hear().await.unwrap() {
            text.push_str(&String::from_utf8(data).unwrap());
        }
    }
    text
}

async fn open_first(server: &TcpListener) -> (TestHelper, TcpStream, String) {
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(1, "127.0.0.1", address.port());
    let (upstream, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    (helper, upstream, address.to_string())
}

#[tokio::test]
async fn a_websocket_goes_on_after_its_upgrade() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut helper, mut upstream, host) = open_first(&server).await;
    let request = format!(
        "GET /chat HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    helper.say(&FromHelper::Data(1, request.as_bytes()));
    assert!(read_head(&mut upstream).await.starts_with("GET /chat HTTP/1.1\r\n"));
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    upstream.write_all(switched.as_bytes()).await.unwrap();
    let heard = hear_text(&mut helper, "\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 101 "), "{heard}");
    helper.say(&FromHelper::Data(1, b"ping"));
    let mut ping = [0; 4];
    upstream.read_exact(&mut ping).await.unwrap();
    upstream.write_all(b"pong").await.unwrap();
    assert_eq!((&ping, hear_text(&mut helper, "pong").await.as_str()), (b"ping", "pong"));
}

#[tokio::test]
async fn a_second_request_for_another_host_is_refused_on_a_connection_that_is_kept() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut helper, mut upstream, host) = open_first(&server).await;
    helper.say(&FromHelper::Data(1, format!("GET /1 HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()));
    read_head(&mut upstream).await;
    upstream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").await.unwrap();
    hear_text(&mut helper, "one").await;
    helper.say(&FromHelper::Data(1, b"GET /2 HTTP/1.1\r\nHost: b.org\r\n\r\n"));
    let refused = hear_text(&mut helper, "\n").await;
    assert!(refused.contains("403 Forbidden"), "{refused}");
    let record = helper.wait_for_records(1).await.remove(0);
    assert!(matches!(record.verdict, ConnectionVerdict::Denied { .. }), "{record:?}");
    let mut rest = String::new();
    upstream.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
}

#[tokio::test]
async fn a_connection_that_ends_with_its_sandbox_is_recorded() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut helper, mut upstream, _) = open_first(&server).await;
    helper.say(&FromHelper::Data(1, b"\x00secret"));
    let mut sent = [0; 7];
    upstream.read_exact(&mut sent).await.unwrap();
    drop(helper.relay.take());
    let record = helper.wait_for_records(1).await.remove(0);
    assert_eq!(record.sent, 7);
    assert!(matches!(record.verdict, ConnectionVerdict::Allowed { .. }), "{record:?}");
}
