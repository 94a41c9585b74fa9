//! Every client in one sandbox of each other backend: HTTPS by proxy, by name and by SOCKS, HTTP/2, WebSockets, git, pip
//! and lookups, with the sites' hosts allowed and no other.

use std::fs;

use super::packages::{GIT_IDENTITY, serve_repository};
use super::site::{CERTIFICATE, Site};
use crate::common::CliPlace;
use crate::network::KNOWN_NAME;

/// The certificate of the site with HTTP/2, beside that of the first one.
const HTTP2_CERTIFICATE: &str = "http2.pem";

/// Three sites at the same name, visited from the place of the first.
struct Sites {
    https: Site,
    http2: Site,
    http: Site,
}

impl Sites {
    /// Sites whose visitors are configured so, beside their network.
    fn start(settings: &str) -> Self {
        let https = Site::https_with(CliPlace::new(), settings);
        let (http2, http) = (Site::http2(CliPlace::new()), Site::http(CliPlace::new()));
        https.write("hello.txt", "hello\n");
        serve_repository(&https);
        https.lay_out_index("python");
        let certificate = fs::read_to_string(http2.place.workspace().join(CERTIFICATE)).unwrap();
        https.place.write(HTTP2_CERTIFICATE, &certificate);
        https.place.write("websocket.py", include_str!("websocket.py"));
        Self { https, http2, http }
    }

    fn rules(&self) -> String {
        let rules = [&self.https, &self.http2, &self.http]
            .map(|site| format!("{KNOWN_NAME}:{port},127.0.0.1:{port}", port = site.port));
        rules.join(",")
    }

    /// Lines of shell, each with what it prints.
    fn visits(&self) -> Vec<(String, String)> {
        let (page, socket) = (self.https.url("hello.txt"), self.http.port);
        let curl = format!("curl -fsS --cacert {CERTIFICATE}");
        let hello = |line: String| (line, "hello\n".to_owned());
        let says = |line: String, text: &str| (line, format!("{text}\n"));
        let mut visits = Vec::new();
        for way in ["", "--noproxy '*'", "--proxy socks5h://127.63.0.53:1080"] {
            visits.push(hello(format!("{curl} {way} {page}")));
        }
        for way in ["", "--noproxy '*'"] {
            let line =
                format!("curl -fsS {way} --cacert {HTTP2_CERTIFICATE} {}", self.http2.url(""));
            visits.push(says(line, &format!("{KNOWN_NAME}:{} over HTTP/2", self.http2.port)));
        }
        for way in ["name", "proxy"] {
            let line = format!("/usr/bin/python3 websocket.py {way} {KNOWN_NAME} {socket}");
            visits.push(says(line, "through the socket"));
        }
        let git = format!("git -c http.sslCAInfo={CERTIFICATE} {GIT_IDENTITY}");
        let clone = format!("{git} clone --quiet {} cloned", self.https.url("tiny.git"));
        visits.push(hello(format!("{clone} && cat cloned/hello.txt")));
        let pip = format!(
            "/usr/bin/pip install --quiet --disable-pip-version-check --no-compile --retries 0 --cert {CERTIFICATE} \
             --target installed --index-url {} tiny",
            self.https.url("simple")
        );
        visits.push(says(format!("{pip} && cat installed/tiny.py"), "print('tiny of python')"));
        for options in ["", "RES_OPTIONS=use-vc "] {
            let line = format!("{options}getent hosts {KNOWN_NAME} > found && cut -c1-4 found");
            visits.push(says(line, "127."));
        }
        // Another name, another port of this one, and the address without the proxies.
        let port = self.https.port;
        for (way, url) in [
            ("", format!("https://other.test:{port}/")),
            ("--noproxy '*'", format!("https://other.test:{port}/")),
            ("", format!("http://{KNOWN_NAME}:1/")),
            ("--noproxy '*'", format!("https://127.0.0.1:{port}/")),
        ] {
            visits.push(says(format!("{curl} -k {way} {url} 2> error || echo closed"), "closed"));
        }
        visits
    }

    /// Runs all clients in one sandbox that is made with these flags.
    #[track_caller]
    fn visit_from(mut self, flags: &[&str]) {
        let (rules, visits) = (self.rules(), self.visits());
        let lines: Vec<_> = visits.iter().map(|(line, _)| line.as_str()).collect();
        let run = ["run", "--net", &rules, "--timeout", "5m", "--cpu-time", "4m"];
        let script = format!("set -e\n{}", lines.join("\n"));
        let line = [&run[..], flags, &["--shell", &script]].concat();
        // Programs of a slow backend take longer than the time in which a command of a test has to end.
        let done = self.https.place.command(&line).output().unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let expected: String = visits.into_iter().map(|(_, text)| text).collect();
        assert_eq!((done.status.code(), &*out), (Some(0), expected.as_str()), "{err}");
        // And the port of this name that no rule opens.
        let denied = format!("stockade: the network denied other.test:{} and ", self.https.port);
        assert!(err.contains(&denied), "{denied:?} is not in {err}");
        for site in [&mut self.https, &mut self.http2, &mut self.http] {
            assert_ne!(site.count_visits(), 0, "{err}");
        }
        self.https.place.assert_nothing_is_left();
    }
}

mod needs_docker_tls_curl_git_pip_node {
    use super::*;
    use crate::engines::{ContainerEngine, EngineKind};

    #[test]
    fn every_client_reaches_what_is_listed_from_docker() {
        let engine = ContainerEngine::start(EngineKind::Docker);
        let sites = Sites::start(&format!("[docker]\nsocket = {:?}\n", engine.socket));
        sites.visit_from(&["--backend", "docker", "--image", "host"]);
    }
}

mod needs_podman_tls_curl_git_pip_node {
    use super::*;
    use crate::engines::{ContainerEngine, EngineKind};

    #[test]
    fn every_client_reaches_what_is_listed_from_podman() {
        let engine = ContainerEngine::start(EngineKind::Podman);
        let sites = Sites::start(&format!("[docker]\nsocket = {:?}\n", engine.socket));
        sites.visit_from(&["--backend", "docker", "--image", "host"]);
    }
}

mod needs_gvisor_tls_curl_git_pip_node {
    use super::*;

    #[test]
    fn every_client_reaches_what_is_listed_from_gvisor() {
        Sites::start("").visit_from(&["--backend", "gvisor"]);
    }
}

mod needs_ssh_tls_curl_git_pip_node {
    use super::*;
    use crate::sshd::Sshd;

    #[test]
    fn every_client_reaches_what_is_listed_from_another_host() {
        let sshd = Sshd::start();
        let config = sshd.config();
        let sites = Sites::start(&format!("[[ssh.hosts]]\nname = \"far\"\nconfig = {config:?}\n"));
        sites.visit_from(&["--backend", "ssh"]);
    }
}
