//! Layers that come together as they say.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_images::{
    Compression, ImageStore, StoredImage, UnpackLimits, UnpackReply, UnpackRequest, unpack_program,
};

use crate::support::archive::{ArchiveBuilder, RawEntry};
use crate::support::image::TestImage;
use crate::support::import;
use crate::support::tree::{describe_tree, paths, user_xattrs};

fn layer() -> ArchiveBuilder {
    ArchiveBuilder::new()
}

struct Imported {
    image: StoredImage,
    _place: tempfile::TempDir,
}

impl Imported {
    async fn of(layers: &[ArchiveBuilder]) -> Self {
        let layers: Vec<_> = layers.iter().cloned().map(ArchiveBuilder::finish).collect();
        Self::of_archives(&layers).await
    }

    async fn of_archives(layers: &[Vec<u8>]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = ImageStore::open(place.path().join("store")).unwrap();
        let layout = place.path().join("layout");
        TestImage::new(layers).write_layout(&layout);
        let image = import(&store, &layout).await.unwrap();
        Self { image, _place: place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.image.root.join(name)
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::symlink_metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }
}

/// As `umoci insert` writes them, and Docker reads them.
#[tokio::test]
async fn an_archive_may_end_with_the_last_byte_of_its_last_file() {
    let mut archive = layer().file("first", "1").file("last", "hello").unfinished();
    archive.truncate(3 * 512 + "hello".len());
    let imported = Imported::of_archives(&[archive]).await;
    assert_eq!(imported.read("last").as_deref(), Some("hello"));
}

#[tokio::test]
async fn whiteouts_hide_what_is_below_and_not_what_the_same_layer_adds() {
    let lower = layer()
        .file("kept", "1")
        .file("dir/gone", "1")
        .file("dir/stays", "1")
        .file("tree/deep/x", "1")
        .file("over/old", "1")
        .file("over/sub/old", "1")
        .file("late/old", "1")
        .file("replaced/old", "1");
    let upper = layer()
        .whiteout("./dir/.wh.gone")
        .whiteout(".wh.tree")
        .whiteout("over/.wh..wh..opq")
        .file("over/new", "2")
        .file("over/sub/new", "2")
        .file("kept", "2")
        // The order in a layer says nothing.
        .file("late/new", "2")
        .whiteout("late/.wh..wh..opq")
        .file("replaced/new", "2")
        .whiteout(".wh.replaced")
        .whiteout(".wh.never-there")
        .whiteout("nowhere/.wh.x");
    let tree = Imported::of(&[lower, upper]).await;
    assert_eq!(
        paths(&tree.image.root),
        [
            "dir",
            "dir/stays",
            "kept",
            "late",
            "late/new",
            "over",
            "over/new",
            "over/sub",
            "over/sub/new",
            "replaced",
            "replaced/new"
        ]
    );
    assert_eq!(tree.read("kept").as_deref(), Some("2"));
}

#[tokio::test]
async fn entries_replace_what_is_below_them_whatever_it_was() {
    let lower =
        layer().dir("d", 0o755).file("d/x", "1").file("f", "1").symlink("s", "/etc").file("g", "1");
    let upper =
        layer().file("d", "2").dir("f", 0o711).file("f/x", "2").dir("s", 0o700).file("s/y", "2");
    let upper = upper.symlink("g", "d");
    let tree = Imported::of(&[lower, upper]).await;
    assert_eq!(paths(&tree.image.root), ["d", "f", "f/x", "g", "s", "s/y"]);
    assert_eq!((tree.read("d").as_deref(), tree.mode("f")), (Some("2"), 0o711));
    assert_eq!(fs::read_link(tree.path("g")).unwrap(), Path::new("d"));
}

#[tokio::test]
async fn modes_without_set_id_bits_times_links_and_attributes_are_kept() {
    let tree = Imported::of(&[layer()
        .dir("./", 0o751)
        .dir("sticky", 0o1777)
        .file_with_mode("sticky/setuid", 0o4755)
        .file_with_mode("setgid", 0o2711)
        .symlink("link", "../../outside")
        .hard_link("same", "setgid")
        .pax(&[
            ("mtime", b"1600000000.25"),
            ("SCHILY.xattr.user.kept", b"a\nb"),
            ("SCHILY.xattr.security.capability", b"\x01"),
        ])
        .file("timed", "x")])
    .await;
    assert_eq!(tree.mode(""), 0o751);
    assert_eq!((tree.mode("sticky"), tree.mode("sticky/setuid")), (0o1777, 0o755));
    assert_eq!((tree.mode("setgid"), tree.mode("same")), (0o711, 0o711));
    let inode = |name: &str| fs::symlink_metadata(tree.path(name)).unwrap().ino();
    assert_eq!(inode("setgid"), inode("same"));
    assert_eq!(fs::read_link(tree.path("link")).unwrap(), Path::new("../../outside"));
    let timed = fs::metadata(tree.path("timed")).unwrap();
    assert_eq!((timed.mtime(), timed.mtime_nsec()), (1_600_000_000, 250_000_000));
    for name in ["", "sticky", "link", "setgid"] {
        assert_eq!(fs::symlink_metadata(tree.path(name)).unwrap().mtime(), 1_700_000_000, "{name}");
    }
    let mut value = [0; 16];
    match rustix::fs::getxattr(tree.path("timed"), "user.kept", &mut value) {
        Ok(length) => assert_eq!(&value[..length], b"a\nb"),
        Err(errno) => assert_eq!(errno, rustix::io::Errno::OPNOTSUPP, "the file system has none"),
    }
}

#[tokio::test]
async fn a_listed_directory_has_the_attributes_of_its_uppermost_layer_alone() {
    let lower = layer()
        .pax(&[("SCHILY.xattr.user.lower", b"1")])
        .dir("./", 0o755)
        .pax(&[("SCHILY.xattr.user.lower", b"1"), ("SCHILY.xattr.user.both", b"1")])
        .dir("listed", 0o000)
        .pax(&[("SCHILY.xattr.user.lower", b"1")])
        .dir("implied", 0o755);
    let upper = layer()
        .dir("./", 0o755)
        .pax(&[("SCHILY.xattr.user.both", b"2"), ("SCHILY.xattr.user.upper", b"2")])
        .dir("listed", 0o755)
        .file("implied/file", "2");
    let tree = Imported::of(&[lower, upper]).await;
    let names = |name: &str| user_xattrs(&tree.path(name)).into_keys().collect::<Vec<_>>();
    let mut value = [0; 1];
    if rustix::fs::getxattr(tree.path("implied"), "user.lower", &mut value)
        == Err(rustix::io::Errno::OPNOTSUPP)
    {
        assert_eq!(names("listed"), [""; 0], "the file system has none");
        return;
    }
    assert_eq!(
        (names(""), names("listed")),
        (vec![], vec!["user.both".into(), "user.upper".into()])
    );
    assert_eq!(names("implied"), ["user.lower"]);
    assert_eq!(user_xattrs(&tree.path("listed"))["user.both"], b"2");
}

#[tokio::test]
async fn devices_in_dev_are_left_out_and_counted() {
    let tree = Imported::of(&[layer()
        .dir("dev", 0o755)
        .device(b'3', "dev/null")
        .device(b'4', "dev/sda")
        .device(b'6', "dev/pipe")
        .file("dev/plain", "x")])
    .await;
    assert_eq!(paths(&tree.image.root), ["dev", "dev/plain"]);
    assert_eq!(tree.image.skipped_devices, 3);
}

#[tokio::test]
async fn every_way_of_writing_long_names_is_read() {
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(150));
    let tree = Imported::of(&[layer()
        .pax(&[("path", long.as_bytes())])
        .file("short", "pax")
        .extension(b'L', format!("g/{long}\0").as_bytes())
        .file("short", "gnu")
        .extension(b'K', format!("{long}\0").as_bytes())
        .symlink("link", "short")])
    .await;
    assert_eq!(tree.read(&long).as_deref(), Some("pax"));
    assert_eq!(tree.read(&format!("g/{long}")).as_deref(), Some("gnu"));
    assert_eq!(fs::read_link(tree.path("link")).unwrap(), Path::new(&long));
    let old = RawEntry { kind: b'\0', name: b"olddir/", ..RawEntry::default() };
    assert!(Imported::of(&[layer().raw(old)]).await.path("olddir").is_dir());
}

