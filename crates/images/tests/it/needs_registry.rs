//! A real registry, filled by the tools of the field: what is pulled is what `umoci` unpacks.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use stockade_images::{
    CredentialFiles, ImageError, ImageStore, InProcess, PullOptions, RegistrySettings, StoredImage,
};

use crate::support::archive::ArchiveBuilder;
use crate::support::pull_options;
use crate::support::tree::describe_tree;

/// `alice` with the password `secret`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "alice:$2y$05$EEc3iDXj7X7EAA.DiyI5De0hJ0cbDP8hllxMxjcUwjrTfce0v6maW\n";

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// A registry of this test's own. It ends with this.
struct Registry {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
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
    async fn start(access: Access) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let mut config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: 127.0.0.1:{port}\n",
            path("data")
        );
        match access {
            Access::Plain => {}
            Access::Password => {
                fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
                let file = path("htpasswd");
                config
                    .push_str(&format!("auth:\n  htpasswd:\n    realm: test\n    path: {file}\n"));
            }
            Access::Tls => {
                make_certificates(dir.path());
                let (key, certificate) = (path("key.pem"), path("certificate.pem"));
                config
                    .push_str(&format!("  tls:\n    certificate: {certificate}\n    key: {key}\n"));
            }
        }
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

    fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn reference(&self) -> String {
        format!("{}/team/test:1", self.name())
    }

    /// Copies the image of a layout into it.
    fn fill(&self, layout: &Path, format: &str) {
        let source = format!("oci:{}:test", layout.display());
        let target = format!("docker://{}", self.reference());
        let mut arguments = vec!["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"];
        if self.access == Access::Password {
            arguments.push("--dest-creds=alice:secret");
        }
        arguments.extend(["--format", format, &source, &target]);
        run("skopeo", &arguments);
    }

    fn options(&self) -> PullOptions {
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
fn make_certificates(dir: &Path) {
    let path = |name: &str| dir.join(name).display().to_string();
    let (ca_key, ca, key) = (path("ca-key.pem"), path("ca.pem"), path("key.pem"));
    let (request, certificate, extensions) =
        (path("request.pem"), path("certificate.pem"), path("extensions"));
    let ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"];
    let new = |rest: &[&str]| run("openssl", &[&["req"], &ec[..], rest].concat());
    new(&["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", &ca_key, "-out", &ca]);
    new(&["-subj", "/CN=127.0.0.1", "-keyout", &key, "-out", &request]);
    fs::write(&extensions, "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n").unwrap();
    let sign = ["x509", "-req", "-days", "2", "-CAcreateserial", "-in", &request, "-CA", &ca];
    let rest = ["-CAkey", &ca_key, "-extfile", &extensions, "-out", &certificate];
    run("openssl", &[&sign[..], &rest[..]].concat());
}

/// An image of this host's own files and of everything that a layer can say, as `umoci` makes it.
fn make_layout(dir: &Path) -> PathBuf {
    let layout = dir.join("layout");
    let image = format!("{}:test", layout.display());
    run("umoci", &["init", "--layout", layout.to_str().unwrap()]);
    run("umoci", &["new", "--image", &image]);
    let files = dir.join("files.tar");
    // Hard links, long names and a thousand small files.
    let source = ["-C", "/", "--ignore-failed-read", "--warning=no-file-changed"];
    let paths = ["usr/share/zoneinfo", "usr/share/perl-base", "etc/alternatives"];
    let paths: Vec<_> =
        paths.into_iter().filter(|path| Path::new("/").join(path).exists()).collect();
    let archive = ["--format=pax", "-cf", files.to_str().unwrap()];
    // With the directories that they are in: what no layer lists has no time to compare.
    let above = ["--no-recursion", "usr", "usr/share", "etc", "--recursion"];
    run("tar", &[&archive[..], &source[..], &above[..], &paths].concat());
    let base = ArchiveBuilder::new()
        .dir("etc", 0o750)
        .file("etc/gone", "1")
        .dir("etc/over", 0o755)
        .file("etc/over/old", "1")
        .dir("opaque", 0o711)
        .file("opaque/old", "1")
        .file_with_mode("setuid", 0o4755)
        .hard_link("same", "setuid")
        .symlink("link", "/etc/passwd")
        .dir("turned", 0o755)
        .file("turned/x", "1");
    let upper = ArchiveBuilder::new()
        .dir("etc", 0o755)
        .whiteout("etc/.wh.gone")
        .dir("opaque", 0o700)
        .whiteout("opaque/.wh..wh..opq")
        .file("opaque/new", "2")
        .file("turned", "2")
        .pax(&[("mtime", b"1500000000.123456789")])
        .file("etc/timed", "2");
    for (name, archive) in [("base.tar", base), ("upper.tar", upper)] {
        fs::write(dir.join(name), archive.finish()).unwrap();
    }
    for layer in [files, dir.join("base.tar"), dir.join("upper.tar")] {
        run("umoci", &["raw", "add-layer", "--image", &image, layer.to_str().unwrap()]);
    }
    layout
}

async fn pull(registry: &Registry, store: &Path) -> Result<StoredImage, ImageError> {
    let store = ImageStore::open(store).unwrap();
    let reference = registry.reference().parse().unwrap();
    store.pull(&reference, &registry.options(), &InProcess, &()).await
}

#[tokio::test]
async fn a_pulled_tree_is_what_umoci_unpacks() {
    let dir = tempfile::tempdir().unwrap();
    let layout = make_layout(dir.path());
    let bundle = dir.path().join("bundle");
    let image = format!("{}:test", layout.display());
    let mut unpack = vec!["unpack", "--image", &image];
    if !rustix::process::geteuid().is_root() {
        unpack.push("--rootless");
    }
    unpack.push(bundle.to_str().unwrap());
    run("umoci", &unpack);
    let expected = describe_tree(&bundle.join("rootfs"));
    assert!(expected.len() > 100);
    let registry = Registry::start(Access::Plain).await;
    for format in ["oci", "v2s2"] {
        registry.fill(&layout, format);
        let pulled = pull(&registry, &dir.path().join(format)).await.unwrap();
        let actual = describe_tree(&pulled.root);
        for (name, expected) in &expected {
            // The root's own time is that of the unpacking where no layer lists it.
            assert!(
                name.is_empty() || actual.get(name) == Some(expected),
                "{format} `{name}`: {expected:?} {:?}",
                actual.get(name)
            );
        }
        assert_eq!(actual.len(), expected.len());
    }
}

#[tokio::test]
async fn a_registry_with_passwords_is_read_with_credentials_only() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, registry) = (make_layout(dir.path()), Registry::start(Access::Password).await);
    registry.fill(&layout, "oci");
    pull(&registry, &dir.path().join("store")).await.unwrap();
    let store = ImageStore::open(dir.path().join("other")).unwrap();
    let reference = registry.reference().parse().unwrap();
    let error = store.pull(&reference, &pull_options(), &InProcess, &()).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
}

