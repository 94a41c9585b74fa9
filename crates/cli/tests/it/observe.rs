//! `--net observe`: what is let through to be seen, and the policy that is told for it. And the limits of a network.

use std::fs;

use serde_json::{Value, json};

use crate::common::CliPlace;
use crate::common::lasting::Lasting;
use crate::network::{Internet, KNOWN_NAME, fetch_program};

const WARNING: &str = "stockade: warning: `--net observe` is unsafe";

#[test]
fn explain_says_that_it_is_unsafe() {
    let done = CliPlace::new().stockade(&["explain", "--net", "observe,!b.org"]);
    done.code_is(0);
    let line = done.stdout.lines().find(|line| line.starts_with("network: ")).unwrap();
    assert!(line.starts_with("network: observe, !b.org (asked for; "), "{line}");
    assert!(line.contains("unsafe"), "{line}");
}

#[test]
fn it_is_no_setting_and_no_rule_that_denies() {
    let place = CliPlace::new();
    let dir = place.path("home/.config/stockade");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.toml"), "[profile.a]\nnet = \"observe\"\n").unwrap();
    let run = ["run", "--profile", "a", "--", "true"];
    place.stockade(&run).is_refused(&["profile.a.net", "command line"]);
    place.stockade(&["run", "--net", "!observe", "--", "true"]).code_is(125);
}

#[test]
fn a_limit_of_nothing_is_refused_where_it_is_read() {
    let place = CliPlace::new();
    let dir = place.path("home/.config/stockade");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.toml"), "[network]\nconnectionsPerSecond = 0\n").unwrap();
    let done = place.stockade(&["run", "--", "true"]);
    assert!(done.code == 125 && done.stderr.contains("config.toml"), "{done:?}");
}

mod needs_python {
    use super::*;

