//! Names that lead elsewhere than they seem to, and names that carry data: with the test's own name server as witness of
//! what was asked.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stockade_agent::protocol::network::{FromHelper, Via};
use stockade_network::ConnectionVerdict;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, network_asking};
use crate::name_server::{TestNameServer, TestRecord};

/// The name that rules allow.
const PAGES: &str = "pages.test";
/// Where the server is that rules allow.
const NEAR: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Where a server is that no rule allows.
const FAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Two servers at one port: the first one's address is allowed.
struct TwoServers {
    near: TcpListener,
    far: TcpListener,
    port: u16,
}

impl TwoServers {
    async fn start() -> Self {
        // A port that is free at one address may be taken at the other.
        loop {
            let near = TcpListener::bind((NEAR, 0)).await.unwrap();
            let port = near.local_addr().unwrap().port();
            if let Ok(far) = TcpListener::bind((FAR, port)).await {
                return Self { near, far, port };
            }
        }
    }

    async fn helper(&self, names: &TestNameServer) -> TestHelper {
        let rules =
            [format!("{PAGES}:{}", self.port), SocketAddr::from((NEAR, self.port)).to_string()];
        TestHelper::start_shared(&rules, network_asking(names.address)).await
    }

    async fn assert_far_unvisited(&self) {
        let visited = tokio::time::timeout(Duration::ZERO, self.far.accept()).await;
        assert!(visited.is_err(), "the address that no rule allows was connected to");
    }
}

/// The next thing that is said of a stream: that it is open, or why not.
pub async fn hear_outcome(helper: &mut TestHelper, stream: u32) -> Result<(), String> {
    loop {
        let said = helper.hear().await.unwrap();
        if said == Said::Opened(stream) {
            return Ok(());
        }
        if let Said::Refused(refused, reason) = said
            && refused == stream
        {
            return Err(reason);
        }
    }
}

#[tokio::test]
async fn a_chain_of_aliases_is_followed_to_an_address_that_is_allowed() {
    let servers = TwoServers::start().await;
    let whole = [
        TestRecord::Alias(PAGES, "edge.cdn.test"),
        TestRecord::Alias("edge.cdn.test", "node.cdn.test"),
        TestRecord::Address("node.cdn.test", NEAR),
    ];
    // All of it in one answer, and one link in each.
    for links in [3, 1] {
        let names = TestNameServer::start(move |name, _| {
            let known = whole.iter().position(|record| match record {
                TestRecord::Alias(owner, _) | TestRecord::Address(owner, _) => *owner == name,
            });
            let asked: Option<Vec<_>> =
                known.map(|first| whole[first..].iter().take(links).copied().collect());
            asked.unwrap_or_default()
        });
        let mut helper = servers.helper(&names).await;
        helper.open(1, PAGES, servers.port);
        assert_eq!(hear_outcome(&mut helper, 1).await, Ok(()));
        servers.near.accept().await.unwrap();
        assert!(names.asked().contains(&PAGES.to_owned()));
    }
    servers.assert_far_unvisited().await;
}

#[tokio::test]
async fn a_chain_of_aliases_to_a_closed_address_is_refused() {
    let servers = TwoServers::start().await;
    for closed in [FAR, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(169, 254, 169, 254)] {
        let names = TestNameServer::start(move |name, _| match name {
            PAGES => vec![
                TestRecord::Alias(PAGES, "inside.test"),
                TestRecord::Address("inside.test", closed),
            ],
            _ => Vec::new(),
        });
        let mut helper = servers.helper(&names).await;
        helper.open(1, PAGES, servers.port);
        let reason = hear_outcome(&mut helper, 1).await.unwrap_err();
        assert!(reason.contains("leads to a closed address"), "{reason}");
        let record = helper.wait_for_records(1).await.remove(0);
        assert!(
            matches!(&record.verdict, ConnectionVerdict::Denied { missing_rule: None, .. }),
            "{record:?}"
        );
        assert_eq!((record.host.as_str(), record.address), (PAGES, None));
    }
    servers.assert_far_unvisited().await;
}

#[tokio::test]
async fn an_alias_that_leads_to_an_address_that_a_rule_denies_is_refused() {
    let servers = TwoServers::start().await;
    let names = TestNameServer::start(|_, _| {
        vec![TestRecord::Alias(PAGES, "other.test"), TestRecord::Address("other.test", NEAR)]
    });
    let mut helper = servers.helper(&names).await;
    let denying = [format!("{PAGES}:{}", servers.port), "127.0.0.0/8".into(), "!127.0.0.1".into()];
    helper.egress.replace_rules(denying.iter().map(|rule| rule.parse().unwrap()).collect());
    helper.open(1, PAGES, servers.port);
    let reason = hear_outcome(&mut helper, 1).await.unwrap_err();
    assert!(reason.contains("is denied by `!127.0.0.1/32`"), "{reason}");
    let visited = tokio::time::timeout(Duration::ZERO, servers.near.accept()).await;
    assert!(visited.is_err(), "an address that a rule denies was connected to");
}

