//! `stockade serve` over TLS: real handshakes with certificates of an authority of the test's own, by a client as small
//! as can be and by the command line.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::common::api::{ApiDaemon, HttpReply, exchange};
use crate::common::lasting::eventually;
use crate::common::{CliDone, CliPlace, wait};

/// Handshakes of one address that are waited for at once, and two more.
const CROWD: usize = 130;

/// An authority that signs for the daemons of a test.
struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl TestAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut root = CertificateParams::new(Vec::<String>::new()).unwrap();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = root.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(root, key), pem }
    }

    /// Writes a certificate for these names, and its key.
    fn write_identity(&self, place: &CliPlace, names: &[&str]) -> TlsFiles {
        self.write_changed_identity(place, names, |_| {})
    }

    fn write_changed_identity(
        &self,
        place: &CliPlace,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsFiles {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let (key, mut leaf) =
            (KeyPair::generate().unwrap(), CertificateParams::new(names).unwrap());
        change(&mut leaf);
        let files = TlsFiles { cert: place.path("cert.pem"), key: place.path("key.pem") };
        fs::write(&files.cert, leaf.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files.set_key_mode(0o600);
        files
    }

    /// Speaks TLS to a daemon under this name.
    fn connect(
        &self,
        daemon: &ApiDaemon,
        name: &str,
        version: &'static SupportedProtocolVersion,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(connection, daemon.connect_tcp())
    }

    /// Sends a request under this name with just these headers.
    fn ask(&self, daemon: &ApiDaemon, name: &str, path: &str, headers: &[&str]) -> HttpReply {
        exchange(self.connect(daemon, name, &TLS13), "GET", path, headers, b"")
    }
}

/// A certificate and its key.
struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
}

