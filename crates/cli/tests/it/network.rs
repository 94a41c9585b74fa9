//! Other hosts by `--net`: real programs inside, a real server and a real name server outside.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::common::lasting::Lasting;
use crate::common::{CliPlace, wait};

/// The one name that the name server knows.
pub const KNOWN_NAME: &str = "pages.test";

/// A web server and a name server on this host's loopback. They live as long as the test's process.
pub struct Internet {
    pub port: u16,
    visits: Arc<AtomicUsize>,
    pub name_server: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Internet {
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let visits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&visits);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
            }
        });
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let name_server = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query) {
                kept.lock().unwrap().push(read_name(&query[..length]).0);
                let _ = socket.send_to(&answer_query(&query[..length]), from);
            }
        });
        Self { port, visits, name_server, asked }
    }

    /// Has the commands of this place ask the name server.
    pub fn configure(&self, place: &CliPlace) {
        self.configure_with(place, "");
    }

    /// The same, with further lines in the table of the network.
    pub fn configure_with(&self, place: &CliPlace, further: &str) {
        let dir = place.path("home/.config/stockade");
        fs::create_dir_all(&dir).unwrap();
        let text = format!("[network]\nresolvers = [\"{}\"]\n{further}", self.name_server);
        fs::write(dir.join("config.toml"), text).unwrap();
    }

    pub fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }

    /// The names that the name server was asked for, each once.
    pub fn asked(&self) -> Vec<String> {
        let mut names = self.asked.lock().unwrap().clone();
        names.sort();
        names.dedup();
        names
    }
}

/// The name that is asked for, and where its last byte is.
fn read_name(query: &[u8]) -> (String, usize) {
    let mut name = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let label = usize::from(query[at]);
        name.push(String::from_utf8_lossy(&query[at + 1..=at + label]).to_lowercase());
        at += label + 1;
    }
    (name.join("."), at)
}

/// 127.0.0.1 for the known name; no such name otherwise.
fn answer_query(query: &[u8]) -> Vec<u8> {
    let (name, at) = read_name(query);
    let is_known = name == KNOWN_NAME;
    let wants_address = query[at + 2] == 1;
    let mut reply = query[..at + 5].to_vec();
    reply[2] = 0x81;
    reply[3] = if is_known { 0x80 } else { 0x83 };
    reply[6..12].fill(0);
    if is_known && wants_address {
        reply[7] = 1;
        reply.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(Ipv4Addr::LOCALHOST.octets());
    }
    reply
}

/// A program that fetches a page, with the proxies of its environment or without.
pub fn fetch_program(host: &str, port: u16, proxies: bool) -> String {
    let opener = if proxies { "u.build_opener()" } else { "u.build_opener(u.ProxyHandler({}))" };
    format!(
        "import urllib.request as u\n\
         try: print({opener}.open('http://{host}:{port}/', timeout=30).read().decode())\n\
         except Exception as error: print('failed', type(error).__name__, getattr(error, 'code', ''))"
    )
}

mod needs_python {
    use super::*;

