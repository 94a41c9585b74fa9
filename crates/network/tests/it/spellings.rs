//! Names in other writings and spellings: a name is what its letters are, and nothing is mapped to it.

use std::net::Ipv4Addr;

use proptest::prelude::*;
use stockade_agent::protocol::network::{FromHelper, Via};
use stockade_agent::protocol::split_frame;
use stockade_core::EgressRule;
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, network_asking};
use crate::name_server::{TestNameServer, TestRecord};
use crate::names::hear_outcome;

/// The name that rules allow: that of `bücher.test` as resolvers have it.
const BOOKS: &str = "xn--bcher-kva.test";
const EVERY_WAY: [Via; 4] = [Via::Name, Via::Connect, Via::Http, Via::Socks];

/// What a browser or a library might take for the name, or for another one that it is not.
const OTHER_WRITINGS: [&str; 16] = [
    "bücher.test",
    "BÜCHER.test",
    "bu\u{308}cher.test",
    "b%C3%BCcher.test",
    "xn--bcher-kva\u{3002}test",
    "xn--bcher-kva\u{ff0e}test",
    "xn--bcher-kva\u{ff61}test",
    "\u{ff58}n--bcher-kva.test",
    "xn--bcher-\u{212a}va.test",
    "xn--bcher\u{2010}-kva.test",
    "xn--bcher-kva.te\u{ad}st",
    "xn--bcher-kva\u{200b}.test",
    "xn--bcher-kva.te\u{17f}t",
    "xn--bcher-kva%2etest",
    "xn--bcher-kva.test .evil.test",
    "xn--bcher-kva.test..",
];

/// A server at one port, and a name server that leads every name there.
struct Everywhere {
    server: TcpListener,
    names: TestNameServer,
    port: u16,
}

impl Everywhere {
    async fn start() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let names = TestNameServer::start(|name, _| {
            // It lives as long as the test's process, and so may the name.
            let owner: &'static str = name.to_owned().leak();
            vec![TestRecord::Address(owner, Ipv4Addr::LOCALHOST)]
        });
        Self { server, names, port }
    }

    /// A helper under these rules, beside one for the server's address.
    async fn helper(&self, rules: &[&str]) -> TestHelper {
        let rules = rules.iter().map(ToString::to_string);
        let rules: Vec<_> = rules.chain([format!("127.0.0.1:{}", self.port)]).collect();
        TestHelper::start_shared(&rules, network_asking(self.names.address)).await
    }
}

fn open_by(helper: &TestHelper, stream: u32, host: &str, port: u16, via: Via) {
    helper.say(&FromHelper::Open { stream, host, port, via });
}

#[tokio::test]
async fn only_the_letters_of_an_international_name_open_it() {
    let place = Everywhere::start().await;
    let mut helper = place.helper(&[&format!("{BOOKS}:{}", place.port)]).await;
    let mut number = 1;
    for host in OTHER_WRITINGS {
        helper.say(&FromHelper::Lookup(number, host));
        assert_eq!(helper.hear().await, Some(Said::Found(number, Vec::new())), "{host:?}");
        for via in EVERY_WAY {
            open_by(&helper, number, host, place.port, via);
            let outcome = hear_outcome(&mut helper, number).await;
            assert!(outcome.is_err_and(|reason| reason.contains("is no host name")), "{host:?}");
            number += 2;
        }
    }
    assert_eq!(place.names.asked(), [""; 0]);
    for host in [BOOKS, "XN--BCHER-KVA.Test", "xn--bcher-kva.test."] {
        for via in EVERY_WAY {
            open_by(&helper, number, host, place.port, via);
            assert_eq!(hear_outcome(&mut helper, number).await, Ok(()), "{host:?}");
            place.server.accept().await.unwrap();
            number += 2;
        }
    }
    assert_eq!(place.names.asked(), [BOOKS]);
}

#[tokio::test]
async fn no_spelling_of_an_international_name_evades_a_rule_that_denies_it() {
    let place = Everywhere::start().await;
    let (denied, port) = (format!("!{BOOKS}"), place.port);
    let wildcards = [format!("*.test:{port}"), format!("**.test:{port}")];
    for rules in [
        &[wildcards[0].as_str(), wildcards[1].as_str(), denied.as_str()][..],
        &["observe", &denied],
    ] {
        let mut helper = place.helper(rules).await;
        let spellings = [BOOKS, "XN--BCHER-KVA.TEST", "Xn--Bcher-Kva.test."];
        for (number, host) in (1..).step_by(2).zip(spellings.iter().chain(&OTHER_WRITINGS)) {
            open_by(&helper, number, host, place.port, Via::Connect);
            assert!(hear_outcome(&mut helper, number).await.is_err(), "{host:?} under {rules:?}");
        }
    }
    assert_eq!(place.names.asked(), [""; 0]);
}

#[test]
fn a_rule_in_another_writing_is_refused_where_it_is_given() {
    for rule in
        ["bücher.test", "!bücher.test", "*.bücher.test", "xn--bcher-kva。test", "GET@bücher.test/x"]
    {
        assert!(rule.parse::<EgressRule>().is_err(), "{rule}");
    }
    assert_eq!("XN--BCHER-KVA.Test".parse::<EgressRule>().unwrap().to_string(), BOOKS);
}

/// A message that opens a stream to these bytes, whatever they are.
fn frame_of(host: &[u8], port: u16) -> Vec<u8> {
    let like = "x".repeat(host.len());
    let mut frame = Vec::new();
    let open = FromHelper::Open { stream: 1, host: &like, port, via: Via::Socks };
    open.encode(&mut frame).unwrap();
    let at = frame.windows(like.len().max(1)).position(|window| window == like.as_bytes());
    if let Some(at) = at {
        frame[at..at + host.len()].copy_from_slice(host);
    }
    frame
}

fn any_host() -> impl Strategy<Value = Vec<u8>> {
    let parts = [
        "pages",
        "PAGES",
        ".",
        "test",
        "Test",
        ".test",
        "pages.test",
        "evil.",
        "\0",
        "@",
        ":",
        "/",
        "%2e",
        "%00",
        "xn--",
        "-",
        "_",
        "*",
        "127.0.0.2",
        "0x7f000002",
        "2130706434",
        "[",
        "]",
        "::1",
        "ü",
        "。",
        "ſ",
        "\u{ad}",
        " ",
        "\n",
    ];
    let piece = prop_oneof![
        6 => proptest::sample::select(parts.to_vec()).prop_map(|part| part.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
    ];
    proptest::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_in_the_place_of_a_host_open_the_one_that_is_allowed_or_nothing(host in any_host()) {
        let is_it = |host: &[u8]| {
            let host = host.strip_suffix(b".").unwrap_or(host);
            host.eq_ignore_ascii_case(b"pages.test")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (outcome, asked) = runtime.block_on(async {
            let place = Everywhere::start().await;
            let mut helper = place.helper(&[&format!("pages.test:{}", place.port)]).await;
            let frame = frame_of(&host, place.port);
            let (body, _) = split_frame(&frame).unwrap().unwrap();
            // No text has control characters, or bytes that are none.
            let is_message = FromHelper::decode(body).is_ok();
            helper.say_bytes(&frame);
            let outcome = if is_message {
                hear_outcome(&mut helper, 1).await.is_ok()
            } else {
                // The helper is ended over it.
                helper.wait_for_end().await;
                false
            };
            (outcome, place.names.asked())
        });
        prop_assert_eq!(outcome, is_it(&host), "{}", host.escape_ascii());
        let expected: &[&str] = if outcome { &["pages.test"] } else { &[] };
        prop_assert_eq!(asked, expected);
    }
}
