//! A site on this host's loopback for clients inside to visit: a server of its own, which tells of each visitor, and a
//! name that leads to it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::common::{CliDone, CliPlace, finish};
use crate::network::{Internet, KNOWN_NAME};

/// A name that is allowed instead of the site's. It leads nowhere.
const OTHER_NAME: &str = "other.test";
/// The interpreter of the system: one in the home of whoever runs the tests may be any version.
const PYTHON: &str = "/usr/bin/python3";
/// The certificate that the site's TLS is checked with, in the workspace.
pub const CERTIFICATE: &str = "certificate.pem";

/// What a locked site wants of its visitors. Nothing inside has it.
const TOKEN: &str = "correct-horse-battery-staple";

/// A server, the place whose sandboxes visit it, and the files that it serves.
pub struct Site {
    pub place: CliPlace,
    server: Child,
    /// The port of each peer, as the server tells them.
    peers: BufReader<ChildStdout>,
    pub port: u16,
    scheme: &'static str,
    uses_toolchains: bool,
    is_locked: bool,
}

impl Site {
    pub fn http(place: CliPlace) -> Self {
        let server = file_server(&place);
        Self::start(place, "http", server, "")
    }

    /// TLS with HTTP/1.1.
    pub fn https(place: CliPlace) -> Self {
        Self::https_with(place, "")
    }

    /// The same, where the commands of the place have further settings.
    pub fn https_with(place: CliPlace, settings: &str) -> Self {
        let mut server = file_server(&place);
        server.args(make_certificate(&place));
        Self::start(place, "https", server, settings)
    }

    /// The same, for visitors with a token alone, which is a secret bound to this host. Its authority is trusted by the
    /// engine.
    pub fn locked(place: CliPlace) -> Self {
        let mut server = file_server(&place);
        let [root, certificate, key] = make_chain(&place);
        server.args([certificate, key]).arg(TOKEN);
        let settings = format!("caFile = \"{}\"\n", root.display());
        let mut site = Self::start(place, "https", server, &settings);
        site.is_locked = true;
        site
    }

    /// TLS with HTTP/2 and nothing older. It has one page, which names the host that was asked for.
    pub fn http2(place: CliPlace) -> Self {
        let mut server = Command::new("node");
        server.arg(script("http2.js")).args(make_certificate(&place));
        Self::start(place, "https", server, "")
    }

    fn start(place: CliPlace, scheme: &'static str, mut server: Command, settings: &str) -> Self {
        Internet::start().configure_with(&place, settings);
        let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut peers = BufReader::new(server.stdout.take().unwrap());
        let port = read_port(&mut peers);
        Self { place, server, peers, port, scheme, uses_toolchains: false, is_locked: false }
    }

    /// Has clients found as toolchains of whoever runs the tests.
    pub fn with_toolchains(mut self) -> Self {
        self.uses_toolchains = true;
        self
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{KNOWN_NAME}:{}/{path}", self.scheme, self.port)
    }

    /// Where the files are that it serves.
    pub fn directory(&self) -> PathBuf {
        served_directory(&self.place)
    }

