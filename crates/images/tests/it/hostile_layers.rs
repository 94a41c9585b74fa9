//! Layers that are refused by name, with nothing left of their image.

use std::path::Path;

use serde_json::json;
use stockade_images::{ImageError, ImageLimits, ImageStore};

use crate::support::archive::{ArchiveBuilder, RawEntry};
use crate::support::image::{ImageBuilder, TestImage};
use crate::support::{import, import_within, leftovers};

/// Imports an image that has to be refused, and answers with the reason.
async fn refusal_of(image: TestImage, limits: &ImageLimits) -> String {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let layout = place.path().join("layout");
    image.write_layout(&layout);
    let error = import_within(&store, &layout, limits).await.unwrap_err();
    assert_eq!(leftovers(&store), [""; 0], "{error}");
    assert_untouched(place.path());
    error.to_string()
}

/// Nothing appeared beside the store and the layout.
fn assert_untouched(place: &Path) {
    let mut names: Vec<_> =
        std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["layout", "store"]);
}

async fn assert_refused(layers: &[ArchiveBuilder], reasons: &[&str]) {
    let layers: Vec<_> = layers.iter().cloned().map(ArchiveBuilder::finish).collect();
    let refusal = refusal_of(TestImage::new(&layers), &ImageLimits::default()).await;
    for reason in reasons {
        assert!(refusal.contains(reason), "`{refusal}` does not say `{reason}`");
    }
}

fn layer() -> ArchiveBuilder {
    ArchiveBuilder::new()
}

#[tokio::test]
async fn names_that_lead_out_of_the_root_are_refused() {
    assert_refused(&[layer().file("/etc/passwd", "x")], &["`/etc/passwd`", "absolute"]).await;
    assert_refused(&[layer().file("../x", "x")], &["`../x`", "upwards"]).await;
    assert_refused(&[layer().file("a/../../x", "x")], &["`a/../../x`", "upwards"]).await;
    assert_refused(&[layer().dir("..", 0o755)], &["`..`", "upwards"]).await;
    let pax = layer().pax(&[("path", b"../../x")]).file("fine", "x");
    assert_refused(&[pax], &["`../../x`"]).await;
    let long = layer().extension(b'L', b"/abs\0").file("fine", "x");
    assert_refused(&[long], &["`/abs`"]).await;
    assert_refused(&[layer().whiteout("../.wh.x")], &["upwards"]).await;
    assert_refused(&[layer().pax(&[("path", b"a\0b")]).file("fine", "x")], &["zero byte"]).await;
}

#[tokio::test]
async fn names_that_are_too_long_are_refused() {
    let long = "n".repeat(300);
    let entry = layer().pax(&[("path", long.as_bytes())]).file("fine", "x");
    assert_refused(&[entry], &["too long a name"]).await;
    let deep = "d/".repeat(300);
    let entry = layer().pax(&[("path", deep.as_bytes())]).dir("fine", 0o755);
    assert_refused(&[entry], &["too long a name"]).await;
}

#[tokio::test]
async fn nothing_is_written_through_a_symbolic_link() {
    let through = layer().symlink("a", "/tmp").file("a/x", "x");
    assert_refused(&[through], &["`a/x`", "behind `a`", "symbolic link"]).await;
    let up = layer().symlink("a", "..").file("a/x", "x");
    assert_refused(&[up], &["`a/x`", "symbolic link"]).await;
    let lower = layer().symlink("a", "b").dir("b", 0o755);
    assert_refused(&[lower.clone(), layer().file("a/x", "x")], &["`a/x`", "symbolic link"]).await;
    let turned = layer().symlink("a", "/etc").dir("a", 0o755).file("a/x", "x");
    assert_refused(&[turned], &["`a`", "a symbolic link and a directory"]).await;
    let within = layer().file("f", "x").file("f/x", "x");
    assert_refused(&[within], &["`f/x`", "no directory"]).await;
}

