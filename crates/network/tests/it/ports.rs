//! Connections to ports inside.

use std::net::Ipv4Addr;
use std::sync::Arc;

use stockade_agent::protocol::network::{FromHelper, Via};
use stockade_core::ErrorCode;
use stockade_network::{ConnectionVerdict, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

fn take_relay(helper: &mut TestHelper) -> Arc<Relay> {
    Arc::new(helper.relay.take().unwrap())
}

/// Connects to port 8080 while the helper says this.
async fn connect_while(
    helper: &mut TestHelper,
    relay: &Arc<Relay>,
    answer: FromHelper<'_>,
) -> stockade_core::Result<stockade_network::PortStream> {
    let connecting = tokio::spawn({
        let relay = Arc::clone(relay);
        async move { relay.connect(8080).await }
    });
    assert_eq!(helper.hear().await, Some(Said::Connect(2, 8080)));
    helper.say(&answer);
    connecting.await.unwrap()
}

#[tokio::test]
async fn a_helper_for_ports_alone_listens_nowhere_and_carries_them() {
    let mut helper = TestHelper::start_for_ports().await;
    let relay = take_relay(&mut helper);
    let mut stream = connect_while(&mut helper, &relay, FromHelper::Opened(2)).await.unwrap();
    assert_eq!(helper.setup, None);
    assert!(relay.egress().is_none());
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    helper.hear_until(&Said::Data(2, b"question".to_vec())).await;
    helper.hear_until(&Said::End(2)).await;
    helper.say(&FromHelper::Data(2, b"answer"));
    helper.say(&FromHelper::End(2));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "answer");
}

#[tokio::test]
async fn a_helper_with_rules_is_told_where_to_listen() {
    let mut helper = TestHelper::start(&["a.org".into()]).await;
    helper.say(&FromHelper::Lookup(1, "a.org"));
    assert_eq!(helper.hear().await, Some(Said::Found(1, vec![80, 443])));
    let address = helper.setup.map(|setup| Ipv4Addr::from(setup.address));
    assert_eq!(address, Some(stockade_network::NAME_SERVER));
}

#[tokio::test]
async fn a_helper_for_ports_alone_that_asks_for_another_host_is_ended() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    for message in [
        FromHelper::Lookup(1, "localhost"),
        FromHelper::Open { stream: 1, host: "127.0.0.1", port, via: Via::Socks },
    ] {
        let helper = TestHelper::start_for_ports().await;
        helper.say(&message);
        helper.wait_for_end().await;
    }
    let visited = tokio::time::timeout(std::time::Duration::ZERO, server.accept()).await;
    assert!(visited.is_err(), "somebody was connected to");
}

#[tokio::test]
async fn a_port_at_which_nothing_listens_is_not_found() {
    let mut helper = TestHelper::start_for_ports().await;
    let relay = take_relay(&mut helper);
    let refused = connect_while(&mut helper, &relay, FromHelper::Reset(2)).await;
    let error = refused.err().unwrap();
    assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
    assert!(error.message().contains("8080"), "{error}");
}

#[tokio::test]
async fn a_relay_that_is_closed_resets_its_streams_and_opens_no_more() {
    let mut helper = TestHelper::start_for_ports().await;
    let relay = take_relay(&mut helper);
    let mut stream = connect_while(&mut helper, &relay, FromHelper::Opened(2)).await.unwrap();
    relay.close();
    assert!(stream.read_u8().await.is_err());
    assert!(!relay.is_open());
    assert_eq!(relay.connect(8080).await.err().map(|error| error.code()), Some(ErrorCode::Gone));
}

#[tokio::test]
async fn connections_to_ports_take_no_room_from_those_of_programs() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    let relay = take_relay(&mut helper);
    let connecting = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move {
            let mut open = Vec::new();
            while let Ok(stream) = relay.connect(8080).await {
                open.push(stream);
            }
            open
        }
    });
    let mut opened = 0;
    while opened < 256 {
        if let Some(Said::Connect(number, _)) = helper.hear().await {
            helper.say(&FromHelper::Opened(number));
            opened += 1;
        }
    }
    let open = connecting.await.unwrap();
    assert_eq!(open.len(), 256);
    helper.open(1, "127.0.0.1", address.port());
    helper.hear_until(&Said::Opened(1)).await;
    drop(open);
    relay.close();
    let record = helper.wait_for_records(1).await.remove(0);
    assert!(matches!(record.verdict, ConnectionVerdict::Allowed { .. }), "{record:?}");
}
