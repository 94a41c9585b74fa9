//! Secrets by `--secret`: real programs inside, a real TLS server outside.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::common::lasting::Lasting;
use crate::common::{CliDone, CliPlace, finish};
use crate::network::{Internet, KNOWN_NAME};

const VALUE: &str = "correct-horse-battery-staple";

/// A server that echoes the header with which a request authorizes itself, and refuses it below `/refused`.
pub struct EchoServer {
    pub port: u16,
    root_pem: String,
    pub seen: Receiver<String>,
}

impl EchoServer {
    fn start() -> Self {
        let (config, root_pem) = make_server_config();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, seen) = channel();
        let sender = Mutex::new(sender);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, socket);
                let mut request = [0; 8192];
                // A client that does not trust it ends the handshake.
                let Ok(length) = stream.read(&mut request) else { continue };
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let header = request.lines().find_map(|it| it.strip_prefix("authorization: "));
                let body = format!("seen: {}", header.unwrap_or("nothing"));
                let length = body.len();
                let is_refused = request.starts_with("GET /refused ");
                let status = if is_refused { "401 Unauthorized" } else { "200 OK" };
                let _ = sender.lock().unwrap().send(request);
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
                );
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Self { port, root_pem, seen }
    }

    pub fn rules(&self) -> String {
        format!("{KNOWN_NAME}:{port},127.0.0.1:{port}", port = self.port)
    }
}

fn make_server_config() -> (Arc<ServerConfig>, String) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::<String>::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![KNOWN_NAME.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (Arc::new(config), root_pem)
}

/// Servers of a test, whom the commands of this place trust.
pub fn start_servers(place: &CliPlace) -> (Internet, EchoServer) {
    let (internet, server) = (Internet::start(), EchoServer::start());
    let root = place.path("root.pem");
    fs::write(&root, &server.root_pem).unwrap();
    internet.configure_with(place, &format!("caFile = \"{}\"\n", root.display()));
    (internet, server)
}

/// Runs it with a value for `KEY`.
fn run_with_key(place: &CliPlace, args: &[&str]) -> CliDone {
    let mut command = place.command(args);
    command.env("KEY", VALUE);
    finish(command)
}

fn assert_holds_no_value(dir: &Path) {
    assert_holds_no(dir, VALUE);
}

/// Whether no file below a directory has this text.
pub fn assert_holds_no(dir: &Path, text: &str) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            assert_holds_no(&entry.path(), text);
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            let found = bytes.windows(text.len()).any(|it| it == text.as_bytes());
            assert!(!found, "the value is in {}", entry.path().display());
        }
    }
}

fn assert_refused(done: &CliDone, parts: &[&str]) {
    done.code_is(125);
    for part in parts {
        assert!(done.stderr.contains(part), "{part:?} is not in {:?}", done.stderr);
    }
}

#[test]
fn a_secret_that_nothing_would_put_in_is_refused() {
    let (place, server) = (CliPlace::new(), EchoServer::start());
    let secret = format!("KEY={KNOWN_NAME}");
    let unreached = run_with_key(&place, &["run", "--secret", &secret, "--", "true"]);
    assert_refused(&unreached, &["`KEY` is bound to", &format!("--net {KNOWN_NAME}")]);
    let rules = server.rules();
    let args = ["run", "--net", &rules, "--secret", &secret, "--", "true"];
    assert_refused(&place.stockade(&args), &["KEY", "--secret-file KEY=PATH"]);
    let twice = ["run", "--net", &rules, "--secret", &secret, "--env", "KEY", "--", "true"];
    let twice = run_with_key(&place, &twice);
    assert_refused(&twice, &["`KEY`", "--env"]);
    assert!(!twice.stderr.contains(VALUE), "{}", twice.stderr);
}

mod needs_java {
    use super::*;

    #[test]
    fn java_trusts_the_host_of_a_secret() {
        let place = CliPlace::of_an_ordinary_user();
        let (_internet, server) = start_servers(&place);
        let (rules, secret) = (server.rules(), format!("KEY={KNOWN_NAME}"));
        place.write("FetchKey.java", include_str!("FetchKey.java"));
        let url = format!("https://{KNOWN_NAME}:{}/", server.port);
        let java = ["--", "java", "FetchKey.java", &url];
        let args = [&["run", "--net", &rules, "--secret", &secret][..], &java].concat();
        let done = run_with_key(&place, &args);
        assert_eq!(
            (done.code, done.stdout.as_str()),
            (0, "seen: Bearer PLACEHOLDER\n"),
            "{done:?}"
        );
        let seen = server.seen.recv().unwrap();
        assert!(seen.to_lowercase().contains("authorization: bearer "), "{seen}");
        assert!(seen.contains(VALUE), "{seen}");
    }
}

mod needs_python {
    use super::*;

    fn fetch_program(url: &str) -> String {
        format!(
            "import os, urllib.request as u\n\
             key = os.environ['KEY']\n\
             request = u.Request('{url}', headers={{'Authorization': 'Bearer ' + key}})\n\
             try: print(u.urlopen(request, timeout=30).read().decode().replace(key, 'PLACEHOLDER'))\n\
             except Exception as error: print('failed', getattr(error, 'code', error))"
        )
    }