#[tokio::test]
async fn hard_links_lead_to_files_of_the_tree_only() {
    for (target, reason) in [
        ("/etc/passwd", "absolute"),
        ("../../etc/passwd", "upwards"),
        ("nothing", "not there"),
        ("dir", "no file"),
        ("link", "a symbolic link"),
        ("out/passwd", "behind a symbolic link"),
        ("hard", "cannot be linked to"),
    ] {
        let entry = layer()
            .dir("dir", 0o755)
            .symlink("link", "/etc/passwd")
            .symlink("out", "/etc")
            .hard_link("hard", target);
        assert_refused(&[entry], &[reason]).await;
    }
    let lower = layer().dir("d", 0o755).file("d/f", "x");
    assert_refused(&[lower, layer().hard_link("d", "d/f")], &["`d`", "replaces"]).await;
}

#[tokio::test]
async fn whiteouts_of_the_root_or_of_nothing_are_refused() {
    for name in [".wh.", ".wh..", ".wh...", "a/.wh.", "a/.wh..", "a/.wh..."] {
        assert_refused(&[layer().whiteout(name)], &[name, "whiteout"]).await;
    }
    assert_refused(&[layer().file("a/.wh.b/c", "x")], &["in a whiteout"]).await;
}

#[tokio::test]
async fn devices_outside_of_dev_are_refused() {
    for kind in [b'3', b'4', b'6'] {
        assert_refused(&[layer().device(kind, "etc/null")], &["`etc/null`", "device"]).await;
        assert_refused(&[layer().device(kind, "x/dev/null")], &["`x/dev/null`"]).await;
    }
    assert_refused(&[layer().device(b'Z', "what")], &["`what`", "unknown type"]).await;
}

#[tokio::test]
async fn archives_that_two_readers_would_read_differently_are_refused() {
    let entry = |size: u64| RawEntry { name: b"f", size, contents: b"abc", ..RawEntry::default() };
    let desync = layer().pax(&[("size", b"1024")]).raw(entry(3));
    assert_refused(&[desync], &["`f`", "two sizes", "1024"]).await;
    let hidden = layer().pax(&[("size", b"3")]).raw(entry(0));
    assert_refused(&[hidden], &["two sizes"]).await;
    let global = layer().extension(b'g', b"10 path=x\n").file("f", "x");
    assert_refused(&[global], &["global header"]).await;
    let twice = layer().pax(&[("path", b"a")]).pax(&[("path", b"b")]).file("f", "x");
    assert_refused(&[twice], &["two extended headers"]).await;
    let named = layer().pax(&[("path", b"a")]).extension(b'L', b"b\0").file("f", "x");
    assert_refused(&[named], &["two names"]).await;
    let contents = RawEntry { kind: b'5', name: b"d", size: 512, ..RawEntry::default() };
    assert_refused(&[layer().raw(contents)], &["`d`", "contents"]).await;
    let linked = RawEntry { kind: b'1', name: b"h", link: b"f", size: 3, ..RawEntry::default() };
    assert_refused(&[layer().file("f", "abc").raw(linked)], &["`h`", "contents"]).await;
    let dangling = layer().pax(&[("path", b"a")]);
    assert_refused(&[dangling], &["ends within"]).await;
    let sparse = layer().pax(&[("GNU.sparse.major", b"1")]).file("f", "x");
    assert_refused(&[sparse], &["sparse"]).await;
    let malformed = layer().extension(b'x', b"99 path=x\n").file("f", "x");
    assert_refused(&[malformed], &["malformed"]).await;
}

#[tokio::test]
async fn archives_that_are_cut_short_or_none_are_refused() {
    let mut cut = layer().file("f", &"x".repeat(2000)).unfinished();
    cut.truncate(1500);
    let refusal = refusal_of(TestImage::new(&[cut]), &ImageLimits::default()).await;
    assert!(refusal.contains("cut short"), "{refusal}");
    let refusal = refusal_of(TestImage::new(&[vec![b'x'; 4096]]), &ImageLimits::default()).await;
    assert!(refusal.contains("no archive"), "{refusal}");
}

