//! A registry of a test's own, as Debian has it, with passwords or TLS.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use stockade_images::{CredentialFiles, PullOptions, RegistrySettings};

use super::pull_options;

/// `alice` with the password `secret`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "alice:$2y$05$EEc3iDXj7X7EAA.DiyI5De0hJ0cbDP8hllxMxjcUwjrTfce0v6maW\n";

/// Whom a registry that takes tokens asks for, and whose tokens it takes.
pub const TOKEN_SERVICE: &str = "test-registry";
pub const TOKEN_ISSUER: &str = "test-issuer";

/// Runs a program that has to succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// A registry of this test's own. It ends with this.
pub struct Registry {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    access: Access,
}

/// How it lets clients in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Plain,
    Password,
    Tls,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    pub async fn start(access: Access) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let settings = match access {
            Access::Plain => String::new(),
            Access::Password => {
                fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
                let file = path("htpasswd");
                format!("auth:\n  htpasswd:\n    realm: test\n    path: {file}\n")
            }
            Access::Tls => {
                make_certificates(dir.path());
                let (key, certificate) = (path("key.pem"), path("certificate.pem"));
                format!("  tls:\n    certificate: {certificate}\n    key: {key}\n")
            }
        };
        Self::launch(dir, &settings, access).await
    }

    /// One that takes tokens alone: given in this realm for the same password, and signed with the key of this
    /// certificate.
    pub async fn start_with_tokens(realm: &str, certificate: &Path) -> Self {
        let certificate = certificate.display();
        let settings = format!(
            "auth:\n  token:\n    realm: {realm}\n    service: {TOKEN_SERVICE}\n    \
             issuer: {TOKEN_ISSUER}\n    rootcertbundle: {certificate}\n"
        );
        Self::launch(tempfile::tempdir().unwrap(), &settings, Access::Password).await
    }

    async fn launch(dir: tempfile::TempDir, settings: &str, access: Access) -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:{port}\n{settings}",
            path("data")
        );
        fs::write(dir.path().join("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(path("config.yml")).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut registry = Self { child, port, dir, access };
        registry.wait_until_it_listens().await;
        registry
    }

    async fn wait_until_it_listens(&mut self) {
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert_eq!(self.child.try_wait().unwrap(), None, "the registry has ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn reference(&self) -> String {
        format!("{}/team/test:1", self.name())
    }

    /// Copies the image of a layout into it.
    pub fn fill(&self, layout: &Path, format: &str) {
        let source = format!("oci:{}:test", layout.display());
        let target = format!("docker://{}", self.reference());
        let mut arguments = vec!["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"];
        if self.access == Access::Password {
            arguments.push("--dest-creds=alice:secret");
        }
        arguments.extend(["--format", format, &source, &target]);
        run("skopeo", &arguments);
    }

    pub fn options(&self) -> PullOptions {
        let mut options = pull_options();
        match self.access {
            Access::Plain => {}
            Access::Password => {
                let path = self.dir.path().join("auth.json");
                let auths = json!({ "auths": { self.name(): { "auth": "YWxpY2U6c2VjcmV0" } } });
                fs::write(&path, auths.to_string()).unwrap();
                options.credentials = CredentialFiles::at([path]);
            }
            Access::Tls => {
                let ca_file = Some(self.dir.path().join("ca.pem"));
                let settings = RegistrySettings { ca_file, ..RegistrySettings::default() };
                options.registries.by_name.insert(self.name(), settings);
            }
        }
        options
    }
}

/// An authority and a certificate for 127.0.0.1.
pub fn make_certificates(dir: &Path) {
    let path = |name: &str| dir.join(name).display().to_string();
    let (ca_key, ca, key) = (path("ca-key.pem"), path("ca.pem"), path("key.pem"));
    let (request, certificate, extensions) =
        (path("request.pem"), path("certificate.pem"), path("extensions"));
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"];
    let new = |rest: &[&str]| run("openssl", &[&["req"], &ec[..], rest].concat());
    new(&["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", &ca_key, "-out", &ca]);
    new(&["-subj", "/CN=127.0.0.1", "-keyout", &key, "-out", &request]);
    fs::write(
        &extensions,
        "subjectAltName=IP:127.0.0.1,DNS:registry.test\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    let sign = ["x509", "-req", "-days", "2", "-CAcreateserial", "-in", &request, "-CA", &ca];
    let rest = ["-CAkey", &ca_key, "-extfile", &extensions, "-out", &certificate];
    run("openssl", &[&sign[..], &rest[..]].concat());
}
