//! A helper that was taken over: whatever it says, it ends itself alone.

use stockade_agent::protocol::network::{FromHelper, STREAM_WINDOW_BYTES, Via};
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

/// Fails unless the relay ends over this.
async fn ends_over(messages: &[FromHelper<'_>]) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(1, "127.0.0.1", address.port());
    helper.hear_until(&Said::Opened(1)).await;
    for message in messages {
        helper.say(message);
    }
    helper.wait_for_end().await;
}

#[tokio::test]
async fn a_message_that_does_not_fit_ends_it() {
    let open = |stream| FromHelper::Open { stream, host: "a.org", port: 80, via: Via::Name };
    ends_over(&[FromHelper::Ready]).await;
    ends_over(&[FromHelper::Failed("x")]).await;
    ends_over(&[open(1)]).await;
    ends_over(&[open(2)]).await;
    ends_over(&[FromHelper::Credit(1, 1)]).await;
    ends_over(&[FromHelper::End(1), FromHelper::Data(1, b"more")]).await;
}

#[tokio::test]
async fn streams_are_opened_in_any_order_and_closed_numbers_are_free() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address)]).await;
    for stream in [3, 1, 7, 5] {
        helper.open(stream, "127.0.0.1", address.port());
        helper.hear_until(&Said::Opened(stream)).await;
    }
    helper.open(9, "other.test", address.port());
    assert!(matches!(helper.hear().await, Some(Said::Refused(9, _))));
    helper.open(9, "127.0.0.1", address.port());
    helper.hear_until(&Said::Opened(9)).await;
}

#[tokio::test]
async fn data_beyond_credit_ends_it() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let helper = TestHelper::start(&[rule_for(address)]).await;
    helper.open(1, "127.0.0.1", address.port());
    // Accepted by nobody and read by nobody.
    let chunk = [0; 64 * 1024];
    for _ in 0..=(STREAM_WINDOW_BYTES as usize * 64 / chunk.len()) {
        helper.say(&FromHelper::Data(1, &chunk));
    }
    helper.wait_for_end().await;
}

#[tokio::test]
async fn bytes_that_are_no_message_end_it() {
    for bytes in [&[0xFF; 64][..], &[1, 0, 0, 0, 99], &[0, 0, 0, 0]] {
        let helper = TestHelper::start(&["a.org".into()]).await;
        helper.say_bytes(bytes);
        helper.wait_for_end().await;
    }
}
