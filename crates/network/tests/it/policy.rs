//! What is refused, and how rules change.

use stockade_agent::protocol::network::FromHelper;
use stockade_network::ConnectionVerdict;
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

#[tokio::test]
async fn a_name_gets_the_ports_of_its_rules_and_others_get_none() {
    let rules = ["a.org", "a.org:8080", "**.b.org:22"].map(String::from);
    let mut helper = TestHelper::start(&rules).await;
    for (query, name, ports) in
        [(1, "a.org", vec![80, 443, 8080]), (2, "x.y.b.org", vec![22]), (3, "c.org", vec![])]
    {
        helper.say(&FromHelper::Lookup(query, name));
        assert_eq!(helper.hear().await, Some(Said::Found(query, ports)));
    }
    let record = helper.wait_for_records(1).await.remove(0);
    assert_eq!((record.host.as_str(), record.port), ("c.org", None));
    assert_eq!(
        record.verdict,
        ConnectionVerdict::Denied {
            reason: "no rule allows `c.org:443`; `--net c.org` would".into(),
            missing_rule: Some("c.org".into()),
        }
    );
}

#[tokio::test]
async fn a_lookup_that_no_rule_could_allow_proposes_none() {
    let rules = ["**.a.org", "!b.a.org"].map(String::from);
    let mut helper = TestHelper::start(&rules).await;
    for (query, name) in [(1, "b.a.org"), (2, "no_host.org")] {
        helper.say(&FromHelper::Lookup(query, name));
        assert_eq!(helper.hear().await, Some(Said::Found(query, vec![])));
    }
    let reasons = ["`b.a.org:443` is denied by `!b.a.org`", "`no_host.org` is no host name"];
    for (record, why) in helper.wait_for_records(2).await.into_iter().zip(reasons) {
        let denied = ConnectionVerdict::Denied { reason: why.into(), missing_rule: None };
        assert_eq!(record.verdict, denied);
    }
}

#[tokio::test]
async fn an_allowed_name_that_does_not_exist_fails_in_plain_words() {
    // The resolver knows by itself that there are no names below `invalid`.
    let mut helper = TestHelper::start(&["gone.invalid".into()]).await;
    helper.open(1, "gone.invalid", 443);
    assert_eq!(helper.hear().await, Some(Said::Refused(1, "no such name".into())));
    let record = helper.wait_for_records(1).await.remove(0);
    let (rule, reason) = (Some("gone.invalid".into()), "no such name".into());
    assert_eq!(record.verdict, ConnectionVerdict::Failed { rule, reason });
}

#[tokio::test]
async fn what_no_rule_means_is_refused_and_nobody_is_connected_to() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let rules = [format!("localhost:{port}"), format!("0.0.0.0/0:{port}"), "a.org".into()];
    let mut helper = TestHelper::start(&rules).await;
    let hosts = ["b.org", "127.0.0.1", "localhost", "127.1", "0x7f000001", "a.org\u{7f}", "[::1]"];
    for (number, host) in (1..).step_by(2).zip(hosts) {
        helper.open(number, host, port);
        let said = helper.hear().await.unwrap();
        assert!(matches!(said, Said::Refused(of, _) if of == number), "{host}: {said:?}");
    }
    let visited = tokio::time::timeout(std::time::Duration::ZERO, server.accept()).await;
    assert!(visited.is_err(), "somebody was connected to");
}

#[tokio::test]
async fn other_rules_cut_what_they_deny_and_nothing_else() {
    let servers = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let addresses = servers.each_ref().map(|server| server.local_addr().unwrap());
    let mut helper = TestHelper::start(&addresses.map(rule_for)).await;
    let mut upstream = Vec::new();
    for (number, server) in [1, 3].into_iter().zip(&servers) {
        helper.open(number, "127.0.0.1", server.local_addr().unwrap().port());
        upstream.push(server.accept().await.unwrap());
        helper.hear_until(&Said::Opened(number)).await;
    }
    helper.egress.replace_rules(vec![rule_for(addresses[1]).parse().unwrap()]);
    helper.hear_until(&Said::Reset(1)).await;
    helper.say(&FromHelper::Data(3, b"\x01still"));
    let mut buffer = [0; 6];
    tokio::io::AsyncReadExt::read_exact(&mut upstream[1].0, &mut buffer).await.unwrap();
    assert_eq!(&buffer, b"\x01still");
}
