//! Ports of a sandbox by `stockade port`, and rules that change while it runs by `stockade net`: real servers inside,
//! real connections from outside.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::lasting::{Lasting, eventually};
use crate::common::{CliDone, CliPlace, signal, start, wait};
use crate::network::{Internet, KNOWN_NAME};

/// Longer than anything takes here on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A `stockade port` that listens. It ends with its sandbox.
struct Forwarder {
    child: Child,
    address: SocketAddr,
}

impl Forwarder {
    fn start(place: &CliPlace, id: &str, port: &str) -> Self {
        let (child, line) = start(place.command(&["port", id, &format!("{port}:0")]));
        let (address, inside) = line.split_once(" -> ").unwrap_or_else(|| panic!("{line:?}"));
        assert_eq!(inside, port);
        Self { child, address: address.parse().unwrap() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
        stream
    }

    /// Sends everything, ends that direction, and answers what comes back.
    fn exchange(&self, sent: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    fn interrupt(self) -> CliDone {
        signal(&self.child, Signal::INT);
        wait(self.child)
    }
}

fn journal_text(place: &CliPlace) -> String {
    let files = fs::read_dir(place.state().join("journal")).unwrap().flatten();
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
}

#[test]
fn a_port_at_which_nothing_listens_closes_connections_and_is_told_of_once() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let forwarder = Forwarder::start(&place, &id, "9");
    for _ in 0..3 {
        let read = forwarder.connect().read(&mut [0]);
        assert!(!matches!(read, Ok(1)), "{read:?}");
    }
    let done = forwarder.interrupt();
    assert_eq!((done.code, done.stdout.as_str()), (130, ""));
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert!(done.stderr.contains("nothing listens at port 9"), "{}", done.stderr);
}

#[test]
fn forwarding_ends_with_the_sandbox() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let forwarder = Forwarder::start(&place, &id, "8080");
    place.stockade(&["kill", &id]).code_is(0);
    wait(forwarder.child).is(0, "", "stockade: the sandbox has ended\n");
    assert!(TcpStream::connect(forwarder.address).is_err());
    place.assert_all_is_gone();
}

#[test]
fn ports_are_shown_as_json() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let args = ["--json", "port", &id[..8], "8080:0", "8081:0", "--bind", "0.0.0.0"];
    let (child, line) = start(place.command(&args));
    let shown: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&shown["sandbox"], &shown["ports"][1]["port"]), (&id.into(), &8081.into()));
    let address = shown["ports"][0]["address"].as_str().unwrap();
    assert!(address.starts_with("0.0.0.0:") && !address.ends_with(":0"), "{address}");
    signal(&child, Signal::TERM);
    let done = wait(child);
    assert_eq!(done.code, 143);
    assert!(done.stderr.contains("whoever can reach 0.0.0.0"), "{}", done.stderr);
}

#[test]
fn ports_that_cannot_be_forwarded_are_refused_with_a_remedy() {
    let place = Lasting::new();
    let (id, closed) = (place.create(&[]), place.create(&["--net", "none"]));
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let local = format!("80:{}", taken.local_addr().unwrap().port());
    place.stockade(&["port", &id, &local]).is_refused(&["cannot be listened at", "`80:0`"]);
    place.stockade(&["port", &closed, "80:0"]).is_refused(&["--net loopback"]);
    place.stockade(&["port", "nosuch", "80:0"]).is_refused(&["no sandbox `nosuch`"]);
    place.stockade(&["port", &id, "0"]).code_is(125);
}

