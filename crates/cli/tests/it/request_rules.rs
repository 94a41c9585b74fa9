//! Rules with methods and paths by `--net`: real programs inside, real servers outside.

use serde_json::Value;

use crate::common::CliPlace;
use crate::common::lasting::Lasting;
use crate::network::KNOWN_NAME;
use crate::secrets::start_servers;

#[test]
fn a_rule_that_could_be_read_in_two_ways_is_refused() {
    let place = CliPlace::new();
    for (rule, part) in [
        ("a.test/v1/../x", "can be read in two ways"),
        ("10.0.0.1/v1", "of an address"),
        ("get@a.test", "in capitals"),
        ("a.test/*/x", "`/*` at its end"),
    ] {
        let done = place.stockade(&["run", "--net", rule, "--", "true"]);
        done.code_is(125);
        assert!(done.stderr.contains(part), "{rule}: {done:?}");
    }
    let net = "HEAD+GET@a.test/v1/*,!a.test/v1/keys";
    let explained = place.stockade(&["explain", "--net", net, "--", "true"]);
    assert!(explained.stdout.contains("GET+HEAD@a.test/v1/, !a.test/v1/keys"), "{explained:?}");
}

mod needs_python {
    use super::*;

    /// Fetches one page after the other, and prints what became of each.
    fn fetch_program(pages: &[(&str, &str)]) -> String {
        let list: String =
            pages.iter().map(|(method, url)| format!("('{method}', '{url}'),")).collect();
        format!(
            "import urllib.request as u\n\
             for method, url in [{list}]:\n\
             \x20   try: print(u.urlopen(u.Request(url, method=method), timeout=30).read().decode())\n\
             \x20   except Exception as error: print('failed', getattr(error, 'code', error))"
        )
    }

    fn judges_requests(place: &CliPlace) {
        let (internet, server) = start_servers(place);
        let (http, https) = (internet.port, server.port);
        let net = format!(
            "GET@{KNOWN_NAME}:{http}/v1,GET@{KNOWN_NAME}:{https}/v1,!{KNOWN_NAME}/v1/keys,\
             127.0.0.1:{http},127.0.0.1:{https}"
        );
        let (plain, tls) =
            (format!("http://{KNOWN_NAME}:{http}"), format!("https://{KNOWN_NAME}:{https}"));
        let (allowed, opened) = (format!("{plain}/v1/a?b"), format!("{tls}/v1/a?b"));
        let program = fetch_program(&[("GET", &allowed), ("GET", &opened)]);
        let run = |program: &str| {
            place.stockade(&["run", "--net", &net, "--", "/usr/bin/python3", "-c", program])
        };
        run(&program).is(0, "hello\nseen: nothing\n", "");
        assert!(server.seen.recv().unwrap().starts_with("GET /v1/a?b HTTP/1.1\r\n"));
        let refused = [
            ("GET", format!("{tls}/v2?token=hush")),
            ("POST", format!("{tls}/v1")),
            ("GET", format!("{plain}/v1/keys")),
            ("GET", format!("{plain}/v1/%2e%2e/v2")),
        ];
        let refused = refused.each_ref().map(|(method, url)| (*method, url.as_str()));
        let done = run(&fetch_program(&refused));
        let flag = format!("allow with --net GET@{KNOWN_NAME}:{https}/v2");
        let told =
            format!("the network denied GET /v2 at {KNOWN_NAME}:{https} and 3 more ({flag})");
        done.is(0, &"failed 403\n".repeat(4), &format!("stockade: {told}\n"));
        assert!(server.seen.try_recv().is_err(), "the server was asked");
        place.assert_nothing_is_left();
    }

    #[test]
    fn requests_are_judged_by_method_and_path() {
        judges_requests(&CliPlace::new());
    }

    #[test]
    fn requests_are_judged_for_an_ordinary_user() {
        judges_requests(&CliPlace::of_an_ordinary_user());
    }

    #[test]
    fn rules_for_requests_change_while_a_sandbox_runs() {
        let place = Lasting::new();
        let (_internet, server) = start_servers(&place);
        let port = server.port;
        let address = format!("127.0.0.1:{port}");
        let id = place.create(&["--net", &format!("GET@{KNOWN_NAME}:{port}/v1,{address}")]);
        let url = format!("https://{KNOWN_NAME}:{port}/v2");
        let program = fetch_program(&[("GET", &url)]);
        let fetch = || place.stockade(&["exec", &id, "--", "/usr/bin/python3", "-c", &program]);
        assert_eq!(fetch().stdout, "failed 403\n");
        let rule = format!("GET@{KNOWN_NAME}:{port}/v2");
        let shown = place.stockade(&["net", &id, "--allow", &rule]);
        assert!(shown.stdout.contains(&format!("{rule}\n")), "{shown:?}");
        fetch().is(0, "seen: nothing\n", "");
        place.stockade(&["net", &id, "--deny", &rule]).code_is(0);
        assert_eq!(fetch().stdout, "failed 403\n");
        // It shows them until the sandbox ends.
        place.stockade(&["kill", &id]).code_is(0);
        let report = place.stockade(&["--json", "logs", &id, "--net"]);
        let first: Value = serde_json::from_str(report.stdout.lines().next().unwrap()).unwrap();
        assert_eq!(first["event"]["request"], "GET /v2", "{first}");
    }

    #[test]
    fn a_sandbox_without_an_authority_gets_no_rules_for_requests() {
        let place = Lasting::new();
        let id = place.create(&["--net", "a.test"]);
        let done = place.stockade(&["net", &id, "--allow", "GET@a.test/v1"]);
        done.is_refused(&["`GET@a.test/v1`", "authority", "GET@host/path"]);
    }
}