impl TlsFiles {
    fn set_key_mode(&self, mode: u32) {
        fs::set_permissions(&self.key, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The arguments of `serve` that name them.
    fn flags(&self) -> [&str; 4] {
        ["--tls-cert", self.cert.to_str().unwrap(), "--tls-key", self.key.to_str().unwrap()]
    }

    fn start(&self, place: CliPlace) -> ApiDaemon {
        let flags = [&["--listen", "127.0.0.1:0", "--allow-host", "proxy"][..], &self.flags()];
        ApiDaemon::start_in(place, &flags.concat())
    }
}

fn make_token(place: &CliPlace) -> String {
    let made = place.stockade(&["token", "new", "near", "--tenant", "team"]);
    made.code_is(0);
    made.stdout.trim().to_owned()
}

/// A place whose command line uses a daemon by TLS, with this authority or those of the host.
fn make_client(url: &str, token: &str, authority: Option<&TestAuthority>) -> CliPlace {
    let near = CliPlace::new();
    let (token_file, ca) = (near.path("token"), near.path("ca.pem"));
    fs::write(&token_file, token).unwrap();
    fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut table = format!("[remote]\nurl = \"{url}\"\ntokenFile = {token_file:?}\n");
    if let Some(authority) = authority {
        fs::write(&ca, &authority.pem).unwrap();
        table.push_str(&format!("caFile = {ca:?}\n"));
    }
    write_config(&near, &table);
    near
}

fn write_config(place: &CliPlace, text: &str) {
    let dir = place.path("home/.config/stockade");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.toml"), text).unwrap();
}

fn run_echo(near: &CliPlace) -> CliDone {
    near.stockade(&["run", "--backend", "remote", "--no-workspace", "--", "echo", "hi"])
}

fn end(daemon: ApiDaemon) {
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_daemon_with_a_certificate_serves_the_names_that_it_is_for() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    let token = format!("Authorization: Bearer {}", make_token(&place));
    let daemon = authority.write_identity(&place, &["box.example.org"]).start(place);
    for version in [&TLS12, &TLS13] {
        let stream = authority.connect(&daemon, "box.example.org", version);
        let reply = exchange(stream, "GET", "/v1/health", &["Host: box.example.org:7"], b"");
        assert_eq!(reply.status, 200, "{version:?}: {reply:?}");
    }
    let ask =
        |headers: &[&str]| authority.ask(&daemon, "box.example.org", "/v1/sandboxes", headers);
    ask(&["Host: box.example.org"]).is_error(401, "unauthorized");
    for host in ["Host: box.example.org", "Host: BOX.example.org:7070", "Host: proxy"] {
        assert_eq!(ask(&[host, &token]).status, 200, "{host}");
    }
    // Loopback names are not the certificate's, and no page of another site asks.
    for host in ["Host: localhost", "Host: 127.0.0.1", "Host: evil.example.org"] {
        ask(&[host, &token]).is_error(403, "denied");
    }
    let own = "Host: box.example.org";
    assert_eq!(ask(&[own, &token, "Origin: https://box.example.org"]).status, 200);
    for origin in ["Origin: http://box.example.org", "Origin: https://localhost", "Origin: null"] {
        ask(&[own, &token, origin]).is_error(403, "denied");
    }
    // The client sends a length of its own.
    assert_eq!(ask(&[own, &token, "Content-Length: 2"]).status, 400);
    end(daemon);
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    let token = format!("Authorization: Bearer {}", make_token(&place));
    let daemon = authority.write_identity(&place, &["old.example.org"]).start(place);
    let ask = |name: &str| {
        let host = format!("Host: {name}");
        authority.ask(&daemon, name, "/v1/sandboxes", &[&host, &token]).status
    };
    assert_eq!(ask("old.example.org"), 200);
    authority.write_identity(&daemon.place, &["new.example.org"]);
    let is_renewed = || {
        let stream = authority.connect(&daemon, "new.example.org", &TLS13);
        let StreamOwned { mut conn, mut sock } = stream;
        conn.complete_io(&mut sock).is_ok()
    };
    eventually("the renewed certificate is used", is_renewed);
    assert_eq!(ask("new.example.org"), 200);
    end(daemon);
}

#[test]
fn the_command_line_uses_a_daemon_by_tls() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    let token = make_token(&place);
    let daemon = authority.write_identity(&place, &["127.0.0.1"]).start(place);
    let url = format!("https://{}", daemon.tcp.unwrap());
    let near = make_client(&url, &token, Some(&authority));
    run_echo(&near).is(0, "hi\n", "");
    let args = ["run", "-i", "--backend", "remote", "--no-workspace", "--", "cat"];
    let mut command = near.command(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let sent = "all of it\n".repeat(100_000);
    let (mut stdin, text) = (child.stdin.take().unwrap(), sent.clone());
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let done = wait(child);
    writer.join().unwrap();
    done.code_is(0);
    assert!(done.stdout == sent, "{} bytes came back", done.stdout.len());
    // By the environment, without a table of the configuration.
    let plain = CliPlace::new();
    let host = ["run", "--host", &url, "--no-workspace", "--", "echo", "hi"];
    let mut command = plain.command(&host);
    command.env_remove("STOCKADE_BACKEND").env("STOCKADE_TOKEN_FILE", near.path("token"));
    command.env("STOCKADE_CA_FILE", near.path("ca.pem"));
    crate::common::finish(command).is(0, "hi\n", "");
    end(daemon);
    near.assert_nothing_is_left();
}

#[test]
fn a_daemon_that_cannot_be_verified_is_not_used() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let expire = |leaf: &mut CertificateParams| leaf.not_after = date_time_ymd(2020, 1, 1);
    let refuse = |place: CliPlace, files: TlsFiles, trusted: Option<&TestAuthority>| {
        let token = make_token(&place);
        let daemon = files.start(place);
        let url = format!("https://{}", daemon.tcp.unwrap());
        let near = make_client(&url, &token, trusted);
        run_echo(&near).is_refused(&["is not accepted", "STOCKADE_CA_FILE"]);
        end(daemon);
    };
    let place = CliPlace::new();
    let wrong_name = authority.write_identity(&place, &["box.example.org"]);
    refuse(place, wrong_name, Some(&authority));
    let place = CliPlace::new();
    let expired = authority.write_changed_identity(&place, &["127.0.0.1"], expire);
    refuse(place, expired, Some(&authority));
    let place = CliPlace::new();
    let wrong_authority = other.write_identity(&place, &["127.0.0.1"]);
    refuse(place, wrong_authority, Some(&authority));
}

#[test]
fn a_peer_that_has_not_shown_its_certificate_is_not_sent_the_token() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut sent = vec![0; 64 << 10];
        let count = stream.read(&mut sent).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        sent.truncate(count);
        // To its end: a connection that is closed with something unread is reset.
        let _ = stream.read_to_end(&mut sent);
        sent
    });
    let token = "stockade_0123456789abcdef";
    let near = make_client(&url, token, Some(&TestAuthority::new()));
    run_echo(&near).is_refused(&["there is no TLS at", "--tls-cert"]);
    let sent = peer.join().unwrap();
    assert!(!sent.windows(token.len()).any(|part| part == token.as_bytes()));
}