#[test]
fn rules_are_changed_only_where_there_are_some() {
    let place = Lasting::new();
    Internet::start().configure(&place);
    let (bare, ruled) = (place.create(&[]), place.create(&["--net", "a.test,!b.test"]));
    place.stockade(&["net", &bare, "--allow", "a.test"]).is_refused(&["--net RULE"]);
    place.stockade(&["net", &ruled]).is(0, "a.test\n!b.test\n", "");
    place.stockade(&["net", &ruled, "--allow", "!c.test"]).is_refused(&["leave the `!` out"]);
    let both = ["net", &ruled, "--allow", "b.test,c.test:22", "--deny", "a.test"];
    place.stockade(&both).is(0, "b.test\nc.test:22\n!a.test\n", "");
    let set = place.json(&["net", &ruled, "--set", "preset:node"]);
    assert_eq!(set["rules"], serde_json::json!(["registry.npmjs.org:443"]));
    assert_eq!((&set["network"], &set["sandbox"]), (&"egress".into(), &ruled.into()));
    let journal = journal_text(&place);
    let recorded =
        "\"old\":[\"a.test\",\"!b.test\"],\"new\":[\"b.test\",\"c.test:22\",\"!a.test\"]";
    assert!(journal.contains("\"kind\":\"rulesReplaced\""), "{journal}");
    assert!(journal.contains(recorded), "{journal}");
}

#[test]
fn a_copy_has_the_rules_in_force() {
    let place = Lasting::new();
    Internet::start().configure(&place);
    let id = place.create(&["--no-workspace", "--net", "a.test,b.test"]);
    place.stockade(&["net", &id, "--set", "b.test"]).is(0, "b.test\n", "");
    let copy = place.stockade(&["fork", &id]);
    copy.code_is(0);
    place.stockade(&["net", copy.stdout.trim_end()]).is(0, "b.test\n", "");
}

mod needs_python {
    use super::*;

    /// A server inside that answers everything it was sent, backwards, when that has ended.
    fn start_server(place: &CliPlace, id: &str, host: &str) -> Child {
        let program = format!(
            "import socket, socketserver\n\
             class Echo(socketserver.BaseRequestHandler):\n\
             \x20   def handle(self):\n\
             \x20       data = b''\n\
             \x20       while piece := self.request.recv(65536): data += piece\n\
             \x20       self.request.sendall(data[::-1])\n\
             class Server(socketserver.ThreadingTCPServer):\n\
             \x20   address_family = socket.AF_INET6 if ':' in '{host}' else socket.AF_INET\n\
             \x20   request_queue_size = 64\n\
             \x20   daemon_threads = True\n\
             server = Server(('{host}', 8080), Echo)\n\
             print('ready', flush=True)\n\
             server.serve_forever()"
        );
        let exec = ["exec", id, "--", "/usr/bin/python3", "-c", &program];
        let (child, line) = start(place.command(&exec));
        assert_eq!(line, "ready");
        child
    }

    #[test]
    fn a_use_of_ports_gives_a_sandbox_neither_proxies_nor_a_name_server() {
        let place = Lasting::new();
        let id = place.create(&[]);
        let forwarder = Forwarder::start(&place, &id, "8080");
        let program = "import os, socket\n\
             print([name for name in os.environ if 'proxy' in name.lower()])\n\
             at = lambda port: socket.socket().connect_ex(('127.63.0.53', port))\n\
             print([port for port in (53, 1080, 3128) if at(port) == 0])";
        let exec = ["exec", &id, "--", "/usr/bin/python3", "-c", program];
        place.stockade(&exec).is(0, "[]\n[]\n", "");
        place.stockade(&["net", &id]).is(0, "loopback\n", "");
        forwarder.interrupt().is(130, "", "");
    }

