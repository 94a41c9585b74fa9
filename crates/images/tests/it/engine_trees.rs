//! The tree of an image beside the one that a container engine makes of it: pulled by both from one registry, and
//! looked at in a container that runs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_images::{ImageStore, InProcess};

use crate::engines::{ContainerEngine, EngineKind};
use crate::support::archive::{ArchiveBuilder, RawEntry};
use crate::support::registry::{Access, Registry, run};
use crate::support::tree::describe_tree_with_xattrs;

/// The directory that is compared: engines put files of their own into others.
const COMPARED_DIR: &str = "tree";
/// What is lost on purpose: owners, and the bits that make a program another user's.
const OWNED_FILE: &str = "owned";
const SET_ID_FILE: &str = "set-id";

/// A tree as it is described, with the owner of one file and the whole mode of another.
struct SeenTree {
    entries: BTreeMap<String, String>,
    owner: (u32, u32),
    set_id_mode: u32,
}

impl SeenTree {
    fn look(root: &Path) -> Self {
        let metadata = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
        let owned = metadata(OWNED_FILE);
        Self {
            entries: describe_tree_with_xattrs(root),
            owner: (owned.uid(), owned.gid()),
            set_id_mode: metadata(SET_ID_FILE).mode() & 0o7777,
        }
    }
}

/// Pulls one image by us and by an engine, and compares modes, times, contents, links and attributes.
pub async fn assert_engine_has_the_same_tree(kind: EngineKind) {
    let place = tempfile::tempdir().unwrap();
    let registry = Registry::start(Access::Plain).await;
    registry.fill(&make_layout(place.path()), "oci");
    let theirs = look_into_container(kind, &registry.reference());
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let reference = registry.reference().parse().unwrap();
    let pulled = store.pull(&reference, &registry.options(), &InProcess, &()).await.unwrap();
    let ours = SeenTree::look(&pulled.root.join(COMPARED_DIR));
    for (name, what) in &theirs.entries {
        assert_eq!(ours.entries.get(name), Some(what), "`{name}` of {kind:?}");
    }
    assert_eq!(ours.entries.len(), theirs.entries.len(), "{:?}", ours.entries.keys());
    assert_eq!((theirs.owner, theirs.set_id_mode), ((33, 1000), 0o6755));
    let store_owner = fs::metadata(store.directory()).unwrap();
    assert_eq!(ours.owner, (store_owner.uid(), store_owner.gid()));
    assert_eq!(ours.set_id_mode, 0o755);
}

fn look_into_container(kind: EngineKind, reference: &str) -> SeenTree {
    let engine = ContainerEngine::start(kind);
    let pull: &[&str] = match kind {
        // It takes plain HTTP from loopback.
        EngineKind::Docker => &["pull", "--quiet"],
        EngineKind::Podman => &["pull", "--quiet", "--tls-verify=false"],
    };
    engine.read_client_output(&[pull, &[reference]].concat());
    // Low enough for a test whose own limits are below an engine's defaults.
    let limits = ["--ulimit", "nofile=64:64", "--ulimit", "nproc=64:64"];
    let run = ["run", "--detach", "--network", "none"];
    let sleep = [reference, "/bin/busybox", "sleep", "1000"];
    let container = engine.read_client_output(&[&run[..], &limits, &sleep].concat());
    let pid = engine.read_client_output(&["inspect", "--format", "{{.State.Pid}}", &container]);
    let seen = SeenTree::look(&Path::new("/proc").join(pid).join("root").join(COMPARED_DIR));
    engine.read_client_output(&["kill", &container]);
    seen
}

/// An image with everything that a layer can say, in three layers.
fn make_layout(dir: &Path) -> PathBuf {
    let layout = dir.join("layout");
    let image = format!("{}:test", layout.display());
    run("umoci", &["init", "--layout", layout.to_str().unwrap()]);
    run("umoci", &["new", "--image", &image]);
    for (name, layer) in
        [("lower", lower_layer()), ("middle", middle_layer()), ("upper", upper_layer())]
    {
        let file = dir.join(name);
        fs::write(&file, layer.finish()).unwrap();
        run("umoci", &["raw", "add-layer", "--image", &image, file.to_str().unwrap()]);
    }
    layout
}