    fn puts_the_secret_in(place: &CliPlace) {
        let (_internet, server) = start_servers(place);
        let (rules, secret) = (server.rules(), format!("KEY={KNOWN_NAME}"));
        let program = fetch_program(&format!("https://{KNOWN_NAME}:{}/", server.port));
        let python = ["--", "/usr/bin/python3", "-c", &program];
        let args = [&["run", "--net", &rules, "--secret", &secret][..], &python].concat();
        let done = run_with_key(place, &args);
        done.is(0, "seen: Bearer PLACEHOLDER\n", "");
        let seen = server.seen.recv().unwrap();
        assert!(seen.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{seen}");
        assert_holds_no_value(&place.state());
        place.assert_nothing_is_left();
    }

    #[test]
    fn a_secret_is_put_in_towards_its_host() {
        puts_the_secret_in(&CliPlace::new());
    }

    #[test]
    fn a_secret_is_put_in_for_an_ordinary_user() {
        puts_the_secret_in(&CliPlace::of_an_ordinary_user());
    }

    #[test]
    fn a_placeholder_goes_nowhere_else() {
        let place = CliPlace::new();
        let (internet, server) = start_servers(&place);
        let port = internet.port;
        let net = format!("other.test,{KNOWN_NAME}:{port},127.0.0.1:{port}");
        let program = fetch_program(&format!("http://{KNOWN_NAME}:{port}/"));
        let python = ["--", "/usr/bin/python3", "-c", &program];
        let run = ["run", "--net", &net, "--secret", "KEY=other.test"];
        let done = run_with_key(&place, &[&run[..], &python].concat());
        let told = format!(
            "stockade: the network denied {KNOWN_NAME}:{port} (the placeholder of the secret `KEY` stands in a \
             request to `{KNOWN_NAME}`; the secret is bound to other.test)\n"
        );
        done.is(0, "failed 403\n", &told);
        assert!(server.seen.try_recv().is_err(), "the other server was asked");
        assert_holds_no_value(&place.state());
    }

    #[test]
    fn a_lasting_sandbox_keeps_its_secret_in_memory() {
        let place = Lasting::new();
        let (_internet, server) = start_servers(&place);
        let (rules, secret) = (server.rules(), format!("KEY={KNOWN_NAME}"));
        let create = ["create", "--no-workspace", "--net", &rules, "--secret", &secret];
        let made = run_with_key(&place, &create);
        made.code_is(0);
        let id = made.stdout.trim_end();
        let program = fetch_program(&format!("https://{KNOWN_NAME}:{}/", server.port));
        let fetch = || place.stockade(&["exec", id, "--", "/usr/bin/python3", "-c", &program]);
        fetch().is(0, "seen: Bearer PLACEHOLDER\n", "");
        assert_refused(&place.stockade(&["fork", id]), &["secrets"]);
        // A rule that its secret needs stays, unless everything is cut off.
        let without = place.stockade(&["net", id, "--set", "other.test"]);
        assert_refused(&without, &["`KEY`", KNOWN_NAME, "cut off everything"]);
        fetch().is(0, "seen: Bearer PLACEHOLDER\n", "");
        place.stockade(&["net", id, "--set", "!0.0.0.0/0,!::/0"]).code_is(0);
        assert!(fetch().stdout.starts_with("failed "));
        place.stockade(&["net", id, "--set", &rules]).code_is(0);
        fetch().is(0, "seen: Bearer PLACEHOLDER\n", "");
        place.stockade(&["snapshot", "take", id]).code_is(0);
        assert_holds_no_value(&place.state());
        place.stockade(&["rm", id]).code_is(0);
        place.assert_nothing_is_left();
    }

    #[test]
    fn a_secret_is_read_from_a_file_or_a_command() {
        let place = CliPlace::new();
        let (_internet, server) = start_servers(&place);
        let (rules, secret) = (server.rules(), format!("KEY={KNOWN_NAME}"));
        let path = place.path("key");
        fs::write(&path, format!("{VALUE}\n")).unwrap();
        let program = fetch_program(&format!("https://{KNOWN_NAME}:{}/", server.port));
        let python = ["--", "/usr/bin/python3", "-c", &program];
        let (file, command) =
            (format!("KEY={}", path.display()), format!("KEY=cat '{}'", path.display()));
        for source in [["--secret-file", &file], ["--secret-command", &command]] {
            let bound = ["run", "--net", &rules, "--secret", &secret];
            let done = place.stockade(&[&bound[..], &source[..], &python[..]].concat());
            done.is(0, "seen: Bearer PLACEHOLDER\n", "");
            let seen = server.seen.recv().unwrap();
            assert!(seen.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{seen}");
        }
    }
}

#[test]
fn what_is_given_in_place_of_hosts_is_not_shown() {
    let place = CliPlace::new();
    let secret = format!("KEY={VALUE} {VALUE}");
    let done = place.stockade(&["run", "--secret", &secret, "--", "true"]);
    assert_refused(&done, &["--secret"]);
    assert!(!done.stderr.contains(VALUE), "{}", done.stderr);
}