    #[test]
    fn a_server_inside_may_listen_at_a_low_port() {
        let program =
            "import socket; print(socket.create_server(('127.0.0.1', 80)).getsockname()[1])";
        for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
            place.stockade(&["run", "--", "/usr/bin/python3", "-c", program]).is(0, "80\n", "");
        }
    }

    fn reaches_a_server(place: &Lasting, host: &str) {
        let id = place.create(&[]);
        let server = start_server(place, &id, host);
        let forwarder = Forwarder::start(place, &id, "8080");
        std::thread::scope(|scope| {
            for number in 0..16u8 {
                let forwarder = &forwarder;
                scope.spawn(move || {
                    let byte = |at: u32| (at % 251) as u8 ^ number;
                    let sent: Vec<u8> = (0..300_000).map(byte).collect();
                    let expected: Vec<u8> = sent.iter().rev().copied().collect();
                    assert!(forwarder.exchange(&sent) == expected, "{number}");
                });
            }
        });
        forwarder.interrupt().is(130, "", "");
        place.stockade(&["kill", &id]).code_is(0);
        wait(server);
        place.assert_all_is_gone();
    }

    #[test]
    fn many_connections_at_once_reach_a_server_inside() {
        reaches_a_server(&Lasting::new(), "127.0.0.1");
    }

    #[test]
    fn a_server_at_the_ipv6_loopback_is_reached() {
        reaches_a_server(&Lasting::new(), "::1");
    }

    #[test]
    fn an_ordinary_user_reaches_a_server_inside() {
        reaches_a_server(&Lasting(CliPlace::of_an_ordinary_user()), "127.0.0.1");
    }

    #[test]
    fn an_interrupt_ends_open_connections_and_leaves_the_sandbox() {
        let place = Lasting::new();
        let id = place.create(&[]);
        let server = start_server(&place, &id, "127.0.0.1");
        let forwarder = Forwarder::start(&place, &id, "8080");
        let mut open = forwarder.connect();
        open.write_all(b"half a question").unwrap();
        assert_eq!(forwarder.exchange(b"abc"), b"cba");
        let address = forwarder.address;
        forwarder.interrupt().is(130, "", "");
        let rest = open.read(&mut [0]);
        assert!(!matches!(rest, Ok(1)), "{rest:?}");
        assert!(TcpStream::connect(address).is_err());
        let again = Forwarder::start(&place, &id, "8080");
        assert_eq!(again.exchange(b"xyz"), b"zyx");
        place.stockade(&["kill", &id]).code_is(0);
        wait(again.child).code_is(0);
        wait(server);
        place.assert_all_is_gone();
    }

    /// A server outside whose answer does not end, and how many bytes of it were sent.
    fn start_endless_server() -> (u16, Arc<AtomicU64>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                    while stream.write_all(&[b'x'; 1024]).is_ok() {
                        counted.fetch_add(1024, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
        });
        (port, sent)
    }

    fn start_download(place: &CliPlace, id: &str, port: u16) -> Child {
        let program = format!(
            "import urllib.request as u\n\
             reply = u.urlopen('http://{KNOWN_NAME}:{port}/', timeout=60)\n\
             reply.read(1)\n\
             print('begun', flush=True)\n\
             try:\n\
             \x20   while reply.read(4096): pass\n\
             except Exception: pass\n\
             print('over', flush=True)"
        );
        let exec = ["exec", id, "--", "/usr/bin/python3", "-c", &program];
        let (child, line) = start(place.command(&exec));
        assert_eq!(line, "begun");
        child
    }

    #[test]
    fn a_rule_that_is_taken_away_cuts_its_downloads_and_no_others() {
        let place = Lasting::new();
        Internet::start().configure(&place);
        let ((a, _), (b, sent)) = (start_endless_server(), start_endless_server());
        let net = format!("{KNOWN_NAME}:{a},{KNOWN_NAME}:{b},127.0.0.1:{a},127.0.0.1:{b}");
        let id = place.create(&["--net", &net]);
        let (cut, kept) = (start_download(&place, &id, a), start_download(&place, &id, b));
        let rule = format!("{KNOWN_NAME}:{a}");
        let left = format!("{KNOWN_NAME}:{b}\n127.0.0.1/32:{a}\n127.0.0.1/32:{b}\n!{rule}\n");
        place.stockade(&["net", &id, "--deny", &rule]).is(0, &left, "");
        let cut = wait(cut);
        assert_eq!((cut.code, cut.stdout.as_str()), (0, "over\n"), "{cut:?}");
        let before = sent.load(Ordering::SeqCst);
        let goes_on = || sent.load(Ordering::SeqCst) > before + 100_000;
        eventually("the other download goes on", goes_on);
        assert_eq!(place.running(&id).len(), 1);
        let denied = format!("`{rule}` is denied by `!{rule}`");
        eventually("it is recorded", || journal_text(&place).contains(&denied));
        // What is allowed again works again, in the same sandbox.
        place.stockade(&["net", &id, "--allow", &rule]).code_is(0);
        let again = start_download(&place, &id, a);
        place.stockade(&["kill", &id]).code_is(0);
        for child in [kept, again] {
            wait(child);
        }
        place.assert_all_is_gone();
    }
}