#[tokio::test]
async fn an_image_without_layers_is_an_empty_root() {
    let tree = Imported::of(&[]).await;
    assert_eq!(paths(&tree.image.root), [""; 0]);
    assert_eq!(tree.mode(""), 0o755);
}

/// Runs the program as an ordinary user, also where the test is root's.
fn run_program(program: &Path, tree: &Path, archive: &[u8]) -> UnpackReply {
    let request = UnpackRequest { compression: Compression::None, limits: UnpackLimits::default() };
    let layer = tree.with_file_name("layer");
    fs::write(&layer, archive).unwrap();
    let mut command = Command::new(program);
    command.arg(serde_json::to_string(&request).unwrap()).current_dir(tree);
    command.stdin(fs::File::open(&layer).unwrap()).stderr(Stdio::inherit());
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn the_program_applies_layers_over_directories_that_are_closed_to_their_owner() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (program, tree) = (place.path().join("unpack"), place.path().join("tree"));
    fs::write(&program, unpack_program()).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&tree).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&tree, Some(65534), Some(65534)).unwrap();
    }
    let lower = layer()
        .dir("./", 0o555)
        .dir("closed", 0o000)
        .dir("closed/inner", 0o100)
        .file("closed/inner/f", "1")
        .file("closed/gone", "1");
    let upper = layer()
        .file("closed/inner/g", "2")
        .hard_link("closed/inner/h", "closed/inner/f")
        .whiteout("closed/.wh.gone")
        .file("top", "2");
    for archive in [lower, upper] {
        let reply = run_program(&program, &tree, &archive.finish());
        assert!(matches!(reply, UnpackReply::Unpacked(_)), "{reply:?}");
    }
    let refused = run_program(&program, &tree, &layer().file("../x", "x").finish());
    assert!(matches!(&refused, UnpackReply::Refused(reason) if reason.contains("`../x`")));
    // As root, whom modes do not keep out; an ordinary user's own tests end with the modes.
    if rustix::process::geteuid().is_root() {
        let described = describe_tree(&tree);
        let mode = |name: &str| described[name].split(' ').next().unwrap().to_owned();
        assert_eq!(
            (mode(""), mode("closed"), mode("closed/inner")),
            ("555".into(), "0".into(), "100".into())
        );
        assert!(described.contains_key("closed/inner/h") && !described.contains_key("closed/gone"));
    }
    stockade_fs::remove_tree(&tree).unwrap();
}