#[tokio::test]
async fn a_name_that_changes_between_check_and_connection_leads_where_it_was_checked() {
    let servers = TwoServers::start().await;
    let moved = Arc::new(AtomicBool::new(false));
    let (is_moved, mut first) = (Arc::clone(&moved), None);
    // One question is answered with the address that is allowed; every other, also the next, with the other one.
    let names = TestNameServer::start(move |_, number| {
        let is_first = *first.get_or_insert(number) == number && !is_moved.load(Ordering::SeqCst);
        vec![TestRecord::Address(PAGES, if is_first { NEAR } else { FAR })]
    });
    let mut helper = servers.helper(&names).await;
    helper.open(1, PAGES, servers.port);
    let (mut upstream, _) = servers.near.accept().await.unwrap();
    assert_eq!(hear_outcome(&mut helper, 1).await, Ok(()));
    moved.store(true, Ordering::SeqCst);
    // The next connection is checked anew, and the first one stays where it is.
    helper.open(3, PAGES, servers.port);
    let reason = hear_outcome(&mut helper, 3).await.unwrap_err();
    assert!(reason.contains("127.0.0.2 is loopback"), "{reason}");
    helper.say(&FromHelper::Data(1, b"\x00still"));
    let mut sent = [0; 6];
    upstream.read_exact(&mut sent).await.unwrap();
    upstream.write_all(b"here").await.unwrap();
    helper.hear_until(&Said::Data(1, b"here".to_vec())).await;
    servers.assert_far_unvisited().await;
}

#[tokio::test]
async fn of_several_addresses_the_closed_ones_are_left_out() {
    let servers = TwoServers::start().await;
    let names = TestNameServer::start(|_, _| {
        vec![TestRecord::Address(PAGES, FAR), TestRecord::Address(PAGES, NEAR)]
    });
    let mut helper = servers.helper(&names).await;
    helper.open(1, PAGES, servers.port);
    assert_eq!(hear_outcome(&mut helper, 1).await, Ok(()));
    servers.near.accept().await.unwrap();
    servers.assert_far_unvisited().await;
}

#[tokio::test]
async fn data_in_names_that_no_rule_allows_reaches_no_name_server() {
    let servers = TwoServers::start().await;
    let names = TestNameServer::start(|name, _| match name {
        PAGES => vec![TestRecord::Address(PAGES, NEAR)],
        _ => Vec::new(),
    });
    let mut helper = servers.helper(&names).await;
    let tunnel = ["c3RvbGVu.evil.test", "c3RvbGVu.pages.test", "pages.test.evil.test", "test"];
    for (number, name) in (1..).step_by(2).zip(tunnel) {
        helper.say(&FromHelper::Lookup(number, name));
        assert_eq!(helper.hear().await, Some(Said::Found(number, Vec::new())));
        for via in [Via::Connect, Via::Name] {
            let port = servers.port;
            helper.say(&FromHelper::Open { stream: number, host: name, port, via });
            let reason = hear_outcome(&mut helper, number).await.unwrap_err();
            assert!(reason.contains("no rule allows"), "{reason}");
        }
    }
    // A lookup of an allowed name asks nothing either: what is inside gets an invented address.
    helper.say(&FromHelper::Lookup(11, PAGES));
    assert_eq!(helper.hear().await, Some(Said::Found(11, vec![servers.port])));
    assert_eq!(names.asked(), [""; 0]);
    // The witness hears: a connection that is allowed asks it.
    helper.open(13, PAGES, servers.port);
    assert_eq!(hear_outcome(&mut helper, 13).await, Ok(()));
    assert_eq!(names.asked(), [PAGES]);
}

#[tokio::test]
async fn dns_over_https_to_an_address_is_refused() {
    let servers = TwoServers::start().await;
    let names = TestNameServer::start(|_, _| vec![TestRecord::Address(PAGES, NEAR)]);
    // The name is allowed, and so is its address at the port of the pages: a resolver elsewhere is not.
    let mut helper = servers.helper(&names).await;
    let far = FAR.to_string();
    for (number, (host, port)) in
        (1..).step_by(2).zip([(far.as_str(), servers.port), ("8.8.8.8", 443), ("dns.google", 443)])
    {
        helper.open(number, host, port);
        let reason = hear_outcome(&mut helper, number).await.unwrap_err();
        assert!(reason.contains("no rule allows"), "{reason}");
    }
    assert_eq!(names.asked(), [""; 0]);
    servers.assert_far_unvisited().await;
}