fn busybox() -> ArchiveBuilder {
    let contents = fs::read("/bin/busybox").unwrap();
    ArchiveBuilder::new().dir("bin", 0o755).raw(RawEntry {
        name: b"bin/busybox",
        mode: 0o755,
        size: contents.len() as u64,
        contents: &contents,
        ..RawEntry::default()
    })
}

fn lower_layer() -> ArchiveBuilder {
    let kept = busybox()
        .pax(&[("SCHILY.xattr.user.dir", b"lower"), ("SCHILY.xattr.user.lost", b"1")])
        .dir("tree", 0o755)
        .dir("tree/sticky", 0o1777)
        .dir("tree/closed", 0)
        .file_with_mode("tree/set-id", 0o6755)
        .pax(&[("uid", b"33"), ("gid", b"1000")])
        .file("tree/owned", "x")
        .pax(&[("mtime", b"1500000000.123456789")])
        .file("tree/timed", "x")
        .pax(&[("SCHILY.xattr.user.one", b"1"), ("SCHILY.xattr.user.two", b"a\nb\0c")])
        .file("tree/attributes", "x")
        .file("tree/first", "same")
        .hard_link("tree/second", "tree/first")
        .hard_link("tree/third", "tree/first")
        .pax(&[("mtime", b"1400000000.5")])
        .symlink("tree/link", "/etc/passwd")
        .symlink("tree/dangling", "../../nowhere")
        .pax(&[("path", format!("tree/{}", "n".repeat(180)).as_bytes())])
        .file("short", "long");
    kept.dir("tree/hidden", 0o755)
        .file("tree/hidden/gone", "x")
        .file("tree/hidden/stays", "x")
        .dir("tree/hidden/sub", 0o755)
        .file("tree/hidden/sub/x", "x")
        .pax(&[("SCHILY.xattr.user.dir", b"lower")])
        .dir("tree/opaque", 0o711)
        .file("tree/opaque/old", "x")
        .dir("tree/opaque/sub", 0o755)
        .file("tree/opaque/sub/old", "x")
        .dir("tree/replaced", 0o755)
        .file("tree/replaced/x", "x")
        .file("tree/grown", "x")
        .symlink("tree/turned", "attributes")
        .dir("tree/whited-out", 0o755)
        .file("tree/whited-out/x", "x")
        .dir("tree/changed", 0o750)
        .file("tree/changed/old", "x")
        .pax(&[("SCHILY.xattr.user.one", b"1")])
        .file("tree/rewritten", "x")
}

fn middle_layer() -> ArchiveBuilder {
    ArchiveBuilder::new()
        .pax(&[("SCHILY.xattr.user.dir", b"middle"), ("mtime", b"1650000000.25")])
        .dir("tree", 0o755)
        .dir("tree/hidden", 0o755)
        .whiteout("tree/hidden/.wh.gone")
        .whiteout("tree/hidden/.wh.sub")
        .dir("tree/opaque", 0o700)
        .whiteout("tree/opaque/.wh..wh..opq")
        .file("tree/opaque/new", "2")
        .dir("tree/opaque/sub", 0o755)
        .file("tree/opaque/sub/new", "2")
        .file("tree/replaced", "a file now")
        .dir("tree/grown", 0o700)
        .file("tree/grown/x", "2")
        .file("tree/turned", "a file now")
        .whiteout("tree/.wh.whited-out")
        .pax(&[("mtime", b"1650000000.75")])
        .dir("tree/changed", 0o755)
        .file_with_mode("tree/changed/new", 0o600)
        .file("tree/rewritten", "without attributes")
        .file("tree/first", "no longer the same")
}

fn upper_layer() -> ArchiveBuilder {
    ArchiveBuilder::new()
        .pax(&[("SCHILY.xattr.user.dir", b"upper")])
        .dir("tree", 0o755)
        .file("tree/whited-out", "again")
        .dir("tree/opaque", 0o705)
        .whiteout("tree/opaque/.wh.new")
        .file("tree/opaque/newer", "3")
}