#[tokio::test]
async fn a_registry_with_tls_is_read_where_its_authority_is_known_only() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, registry) = (make_layout(dir.path()), Registry::start(Access::Tls).await);
    registry.fill(&layout, "oci");
    pull(&registry, &dir.path().join("store")).await.unwrap();
    let store = ImageStore::open(dir.path().join("other")).unwrap();
    let mut options = registry.options();
    // Another authority of the same name.
    let other = dir.path().join("authority");
    fs::create_dir(&other).unwrap();
    make_certificates(&other);
    let ca_file = Some(other.join("ca.pem"));
    let settings = RegistrySettings { ca_file, ..RegistrySettings::default() };
    options.registries.by_name.insert(registry.name(), settings);
    let reference = registry.reference().parse().unwrap();
    let error = store.pull(&reference, &options, &InProcess, &()).await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn an_exported_image_is_read_by_skopeo_and_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, registry) = (make_layout(dir.path()), Registry::start(Access::Plain).await);
    registry.fill(&layout, "oci");
    let pulled = pull(&registry, &dir.path().join("store")).await.unwrap();
    let archive = dir.path().join("image.tar");
    let store = ImageStore::open(dir.path().join("store")).unwrap();
    store.export(&registry.reference(), &archive).unwrap();
    let source = format!("oci-archive:{}", archive.display());
    let target = format!("docker://{}/again:1", registry.name());
    run(
        "skopeo",
        &["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", &source, &target],
    );
    let reference = format!("{}/again:1", registry.name()).parse().unwrap();
    let again = store.pull(&reference, &registry.options(), &InProcess, &()).await.unwrap();
    assert_eq!(again.manifest, pulled.manifest);
}

#[tokio::test]
async fn what_is_pushed_is_pulled_back_with_the_same_digest_and_read_by_skopeo() {
    let dir = tempfile::tempdir().unwrap();
    let layout = make_layout(dir.path());
    for access in [Access::Plain, Access::Password, Access::Tls] {
        let registry = Registry::start(access).await;
        registry.fill(&layout, "oci");
        let place = tempfile::tempdir_in(dir.path()).unwrap();
        let pulled = pull(&registry, &place.path().join("store")).await.unwrap();
        let store = ImageStore::open(place.path().join("store")).unwrap();
        let (name, options) = (registry.reference(), registry.options());
        let target = format!("{}/other/place:2", registry.name()).parse().unwrap();
        store.push(&name, Some(&target), &options, &()).await.unwrap();
        let other = ImageStore::open(place.path().join("other")).unwrap();
        let by_digest = target.with_digest(pulled.manifest.clone());
        let again = other.pull(&by_digest, &options, &InProcess, &()).await.unwrap();
        assert_eq!(describe_tree(&again.root), describe_tree(&pulled.root));
        let out = format!("oci:{}:out", place.path().join("out").display());
        let mut copy = vec!["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false"];
        if access == Access::Password {
            copy.push("--src-creds=alice:secret");
            let denied = store.push(&name, Some(&target), &pull_options(), &()).await;
            assert!(matches!(denied, Err(ImageError::PushDenied { .. })), "{denied:?}");
        }
        let source = format!("docker://{target}");
        copy.extend([source.as_str(), out.as_str()]);
        run("skopeo", &copy);
    }
}