    fn reaches_what_is_listed(place: &CliPlace) {
        let internet = Internet::start();
        internet.configure(place);
        let port = internet.port;
        let net = format!("{KNOWN_NAME}:{port},127.0.0.1:{port}");
        for proxies in [true, false] {
            let program = fetch_program(KNOWN_NAME, port, proxies);
            let done =
                place.stockade(&["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program]);
            done.is(0, "hello\n", "");
        }
        assert_eq!(internet.visits(), 2);
        place.assert_nothing_is_left();
    }

    #[test]
    fn a_listed_host_is_reached_by_proxy_and_by_name() {
        reaches_what_is_listed(&CliPlace::new());
    }

    #[test]
    fn a_listed_host_is_reached_by_an_ordinary_user() {
        reaches_what_is_listed(&CliPlace::of_an_ordinary_user());
    }

    #[test]
    fn what_is_not_listed_is_not_reached_and_recorded() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        internet.configure(&place);
        let port = internet.port;
        for (net, host) in [
            // Another name, a name that leads to this host, a range that happens to include it.
            (format!("other.test:{port},127.0.0.1:{port}"), KNOWN_NAME),
            (format!("{KNOWN_NAME}:{port}"), KNOWN_NAME),
            (format!("{KNOWN_NAME}:{port},0.0.0.0/0:{port}"), KNOWN_NAME),
            (format!("{KNOWN_NAME}:{port},127.0.0.1:{port},!**.test"), KNOWN_NAME),
        ] {
            for proxies in [true, false] {
                let program = fetch_program(host, port, proxies);
                let run = ["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program];
                let done = place.stockade(&run);
                assert!(done.stdout.starts_with("failed "), "{net} {done:?}");
            }
        }
        assert_eq!(internet.visits(), 0);
        let journal = journal_text(&place);
        assert!(journal.contains("\"kind\":\"connection\""), "{journal}");
        assert!(journal.contains(&format!("`--net {KNOWN_NAME}:{port}` would")), "{journal}");
    }

    #[test]
    fn what_was_denied_is_told_at_the_end_with_the_flag() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        internet.configure(&place);
        let port = internet.port;
        let asked = format!("{KNOWN_NAME}:{port}");
        let program = fetch_program(KNOWN_NAME, port, true);
        let command = ["--net", "other.test", "--", "/usr/bin/python3", "-c", &program];
        let done = place.stockade(&[&["run"], &command[..]].concat());
        let told = format!("stockade: the network denied {asked} (allow with --net {asked})\n");
        assert_eq!((done.code, done.stderr), (0, told));
        let done = place.stockade(&[&["--json", "run"], &command[..]].concat());
        let json: Value = serde_json::from_str(&done.stdout).unwrap();
        let denied = &json["outcome"]["networkDenied"];
        assert_eq!(denied.as_array().map(Vec::len), Some(1), "{json}");
        assert_eq!((&denied[0]["host"], &denied[0]["port"]), (&KNOWN_NAME.into(), &port.into()));
        assert_eq!(denied[0]["allowWith"], asked);
        // A name that was only looked up has no port.
        let program = fetch_program(KNOWN_NAME, port, false);
        let net = ["run", "--net", "other.test", "--", "/usr/bin/python3", "-c", &program];
        let told = format!("the network denied {KNOWN_NAME} (allow with --net {KNOWN_NAME})");
        assert_eq!(place.stockade(&net).stderr, format!("stockade: {told}\n"));
        assert_eq!(internet.visits(), 0);
    }

    #[test]
    fn connections_are_shown_as_they_end_and_with_their_job() {
        let (place, internet) = (Lasting::new(), Internet::start());
        internet.configure(&place);
        let port = internet.port;
        let net = format!("{KNOWN_NAME}:{port},127.0.0.1:{port},gone.test:{port}");
        let id = place.create(&["--net", &net]);
        let mut logs =
            place.command(&["logs", &id, "--net"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(logs.stdout.take().unwrap()).lines();
        let mut fetch = |host: &str, told: &str| {
            let program = fetch_program(host, port, true);
            let report = place.json(&["exec", &id, "--", "/usr/bin/python3", "-c", &program]);
            let line = lines.next().unwrap().unwrap();
            assert!(line.contains(&format!("  {host}:{port} {told}")), "{line}");
            let job = report["job"].as_str().unwrap().to_owned();
            (job, line, report["outcome"]["networkDenied"].clone())
        };
        let (reached, line, denied) = fetch(KNOWN_NAME, "(127.0.0.1) allowed by ");
        assert!(line.contains(" sent, ") && line.ends_with(" received"), "{line}");
        assert_eq!(denied, Value::Null);
        fetch("gone.test", "failed: no such name");
        let (refused, _, denied) = fetch("other.test", "denied: no rule allows ");
        assert_eq!(denied[0]["allowWith"], format!("other.test:{port}"));
        for (job, host, verdict) in
            [(&reached, KNOWN_NAME, "allowed"), (&refused, "other.test", "denied")]
        {
            let shown = place.json(&["audit", "show", job]);
            let made = shown["connections"].as_array().unwrap();
            assert_eq!(made.len(), 1, "{shown}");
            let event = &made[0]["event"];
            assert_eq!((&event["host"], &event["verdict"]), (&host.into(), &verdict.into()));
            let text = place.stockade(&["audit", "show", job]).stdout;
            assert!(text.contains(&format!("{host}:{port} ")), "{text}");
        }
        place.stockade(&["kill", &id]).code_is(0);
        assert_eq!(wait(logs).code, 0);
        // By its beginning, by a job of it, and after its end.
        for given in [&id[..6], &reached] {
            let done = place.stockade(&["--json", "logs", given, "--net"]);
            let kinds: Vec<Value> = done.stdout.lines().map(read_verdict).collect();
            assert_eq!(kinds, ["allowed", "failed", "denied"], "{done:?}");
        }
    }

    fn read_verdict(line: &str) -> Value {
        serde_json::from_str::<Value>(line).unwrap()["event"]["verdict"].take()
    }

    fn journal_text(place: &CliPlace) -> String {
        let files = fs::read_dir(place.state().join("journal")).unwrap().flatten();
        files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
    }
}

#[test]
fn a_preset_that_is_not_there_is_refused_with_those_that_are() {
    let place = CliPlace::new();
    let done = place.stockade(&["run", "--net", "preset:perl", "--", "true"]);
    done.code_is(125);
    assert!(done.stderr.contains("python, node, rust, go, debian, github"), "{done:?}");
}

/// Backends without sockets refuse every rule by the feature, and nothing is made or recorded as run.
#[test]
fn where_there_are_no_sockets_rules_are_refused_with_the_reason() {
    let place = CliPlace::new();
    place.write("prog.wat", "(module (func (export \"_start\")))");
    for (backend, reason) in [("wasm", "no sockets"), ("landlock", "no socket can be created")] {
        let run = |flags: &[&str]| {
            let line = [&["run", "--backend", backend], flags, &["--", "prog.wat"]].concat();
            place.stockade(&line)
        };
        for net in ["a.test", "preset:python", "127.0.0.1:80", "GET@a.test/x", "**.test,!a.test"] {
            run(&["--net", net]).is_refused(&["egress-allowlist", reason]);
        }
        let observed = run(&["--net", "observe"]);
        assert!(
            observed.code == 125 && observed.stderr.contains("egress-allowlist"),
            "{observed:?}"
        );
        let told = place.stockade(&[
            "--json",
            "run",
            "--backend",
            backend,
            "--net",
            "a.test",
            "--",
            "prog.wat",
        ]);
        let told: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(told["error"]["refusals"][0]["feature"], "egress-allowlist", "{told}");
        let create = ["create", "--backend", backend, "--without", "host-image", "--net", "a.test"];
        let created = place.stockade(&create);
        assert!(created.code == 125 && created.stderr.contains("egress-allowlist"), "{created:?}");
    }
    place.stockade(&["run", "--backend", "wasm", "--net", "none", "--", "prog.wat"]).is(0, "", "");
    place.assert_nothing_is_left();
    let jobs: Value =
        serde_json::from_str(&place.stockade(&["--json", "audit", "list"]).stdout).unwrap();
    assert_eq!(jobs.as_array().map(Vec::len), Some(1), "{jobs}");
}

#[test]
fn explain_shows_the_rules_of_a_preset() {
    let place = CliPlace::new();
    let done = place.stockade(&["explain", "--net", "preset:python,!b.test", "--", "true"]);
    let rules = "network: pypi.org:443, files.pythonhosted.org:443, !b.test (asked for)";
    assert!(done.stdout.contains(rules), "{done:?}");
    let done = place.stockade(&["explain", "--json", "--net", "preset:node", "--", "true"]);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["network"]["policy"]["egress"], serde_json::json!(["registry.npmjs.org:443"]));
}

#[test]
fn connections_of_an_unknown_sandbox_are_an_error_and_of_one_without_a_network_none() {
    let place = CliPlace::new();
    place.stockade(&["run", "--", "true"]).is(0, "", "");
    place.stockade(&["logs", "nothere", "--net"]).is_refused(&["`nothere`", "stockade ps"]);
    let jobs = place.stockade(&["--json", "audit", "list"]).stdout;
    let jobs: Value = serde_json::from_str(&jobs).unwrap();
    let id = jobs[0]["started"]["event"]["sandbox"].as_str().unwrap();
    let none = "stockade: the sandbox asked for no other host\n";
    place.stockade(&["logs", id, "--net"]).is(0, "", none);
}
