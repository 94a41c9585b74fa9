//! What one sandbox may use of the network.

use std::num::NonZeroU32;
use std::sync::Arc;

use stockade_agent::protocol::network::FromHelper;
use stockade_core::Bytes;
use stockade_network::{
    ConnectionRecord, ConnectionVerdict, EgressLimits, TenantBudget, TenantPlace,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

fn denied_reason(record: &ConnectionRecord) -> &str {
    let ConnectionVerdict::Denied { reason, missing_rule: None } = &record.verdict else {
        panic!("{record:?}")
    };
    reason
}

#[tokio::test]
async fn connections_beyond_the_rate_are_refused_and_recorded_with_the_reason() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let connections_per_second = NonZeroU32::new(1);
    let limits = EgressLimits { connections_per_second, ..EgressLimits::default() };
    let mut helper = TestHelper::start_limited(&[rule_for(address)], limits).await;
    let asked = 20;
    for number in (1..).step_by(2).take(asked) {
        helper.open(number, "127.0.0.1", address.port());
    }
    let mut refused = 0;
    // The rest, of which there is at least one, is open.
    while refused < asked / 2 {
        if let Said::Refused(_, reason) = helper.hear().await.unwrap() {
            assert!(reason.contains("network.connectionsPerSecond"), "{reason}");
            refused += 1;
        }
    }
    for record in helper.wait_for_records(refused).await {
        assert!(denied_reason(&record).contains("1 connections in a second"), "{record:?}");
    }
    let accepted = tokio::time::timeout(std::time::Duration::from_secs(60), server.accept()).await;
    assert!(accepted.is_ok(), "none was let through");
}

#[tokio::test]
async fn connections_beyond_the_number_at_once_are_refused_and_recorded_with_the_reason() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let limits = EgressLimits { connections: 1, ..EgressLimits::default() };
    let mut helper = TestHelper::start_limited(&[rule_for(address)], limits).await;
    helper.open(1, "127.0.0.1", address.port());
    helper.hear_until(&Said::Opened(1)).await;
    helper.open(3, "127.0.0.1", address.port());
    let reason = loop {
        let said = helper.hear().await.unwrap();
        assert_ne!(said, Said::Opened(3));
        if let Said::Refused(3, reason) = said {
            break reason;
        }
    };
    assert!(reason.contains("too many connections"), "{reason}");
    // The first one is open, and recorded when it ends.
    let record = helper.wait_for_records(1).await.remove(0);
    assert!(denied_reason(&record).contains("`network.connections`"), "{record:?}");
    assert_eq!((record.host.as_str(), record.port), ("127.0.0.1", Some(address.port())));
}

#[tokio::test]
async fn a_sandbox_that_has_used_its_bytes_is_cut_off_with_the_reason() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let limits = EgressLimits { bytes: Some(Bytes(10)), ..EgressLimits::default() };
    let mut helper = TestHelper::start_limited(&[rule_for(address)], limits).await;
    helper.open(1, "127.0.0.1", address.port());
    let (mut upstream, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    helper.say(&FromHelper::Data(1, b"\x00four"));
    let mut sent = [0; 5];
    upstream.read_exact(&mut sent).await.unwrap();
    upstream.write_all(b"12345").await.unwrap();
    helper.hear_until(&Said::Data(1, b"12345".to_vec())).await;
    // Exactly as much as may be: nothing is cut yet.
    helper.say(&FromHelper::Data(1, b"more"));
    helper.hear_until(&Said::Reset(1)).await;
    let mut rest = Vec::new();
    let _ = upstream.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{rest:?}");
    let record = helper.wait_for_records(1).await.remove(0);
    assert!(denied_reason(&record).contains("10b in all"), "{record:?}");
    helper.open(3, "127.0.0.1", address.port());
    let said = helper.hear().await.unwrap();
    assert!(
        matches!(&said, Said::Refused(3, reason) if reason.contains("network.bytes")),
        "{said:?}"
    );
}

/// A tenant that may have one connection at a time, over all of its sandboxes.
#[derive(Default)]
struct OnePlace(Arc<()>);

impl TenantBudget for OnePlace {
    fn begin_connection(&self) -> Result<TenantPlace, String> {
        if Arc::strong_count(&self.0) > 1 {
            return Err("the tenant has one connection".into());
        }
        Ok(Box::new(Arc::clone(&self.0)))
    }

    fn take_bytes(&self, wanted: u64) -> u64 {
        wanted
    }

    fn describe_spent(&self) -> String {
        String::new()
    }
}

#[tokio::test]
async fn a_place_among_the_connections_of_a_tenant_is_free_when_the_connection_is_over() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let budget = Arc::new(OnePlace::default());
    let (rules, limits) = ([rule_for(address)], EgressLimits::default());
    let shared = || {
        let budget = Arc::clone(&budget);
        |egress: stockade_network::Egress| egress.with_tenant_budget(budget)
    };
    let mut one = TestHelper::start_egress(&rules, limits, shared()).await;
    let mut other = TestHelper::start_egress(&rules, limits, shared()).await;
    one.open(1, "127.0.0.1", address.port());
    let (upstream, _) = server.accept().await.unwrap();
    one.hear_until(&Said::Opened(1)).await;
    other.open(1, "127.0.0.1", address.port());
    let said = other.hear().await.unwrap();
    assert!(
        matches!(&said, Said::Refused(1, reason) if reason.contains("one connection")),
        "{said:?}"
    );
    let record = other.wait_for_records(1).await.remove(0);
    assert_eq!(denied_reason(&record), "the tenant has one connection");
    // Over on both sides, and recorded, which comes after its place was given back.
    drop(upstream);
    one.say(&FromHelper::End(1));
    one.wait_for_records(1).await;
    other.open(3, "127.0.0.1", address.port());
    server.accept().await.unwrap();
    other.hear_until(&Said::Opened(3)).await;
}