    /// A file that it serves.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.directory().join(name), text).unwrap();
    }

    /// Serves an index of one package, `tiny`.
    pub fn lay_out_index(&self, kind: &str) {
        let mut command = Command::new(PYTHON);
        command.arg(script("indexes.py")).arg(kind).arg(self.directory());
        command.arg(self.url("").trim_end_matches('/')).args(self.is_locked.then_some("locked"));
        let status = command.status().unwrap();
        assert!(status.success(), "no index for {kind}: {status}");
    }

    /// Runs a client twice: while another host is listed it fails without a visit, and while this one is, it
    /// works. `line` is what follows the rules on the command line, split at spaces.
    #[track_caller]
    pub fn visit(&mut self, line: &str) -> CliDone {
        let denied = self.run(OTHER_NAME, line);
        assert_ne!(denied.code, 0, "{denied:?}");
        let told = format!("stockade: the network denied {KNOWN_NAME}");
        assert!(denied.stderr.contains(&told), "{denied:?}");
        assert_eq!(self.count_visits(), 0, "{denied:?}");
        let done = self.run(KNOWN_NAME, line);
        done.code_is(0);
        assert!(!done.stderr.contains("the network denied"), "{done:?}");
        assert_ne!(self.count_visits(), 0, "{done:?}");
        self.place.assert_nothing_is_left();
        done
    }

    /// Runs a line of shell with clients that are told of no certificate, in which `$KEY` is the site's token to the site
    /// alone: so whoever comes in was let through by the engine, under an authority that the client found by itself.
    #[track_caller]
    pub fn visit_with_key(&mut self, line: &str) -> CliDone {
        let rules = format!("{KNOWN_NAME}:{port},127.0.0.1:{port}", port = self.port);
        let secret = format!("KEY={KNOWN_NAME}");
        let run = ["run", "--net", &rules, "--secret", &secret, "--shell", line];
        let mut command = self.place.command(&run);
        if self.uses_toolchains {
            command.envs(toolchain_variables());
        }
        command.env("KEY", TOKEN);
        let done = finish(command);
        done.code_is(0);
        assert!(!done.stdout.contains(TOKEN) && !done.stderr.contains(TOKEN), "{done:?}");
        assert_ne!(self.count_visits(), 0, "{done:?}");
        self.place.assert_nothing_is_left();
        done
    }

    fn run(&self, host: &str, line: &str) -> CliDone {
        // A name that leads to this host's loopback needs its address listed as well.
        let rules = format!("{host}:{port},127.0.0.1:{port}", port = self.port);
        let mut args = vec!["run", "--net", rules.as_str()];
        args.extend(line.split_whitespace());
        let mut command = self.place.command(&args);
        if self.uses_toolchains {
            command.envs(toolchain_variables());
        }
        finish(command)
    }

    /// How many have visited since the last count. The last visitor is this function: peers are accepted in order,
    /// so none that came earlier is missed.
    pub fn count_visits(&mut self) -> usize {
        let connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let own = connection.local_addr().unwrap().port();
        let mut visits = 0;
        while read_port(&mut self.peers) != own {
            visits += 1;
        }
        visits
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Closes the server's standard input first, with which it ends.
        let _ = self.server.wait();
    }
}

/// One place of root's and one of an ordinary user's, as far as whoever runs the tests can have both.
pub fn places() -> [CliPlace; 2] {
    [CliPlace::new(), CliPlace::of_an_ordinary_user()]
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/network_clients").join(name)
}

fn served_directory(place: &CliPlace) -> PathBuf {
    place.path("site")
}

fn file_server(place: &CliPlace) -> Command {
    let directory = served_directory(place);
    fs::create_dir(&directory).unwrap();
    let mut server = Command::new(PYTHON);
    server.arg(script("server.py")).arg(directory);
    server
}

/// A certificate for the known name that signs itself, and its key.
fn make_certificate(place: &CliPlace) -> [PathBuf; 2] {
    let (certificate, key) = (place.workspace().join(CERTIFICATE), place.path("key.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    command.args(["-nodes", "-days", "2", "-subj", &format!("/CN={KNOWN_NAME}")]);
    command.args(["-addext", &format!("subjectAltName=DNS:{KNOWN_NAME}")]);
    command.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    finish(command).code_is(0);
    [certificate, key]
}

/// The certificate of an authority, one for the known name that it has signed, and the key of that. Clients inside are
/// shown none of them.
fn make_chain(place: &CliPlace) -> [PathBuf; 3] {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::<String>::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![KNOWN_NAME.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
    let files = ["root.pem", "site.pem", "site-key.pem"].map(|name| place.path(name));
    for (file, text) in files.iter().zip([root_pem, leaf.pem(), key.serialize_pem()]) {
        fs::write(file, text).unwrap();
    }
    files
}

fn read_port(lines: &mut impl BufRead) -> u16 {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim().parse().unwrap_or_else(|_| panic!("the server says {line:?} instead of a port"))
}

/// The variables by which toolchains are found: HOME is the place's, so that theirs are named.
fn toolchain_variables() -> [(&'static str, OsString); 3] {
    let home = PathBuf::from(env::var_os("HOME").unwrap_or_default());
    let find = |name: &str, default: &str| {
        env::var_os(name).unwrap_or_else(|| home.join(default).into_os_string())
    };
    [
        ("PATH", env::var_os("PATH").unwrap_or_default()),
        ("CARGO_HOME", find("CARGO_HOME", ".cargo")),
        ("RUSTUP_HOME", find("RUSTUP_HOME", ".rustup")),
    ]
}
