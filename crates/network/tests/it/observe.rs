//! What is let through only to be seen.

use stockade_agent::protocol::network::FromHelper;
use stockade_network::ConnectionVerdict;
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

#[tokio::test]
async fn what_no_rule_names_is_let_through_and_the_rule_that_would_do_is_told() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    // The address alone is opened by a rule: no name that leads to it is.
    let mut helper = TestHelper::start(&["observe".into(), rule_for(address)]).await;
    helper.open(1, "LOCALHOST", address.port());
    let (upstream, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    // Told before the program hears of its connection.
    assert_eq!(helper.log.observed(), [format!("localhost:{}", address.port())]);
    drop(upstream);
    helper.hear_until(&Said::End(1)).await;
    helper.say(&FromHelper::End(1));
    let record = helper.wait_for_records(1).await.remove(0);
    assert_eq!(record.verdict, ConnectionVerdict::Allowed { rule: "observe".into() });
}

#[tokio::test]
async fn special_addresses_and_denied_hosts_stay_closed_and_need_no_rule() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let mut helper = TestHelper::start(&["observe".into(), "!b.org".into()]).await;
    let hosts = ["127.0.0.1", "localhost", "::1", "169.254.169.254", "10.0.0.1", "b.org", "127.1"];
    for (number, host) in (1..).step_by(2).zip(hosts) {
        helper.open(number, host, port);
        let said = helper.hear().await.unwrap();
        assert!(matches!(said, Said::Refused(of, _) if of == number), "{host}: {said:?}");
    }
    for record in helper.wait_for_records(hosts.len()).await {
        assert!(matches!(record.verdict, ConnectionVerdict::Denied { .. }), "{record:?}");
    }
    assert!(helper.log.observed().is_empty());
    let visited = tokio::time::timeout(std::time::Duration::ZERO, server.accept()).await;
    assert!(visited.is_err(), "the server was connected to");
}

#[tokio::test]
async fn a_name_is_answered_for_at_the_usual_ports() {
    let mut helper = TestHelper::start(&["observe".into()]).await;
    helper.say(&FromHelper::Lookup(1, "a.org"));
    let Some(Said::Found(1, ports)) = helper.hear().await else { panic!("no answer") };
    assert!([22, 80, 443, 8080].iter().all(|port| ports.contains(port)), "{ports:?}");
    assert!(helper.log.records().is_empty());
}

#[tokio::test]
async fn nothing_is_observed_under_other_rules_and_connections_end_with_the_observation() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&["observe".into(), rule_for(address)]).await;
    helper.open(1, "localhost", address.port());
    let _upstream = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    helper.egress.replace_rules(vec![rule_for(address).parse().unwrap()]);
    helper.hear_until(&Said::Reset(1)).await;
    helper.open(3, "127.0.0.1", address.port());
    let _upstream = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(3)).await;
    assert_eq!(helper.log.observed().len(), 1);
}