    #[test]
    fn a_sandbox_beyond_its_bytes_is_cut_off_and_told_why() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        internet.configure(&place);
        let config = place.path("home/.config/stockade/config.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, format!("{text}bytes = \"10b\"\n")).unwrap();
        let port = internet.port;
        let net = format!("{KNOWN_NAME}:{port},127.0.0.1:{port}");
        let program = fetch_program(KNOWN_NAME, port, true);
        let done =
            place.stockade(&["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program]);
        assert!(done.stdout.starts_with("failed "), "{done:?}");
        let told = format!("the network denied {KNOWN_NAME}:{port} (`network.bytes` lets ");
        assert!(done.stderr.contains(&told), "{done:?}");
    }

    #[test]
    fn quotas_of_a_tenant_on_the_network_hold_over_processes_and_are_told() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        let quotas = "[quotas.metered]\negressBytesPerHour = \"1k\"\n\
                      [quotas.closed]\nconnections = 0\n\
                      [quotas.paced]\nconnectionsPerMinute = 1\n";
        internet.configure_with(&place, quotas);
        let port = internet.port;
        let net = format!("{KNOWN_NAME}:{port},127.0.0.1:{port}");
        let program = fetch_program(KNOWN_NAME, port, true);
        let fetch = |tenant: &str| {
            let flags = ["run", "--tenant", tenant, "--net", &net];
            place.stockade(&[&flags[..], &["--", "/usr/bin/python3", "-c", &program]].concat())
        };
        let first = fetch("metered");
        assert_eq!((first.code, first.stdout.as_str()), (0, "hello\n"), "{first:?}");
        // Each of them needs a hundred bytes and more.
        let cut = (0..12).map(|_| fetch("metered")).find(|done| done.stdout != "hello\n").unwrap();
        assert!(cut.stdout.starts_with("failed "), "{cut:?}");
        assert!(cut.stderr.contains("`egressBytesPerHour` lets tenant metered"), "{cut:?}");
        let closed = fetch("closed");
        assert!(closed.stdout.starts_with("failed "), "{closed:?}");
        assert!(closed.stderr.contains("`connections` lets tenant closed have 0"), "{closed:?}");
        assert_eq!(fetch("paced").stdout, "hello\n");
        let paced = fetch("paced");
        assert!(paced.stdout.starts_with("failed "), "{paced:?}");
        let told = "`connectionsPerMinute` lets tenant paced begin 1 in a minute";
        assert!(paced.stderr.contains(told), "{paced:?}");
        assert_eq!(fetch("other").stdout, "hello\n");
    }

    /// Everything by name, and the address of the test's own server.
    fn observed_net(internet: &Internet) -> String {
        format!("observe,127.0.0.1:{}", internet.port)
    }

    #[test]
    fn a_run_ends_with_the_policy_that_would_have_been_enough() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        internet.configure(&place);
        let (net, port) = (observed_net(&internet), internet.port);
        let program = fetch_program(KNOWN_NAME, port, true);
        let command = ["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program];
        let done = place.stockade(&command);
        assert_eq!((done.code, done.stdout.as_str()), (0, "hello\n"), "{done:?}");
        let [warning, policy] = done.stderr.lines().collect::<Vec<_>>()[..] else {
            panic!("{done:?}")
        };
        assert!(warning.starts_with(WARNING), "{warning}");
        let enough = format!("stockade: enough would have been --net {KNOWN_NAME}:{port}");
        assert_eq!(policy, enough);
        let done = place.stockade(&[&["--json"], &command[..]].concat());
        let report: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(
            report["outcome"]["networkObserved"],
            json!([format!("{KNOWN_NAME}:{port}")]),
            "{report}"
        );
        let job = report["job"].as_str().unwrap();
        let shown = place.stockade(&["--json", "audit", "show", job]).stdout;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["started"]["event"]["observes"], true, "{shown}");
        assert_eq!(shown["connections"][0]["event"]["rule"], "observe", "{shown}");
        let text = place.stockade(&["audit", "show", job]).stdout;
        assert!(text.contains("unsafe"), "{text}");
        assert_eq!(internet.visits(), 2);
    }

    #[test]
    fn a_name_that_leads_to_this_host_stays_closed() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        internet.configure(&place);
        let program = fetch_program(KNOWN_NAME, internet.port, true);
        let command = ["run", "--net", "observe", "--", "/usr/bin/python3", "-c", &program];
        let done = place.stockade(&command);
        assert!(done.stdout.starts_with("failed "), "{done:?}");
        assert!(done.stderr.contains("the network denied pages.test"), "{done:?}");
        assert!(done.stderr.contains("`--net loopback` would have been enough"), "{done:?}");
        assert_eq!(internet.visits(), 0);
    }

    #[test]
    fn a_sandbox_that_lives_on_shows_it_by_net_until_other_rules_hold() {
        let (place, internet) = (Lasting::new(), Internet::start());
        internet.configure(&place);
        let (net, port) = (observed_net(&internet), internet.port);
        let made = place.stockade(&["create", "--net", &net]);
        assert!(made.code == 0 && made.stderr.starts_with(WARNING), "{made:?}");
        let id = made.stdout.trim_end();
        let none = place.stockade(&["net", id]);
        assert_eq!(none.stdout, format!("observe\n127.0.0.1/32:{port}\n"));
        assert!(none.stderr.contains("no host was reached"), "{none:?}");
        let program = fetch_program(KNOWN_NAME, port, true);
        let exec = place.stockade(&["exec", id, "--", "/usr/bin/python3", "-c", &program]);
        assert_eq!(exec.stdout, "hello\n", "{exec:?}");
        let enough = format!("{KNOWN_NAME}:{port}");
        assert!(exec.stderr.contains(&format!("--net {enough}\n")), "{exec:?}");
        let shown = place.stockade(&["--json", "net", id]).stdout;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["observed"], json!([enough]), "{shown}");
        place.stockade(&["net", id, "--deny", "observe"]).is_refused(&["--set"]);
        // The policy that was told is enough.
        let set = format!("{enough},127.0.0.1:{port}");
        let set = place.stockade(&["net", id, "--set", &set]);
        assert!(set.code == 0 && !set.stderr.contains("warning"), "{set:?}");
        let exec = place.stockade(&["exec", id, "--", "/usr/bin/python3", "-c", &program]);
        assert_eq!(exec.stdout, "hello\n", "{exec:?}");
        let other = fetch_program("other.test", port, true);
        let exec = place.stockade(&["exec", id, "--", "/usr/bin/python3", "-c", &other]);
        assert!(exec.stderr.contains("the network denied other.test"), "{exec:?}");
    }
}