#[test]
fn plain_http_and_tls_are_not_mistaken_for_each_other() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    let token = make_token(&place);
    let daemon = authority.write_identity(&place, &["127.0.0.1"]).start(place);
    let mut stream = daemon.connect_tcp();
    stream.write_all(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    let mut stream = daemon.connect_tcp();
    stream.write_all(b"\x00\x01 neither of them\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    end(daemon);
    let place = CliPlace::new();
    make_token(&place);
    let daemon = ApiDaemon::start_on_tcp(place);
    let url = format!("https://{}", daemon.tcp.unwrap());
    run_echo(&make_client(&url, &token, Some(&authority))).is_refused(&["there is no TLS at"]);
    end(daemon);
}

#[test]
fn handshakes_that_never_finish_keep_no_client_out_and_delay_no_end() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    let token = format!("Authorization: Bearer {}", make_token(&place));
    let daemon = authority.write_identity(&place, &["localhost"]).start(place);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| daemon.connect_tcp()).collect();
    for stream in &mut crowd {
        // The head of a record that does not come. The oldest are cut off already.
        let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1]);
    }
    let ended = crowd[0].read(&mut [0]);
    let waited = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
    };
    assert!(!ended.as_ref().is_err_and(waited) && !ended.as_ref().is_ok_and(|count| *count > 0));
    let headers = ["Host: localhost", &token];
    let reply = authority.ask(&daemon, "localhost", "/v1/sandboxes", &headers);
    assert_eq!(reply.status, 200, "{reply:?}");
    end(daemon);
}

#[test]
fn keys_that_others_can_read_and_half_an_identity_are_refused() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    let files = authority.write_identity(&place, &["localhost"]);
    let serve =
        |flags: &[&str]| place.stockade(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
    files.set_key_mode(0o640);
    serve(&files.flags()).is_refused(&["other users", "chmod 600", "key.pem"]);
    files.set_key_mode(0o600);
    serve(&files.flags()[..2]).is_refused(&["--tls-key"]);
    serve(&files.flags()[2..]).is_refused(&["--tls-cert"]);
    let swapped =
        ["--tls-cert", files.key.to_str().unwrap(), "--tls-key", files.key.to_str().unwrap()];
    serve(&swapped).is_refused(&["no certificate", "key.pem"]);
    let elsewhere = CliPlace::new();
    let other = authority.write_identity(&elsewhere, &["localhost"]);
    let mixed =
        ["--tls-cert", files.cert.to_str().unwrap(), "--tls-key", other.key.to_str().unwrap()];
    serve(&mixed).is_refused(&["cannot be used with"]);
    // All is well but for the token.
    serve(&files.flags()).is_refused(&["stockade token new"]);
}

#[test]
fn addresses_that_others_reach_are_served_by_tls_alone() {
    let (place, authority) = (CliPlace::new(), TestAuthority::new());
    make_token(&place);
    let files = authority.write_identity(&place, &["box.example.org"]);
    let refused = place.stockade(&["serve", "--listen", "0.0.0.0:0"]);
    refused.is_refused(&["not encrypted", "--tls-cert"]);
    let table = format!(
        "[serve]\ntlsCert = {:?}\ntlsKey = {:?}\nallowHosts = [\"front\"]\n",
        files.cert, files.key
    );
    write_config(&place, &table);
    let daemon = ApiDaemon::start_in(place, &["--listen", "0.0.0.0:0"]);
    for host in ["Host: box.example.org", "Host: front"] {
        let reply = authority.ask(&daemon, "box.example.org", "/v1/health", &[host]);
        assert_eq!(reply.status, 200, "{host}: {reply:?}");
    }
    end(daemon);
}

#[test]
fn no_guest_sees_the_key_of_the_daemon() {
    let place = CliPlace::new();
    let key = place.workspace().join("key.pem");
    write_config(&place, &format!("[serve]\ntlsKey = {key:?}\n"));
    let done = place.stockade(&["run", "--", "true"]);
    done.code_is(125);
    assert!(done.stderr.contains("the TLS key of the daemon"), "{done:?}");
}
