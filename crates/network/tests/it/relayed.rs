//! Connections that are allowed.

use stockade_agent::protocol::network::{FromHelper, STREAM_WINDOW_BYTES};
use stockade_network::ConnectionVerdict;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

#[tokio::test]
async fn bytes_pass_both_ways_and_each_direction_ends_by_itself() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(1, "127.0.0.1", address.port());
    let (mut upstream, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    helper.say(&FromHelper::Data(1, b"\x00question"));
    helper.say(&FromHelper::End(1));
    let mut asked = Vec::new();
    upstream.read_to_end(&mut asked).await.unwrap();
    assert_eq!(asked, b"\x00question");
    upstream.write_all(b"answer").await.unwrap();
    drop(upstream);
    helper.hear_until(&Said::Data(1, b"answer".to_vec())).await;
    helper.hear_until(&Said::End(1)).await;
    let record = helper.wait_for_records(1).await.remove(0);
    assert_eq!((record.sent, record.received, record.address), (9, 6, Some(address.ip())));
    assert_eq!(
        record.verdict,
        ConnectionVerdict::Allowed { rule: format!("127.0.0.1/32:{}", address.port()) }
    );
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(1, "127.0.0.1", address.port());
    let (mut upstream, _) = server.accept().await.unwrap();
    upstream.write_all(b"220 hello\r\n").await.unwrap();
    helper.hear_until(&Said::Data(1, b"220 hello\r\n".to_vec())).await;
}

#[tokio::test]
async fn a_stream_that_is_not_read_takes_no_more_than_its_window_and_stalls_no_other() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(1, "127.0.0.1", address.port());
    let (mut flooding, _) = server.accept().await.unwrap();
    helper.open(3, "127.0.0.1", address.port());
    let (mut quiet, _) = server.accept().await.unwrap();
    let flood = tokio::spawn(async move {
        let chunk = [1; 64 * 1024];
        while flooding.write_all(&chunk).await.is_ok() {}
    });
    let mut taken = 0;
    while taken < STREAM_WINDOW_BYTES as usize {
        if let Some(Said::Data(1, data)) = helper.hear().await {
            taken += data.len();
        }
    }
    quiet.write_all(b"small").await.unwrap();
    loop {
        let said = helper.hear().await.unwrap();
        assert!(!matches!(said, Said::Data(1, _)), "more than the window was sent");
        if said == Said::Data(3, b"small".to_vec()) {
            break;
        }
    }
    flood.abort();
}

#[tokio::test]
async fn a_port_inside_is_connected_to() {
    let mut helper = TestHelper::start(&["example.org".into()]).await;
    let relay = helper.relay.take().unwrap();
    let connecting = tokio::spawn(async move { relay.connect(8080).await.map(|it| (it, relay)) });
    assert_eq!(helper.hear().await, Some(Said::Connect(2, 8080)));
    helper.say(&FromHelper::Opened(2));
    let (mut stream, _relay) = connecting.await.unwrap().unwrap();
    stream.write_all(b"hello").await.unwrap();
    helper.hear_until(&Said::Data(2, b"hello".to_vec())).await;
    helper.say(&FromHelper::Data(2, b"back"));
    helper.say(&FromHelper::End(2));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "back");
}
