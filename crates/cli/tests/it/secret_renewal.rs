//! Secrets by `--secret-command` whose values change: a real command, real programs inside, a real TLS server outside.

use std::fs;

use serde_json::Value;

use crate::common::lasting::Lasting;
use crate::common::{CliDone, CliPlace};
use crate::network::KNOWN_NAME;
use crate::secrets::{EchoServer, assert_holds_no, start_servers};

/// What every value begins with.
const VALUE_PREFIX: &str = "secret-number-";

/// Prints another value each time.
fn counting_command(place: &CliPlace) -> String {
    let path = place.path("count");
    fs::write(&path, "0").unwrap();
    let path = path.display();
    format!("KEY=n=$(($(cat '{path}') + 1)); echo $n > '{path}'; echo {VALUE_PREFIX}$n-of-the-test")
}

/// Asks for these pages, each with the secret.
fn fetch_program(server: &EchoServer, pages: &[&str]) -> String {
    format!(
        "import os, urllib.request as u\n\
         key = os.environ['KEY']\n\
         for page in {pages:?}:\n    \
         request = u.Request('https://{KNOWN_NAME}:{port}' + page, headers={{'Authorization': key}})\n    \
         try: print(u.urlopen(request, timeout=60).read().decode().replace(key, 'PLACEHOLDER'))\n    \
         except Exception as error: print('failed', getattr(error, 'code', error))",
        port = server.port
    )
}

/// The server was sent the values of these numbers.
#[track_caller]
fn assert_sent(server: &EchoServer, numbers: &[usize]) {
    for number in numbers {
        let seen = server.seen.recv().unwrap();
        let expected = format!("authorization: {VALUE_PREFIX}{number}-of-the-test\r\n");
        assert!(seen.contains(&expected), "{number}: {seen}");
    }
}