#[tokio::test]
async fn bombs_are_cut_at_their_limits() {
    let bomb = layer().file("zeros", &"\0".repeat(8 << 20)).finish();
    let limits = ImageLimits { unpacked_bytes: 1 << 20, ..ImageLimits::default() };
    let refusal = refusal_of(TestImage::new(&[bomb]), &limits).await;
    assert!(refusal.contains("more than 1048576 bytes"), "{refusal}");
    let half = |name| layer().file(name, &"x".repeat(700 << 10)).finish();
    let refusal = refusal_of(TestImage::new(&[half("a"), half("b")]), &limits).await;
    assert!(refusal.contains("more than"), "the limit is for all layers: {refusal}");
    let many = (0..100).fold(layer(), |layer, at| layer.file(&format!("f{at}"), ""));
    let limits = ImageLimits { entries: 50, ..ImageLimits::default() };
    let refusal = refusal_of(TestImage::new(&[many.finish()]), &limits).await;
    assert!(refusal.contains("more than 50 entries"), "{refusal}");
    let deep =
        (0..3).fold(layer(), |layer, at| layer.file(&format!("{at}/{}f", "d/".repeat(40)), ""));
    let refusal = refusal_of(TestImage::new(&[deep.finish()]), &limits).await;
    assert!(refusal.contains("too many directories"), "{refusal}");
    let huge = RawEntry { kind: b'L', name: b"L", size: 1 << 30, ..RawEntry::default() };
    assert_refused(&[layer().raw(huge)], &["extended header is larger"]).await;
}

#[tokio::test]
async fn images_whose_parts_do_not_fit_each_other_are_refused() {
    let archives = [layer().file("a", "1").finish(), layer().file("b", "2").finish()];
    let mut fewer = ImageBuilder::new(&archives);
    fewer.config["rootfs"]["diff_ids"].as_array_mut().unwrap().pop();
    let refusal = refusal_of(fewer.build(), &ImageLimits::default()).await;
    assert!(refusal.contains("2 layers and 1 diff ids"), "{refusal}");
    let mut swapped = ImageBuilder::new(&archives);
    swapped.config["rootfs"]["diff_ids"].as_array_mut().unwrap().reverse();
    let refusal = refusal_of(swapped.build(), &ImageLimits::default()).await;
    assert!(refusal.contains("uncompressed"), "{refusal}");
    let mut mislabelled = ImageBuilder::new(&archives);
    mislabelled.manifest["layers"][0]["mediaType"] =
        json!("application/vnd.oci.image.layer.v1.tar+zstd");
    let refusal = refusal_of(mislabelled.build(), &ImageLimits::default()).await;
    assert!(refusal.contains("decompressed"), "{refusal}");
    let mut wrong = TestImage::new(&archives);
    let blob = wrong.blobs.get_mut(&wrong.layers[0]).unwrap();
    blob[20] ^= 1;
    let refusal = refusal_of(wrong, &ImageLimits::default()).await;
    assert!(refusal.contains("has the digest"), "{refusal}");
    let mut foreign = ImageBuilder::new(&archives);
    foreign.manifest["layers"][0]["urls"] = json!(["https://example.org/layer"]);
    let refusal = refusal_of(foreign.build(), &ImageLimits::default()).await;
    assert!(refusal.contains("foreign"), "{refusal}");
}

#[tokio::test]
async fn a_refusal_shows_nothing_that_a_terminal_obeys() {
    let entry = layer().file("/\x1b]0;title\x07\u{202e}", "x").finish();
    let refusal = refusal_of(TestImage::new(&[entry]), &ImageLimits::default()).await;
    assert!(
        refusal.chars().all(|letter| !letter.is_control() && letter != '\u{202e}'),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn a_layout_leads_nowhere_else() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let (layout, image) =
        (place.path().join("layout"), TestImage::new(&[layer().file("a", "1").finish()]));
    image.write_layout(&layout);
    let blob = layout.join("blobs/sha256").join(image.layers[0].strip_prefix("sha256:").unwrap());
    std::fs::rename(&blob, place.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(place.path().join("elsewhere"), &blob).unwrap();
    let error = import(&store, &layout).await.unwrap_err();
    assert!(matches!(&error, ImageError::Refused(reason) if reason.contains("lacks")), "{error}");
}
