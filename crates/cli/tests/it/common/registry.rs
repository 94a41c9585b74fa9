//! A registry of one's own on loopback, filled with small images that others made: `umoci` and `skopeo`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use stockade::images::Digest;
use tempfile::TempDir;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Programs of the images, all of them links to busybox.
const BUSYBOX_APPLETS: [&str; 12] =
    ["sh", "cat", "echo", "sleep", "id", "env", "pwd", "touch", "ls", "ln", "mkdir", "rm"];
/// How the server says where it listens.
const LISTENING: &str = "msg=\"listening on ";

/// A registry. It ends when this is dropped.
pub struct TestRegistry {
    dir: TempDir,
    child: Child,
    address: String,
}

impl TestRegistry {
    /// A registry with `team/busy:1`, whose `/etc/release` says `one`.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("stockade-registry-").tempdir().unwrap();
        let config = dir.path().join("config.yml");
        let storage = dir.path().join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\n\
             storage: {{filesystem: {{rootdirectory: {storage:?}}}}}\n\
             http: {{addr: \"127.0.0.1:0\"}}\n"
        );
        fs::write(&config, text).unwrap();
        let mut server = Command::new("docker-registry");
        server.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = server.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.by_ref().map(Result::unwrap).find_map(|line| address_in(&line));
        // What it says later is read and dropped, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let registry = Self { dir, child, address: address.expect("it listens nowhere") };
        registry.push("1", "one");
        registry
    }

    /// The name of the image with a tag.
    pub fn name(&self, tag: &str) -> String {
        format!("{}/team/busy:{tag}", self.address)
    }

    /// The name of an image of another repository.
    pub fn name_of(&self, repository: &str, tag: &str) -> String {
        format!("{}/{repository}:{tag}", self.address)
    }

    /// What `skopeo` finds under a name.
    pub fn inspect(&self, name: &str) -> serde_json::Value {
        let image = format!("docker://{name}");
        let args = ["inspect", "--tls-verify=false", &image];
        let done = Command::new("skopeo").args(args).stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).unwrap()
    }

    /// Has `skopeo` fetch and check every blob of an image.
    pub fn copy_out(&self, name: &str) -> PathBuf {
        let place = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let (image, layout) = (format!("docker://{name}"), format!("oci:{}:out", place.display()));
        let insecure = ["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false"];
        run("skopeo", &[&insecure[..], &[&image, &layout]].concat());
        place
    }

    /// Has `skopeo` write an image into a file that every user can read: `oci-archive`, `docker-archive`.
    pub fn save(&self, name: &str, kind: &str, file: &Path) {
        let (image, target) = (format!("docker://{name}"), format!("{kind}:{}", file.display()));
        let copy = ["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false"];
        run("skopeo", &[&copy[..], &[&image, &target]].concat());
        fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }

    /// Puts an image there under a tag; its `/etc/release` says this.
    pub fn push(&self, tag: &str, release: &str) {
        self.push_layout(&self.make_layout(release), &self.name(tag));
    }

    /// Puts the image `made` of an OCI layout there.
    pub fn push_layout(&self, layout: &Path, name: &str) {
        let source = format!("oci:{}:made", layout.display());
        let target = format!("docker://{name}");
        run("skopeo", &["copy", "--quiet", "--dest-tls-verify=false", &source, &target]);
    }

    /// An OCI layout with one artifact, `made`: a WebAssembly module of one of the layouts of the field.
    pub fn make_module_layout(&self, module: &[u8], (config, layer): (&str, &str)) -> PathBuf {
        let place = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let blobs = place.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let add = |media_type: &str, bytes: &[u8]| {
            let digest = Digest::of(bytes);
            fs::write(blobs.join(digest.hex()), bytes).unwrap();
            json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
        };
        let manifest = json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": add(config, b"{}"), "layers": [add(layer, module)] });
        let mut entry = add(OCI_MANIFEST, manifest.to_string().as_bytes());
        entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "made" });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] });
        fs::write(place.join("index.json"), index.to_string()).unwrap();
        fs::write(place.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        place
    }

    /// An OCI layout with one image, `made`: an entry point, a command, a variable, a directory and a user.
    pub fn make_layout(&self, release: &str) -> PathBuf {
        let place = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let (layout, bundle) = (place.join("layout"), place.join("bundle"));
        let image = format!("{}:made", layout.display());
        run("umoci", &["init", "--layout", layout.to_str().unwrap()]);
        run("umoci", &["new", "--image", &image]);
        let unpacked = bundle.to_str().unwrap();
        run("umoci", &["unpack", "--rootless", "--image", &image, unpacked]);
        let root = bundle.join("rootfs");
        for dir in ["bin", "etc", "srv"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for applet in BUSYBOX_APPLETS {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        fs::write(root.join("etc/release"), format!("{release}\n")).unwrap();
        // As every distribution has them.
        fs::write(root.join("etc/set-id"), "").unwrap();
        for (path, mode) in [("etc/set-id", 0o6755), ("srv", 0o2755)] {
            fs::set_permissions(root.join(path), PermissionsExt::from_mode(mode)).unwrap();
        }
        run("umoci", &["repack", "--image", &image, unpacked]);
        let entry = ["--config.entrypoint", "/bin/sh", "--config.entrypoint", "-c"];
        let own = ["--config.cmd", "echo $GREETING from $(pwd) as $(id -u)"];
        let around = ["--config.env", "GREETING=hello", "--config.workingdir", "/srv"];
        let user = ["--config.user", "33"];
        run("umoci", &[&["config", "--image", &image], &entry[..], &own, &around, &user].concat());
        layout
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address_in(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(LISTENING)?;
    Some(rest.split('"').next()?.to_owned())
}

fn run(program: &str, args: &[&str]) {
    let done = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}