/// Every renewal that the journal has, as its cause and whether it failed.
fn read_renewals(place: &CliPlace) -> Vec<(String, bool)> {
    let mut renewals = Vec::new();
    for entry in fs::read_dir(place.state().join("journal")).unwrap().flatten() {
        let text = fs::read(entry.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for event in records.map(|record| record["event"].clone()) {
            if event["kind"] == "secretRenewal" {
                assert_eq!(event["secret"], "KEY");
                let cause = event["cause"].as_str().unwrap().to_owned();
                renewals.push((cause, event.get("failure").is_some()));
            }
        }
    }
    renewals
}

#[test]
fn a_value_that_has_expired_is_refused() {
    let place = CliPlace::new();
    let secret = format!("KEY={KNOWN_NAME}");
    for printed in [
        r#"{"value":"secret-number-1","expires":"2001-01-01T00:00:00Z"}"#,
        r#"{"value":"secret-number-1","expires":"soon"}"#,
        r#"{"secret-number-1":"value"}"#,
    ] {
        let command = format!("KEY=echo '{printed}'");
        let bound = ["--net", KNOWN_NAME, "--secret", &secret, "--secret-command", &command];
        let done = place.stockade(&[&["run"], &bound[..], &["--", "true"]].concat());
        done.code_is(125);
        assert!(done.stderr.contains("`KEY`"), "{}", done.stderr);
        assert!(!done.stderr.contains(VALUE_PREFIX), "{}", done.stderr);
    }
}

mod needs_python {
    use super::*;
    use crate::network::Internet;

    struct RenewedSandbox {
        place: Lasting,
        id: String,
        server: EchoServer,
        _internet: Internet,
    }

    impl RenewedSandbox {
        fn create(command: impl FnOnce(&CliPlace) -> String) -> Self {
            let place = Lasting::new();
            let (_internet, server) = start_servers(&place);
            let (rules, secret) = (server.rules(), format!("KEY={KNOWN_NAME}"));
            let command = command(&place.0);
            let bound = ["--net", &rules, "--secret", &secret, "--secret-command", &command];
            let id = place.create(&[&["--no-workspace"], &bound[..]].concat());
            Self { place, id, server, _internet }
        }

        fn fetch(&self, page: &str) -> CliDone {
            let program = fetch_program(&self.server, &[page]);
            let python = ["exec", &self.id, "--", "/usr/bin/python3", "-c", &program];
            self.place.stockade(&python)
        }

        #[track_caller]
        fn end(&self, renewals: &[(&str, bool)]) {
            self.place.stockade(&["rm", &self.id]).code_is(0);
            let recorded = read_renewals(&self.place);
            let recorded: Vec<_> = recorded.iter().map(|it| (it.0.as_str(), it.1)).collect();
            assert_eq!(recorded, renewals);
            assert_holds_no(&self.place.state(), VALUE_PREFIX);
            self.place.assert_nothing_is_left();
        }
    }

    #[test]
    fn a_command_of_a_run_is_asked_again_after_an_answer_of_401() {
        let place = CliPlace::new();
        let (_internet, server) = start_servers(&place);
        let (rules, secret) = (server.rules(), format!("KEY={KNOWN_NAME}"));
        let command = counting_command(&place);
        let program = fetch_program(&server, &["/", "/refused", "/"]);
        let bound = ["--net", &rules, "--secret", &secret, "--secret-command", &command];
        let python = ["--", "/usr/bin/python3", "-c", &program];
        let done = place.stockade(&[&["run"], &bound[..], &python[..]].concat());
        done.is(0, "seen: PLACEHOLDER\nfailed 401\nseen: PLACEHOLDER\n", "");
        assert_sent(&server, &[1, 1, 2]);
        assert_eq!(read_renewals(&place), [("unauthorized".to_owned(), false)]);
        assert_holds_no(&place.state(), VALUE_PREFIX);
        place.assert_nothing_is_left();
    }

    #[test]
    fn a_command_of_a_lasting_sandbox_is_asked_again_after_401_and_restore() {
        let sandbox = RenewedSandbox::create(counting_command);
        sandbox.fetch("/").is(0, "seen: PLACEHOLDER\n", "");
        sandbox.fetch("/refused").is(0, "failed 401\n", "");
        sandbox.fetch("/").is(0, "seen: PLACEHOLDER\n", "");
        let taken = sandbox.place.stockade(&["snapshot", "take", &sandbox.id]);
        taken.code_is(0);
        let restore = ["snapshot", "restore", &sandbox.id, taken.stdout.trim()];
        sandbox.place.stockade(&restore).is(0, "", "");
        sandbox.fetch("/").is(0, "seen: PLACEHOLDER\n", "");
        assert_sent(&sandbox.server, &[1, 1, 2, 3]);
        sandbox.end(&[("unauthorized", false), ("restored", false)]);
    }

    #[test]
    fn a_command_is_asked_again_after_a_pause() {
        let sandbox = RenewedSandbox::create(counting_command);
        sandbox.fetch("/").is(0, "seen: PLACEHOLDER\n", "");
        let paused = sandbox.place.stockade(&["pause", &sandbox.id]);
        if paused.stderr.contains("no control group can be frozen") {
            println!("skipped: no control group can be frozen here");
            assert!(std::env::var_os("CI").is_none(), "CI has a freezer");
            return;
        }
        paused.is(0, "", "");
        sandbox.place.stockade(&["resume", &sandbox.id]).is(0, "", "");
        sandbox.fetch("/").is(0, "seen: PLACEHOLDER\n", "");
        assert_sent(&sandbox.server, &[1, 2]);
        sandbox.end(&[("resumed", false)]);
    }

    #[test]
    fn requests_are_refused_and_told_while_a_command_fails() {
        let once = |place: &CliPlace| {
            let path = place.path("done");
            let path = path.display();
            format!("KEY=test ! -e '{path}' && touch '{path}' && echo {VALUE_PREFIX}1-of-the-test")
        };
        let sandbox = RenewedSandbox::create(once);
        sandbox.fetch("/refused").is(0, "failed 401\n", "");
        let refused = sandbox.fetch("/");
        assert_eq!((refused.code, refused.stdout.as_str()), (0, "failed 403\n"), "{refused:?}");
        for told in ["the network denied", "`KEY`", "its command failed: exit status: 1"] {
            assert!(refused.stderr.contains(told), "{told}: {}", refused.stderr);
        }
        assert_sent(&sandbox.server, &[1]);
        let mut others = sandbox.server.seen.try_iter();
        assert!(others.all(|seen| !seen.contains(VALUE_PREFIX)), "the value was sent again");
        sandbox.end(&[("unauthorized", true)]);
    }
}
