//! A real registry, filled by the tools of the field: what is pulled is what `umoci` unpacks.

mod tokens;
mod tunnels;

use std::fs;
use std::path::{Path, PathBuf};

use stockade_images::{ImageError, ImageStore, InProcess, RegistrySettings, StoredImage};

use crate::support::archive::ArchiveBuilder;
use crate::support::pull_options;
use crate::support::registry::{Access, Registry, make_certificates, run};
use crate::support::tree::describe_tree;

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
