//! Archives and layouts of images, by their path: imported into the store and run from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::CliPlace;
use crate::common::image_commands::{cat_release, json, pull, started};
use crate::common::registry::TestRegistry;

/// How an image of a path is named.
fn at(path: &Path) -> String {
    format!("oci:{}", path.display())
}

#[test]
fn an_archive_runs_as_if_it_had_been_imported_and_is_imported_once() {
    let registry = TestRegistry::start();
    let name = registry.name("1");
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        for kind in ["oci-archive", "docker-archive"] {
            let file = place.path(&format!("{kind}.tar"));
            registry.save(&name, kind, &file);
            let image = at(&file);
            let before = started(&place, "stockade-unpack").len();
            for _ in 0..2 {
                cat_release(&place, &["--image", &image]).is(0, "one\n", "");
            }
            let unpacked = started(&place, "stockade-unpack").len() - before;
            assert!(unpacked <= 1, "{kind} was unpacked {unpacked} times");
            let imported = place.stockade(&["image", "import", file.to_str().unwrap(), "own/x:1"]);
            let name = format!("localhost/imported@{}", imported.stdout.trim_end());
            let recorded = started(&place, "cat");
            let named = recorded.iter().filter(|event| event["image"] == name.as_str()).count();
            assert_eq!(named, 2, "{name}: {recorded:?}");
            place.stockade(&["image", "rm", "own/x:1"]).code_is(0);
        }
        place.assert_nothing_is_left();
    }
}

#[test]
fn a_layout_gives_its_command_and_its_environment_like_a_name() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let image = at(&registry.make_layout("one"));
    let run = ["run", "--no-workspace", "--image", &image];
    place.stockade(&run).is(0, "hello from /srv as 33\n", "");
    let own = [&run[..], &["--image-defaults", "--", "echo $GREETING"]].concat();
    place.stockade(&own).is(0, "hello\n", "");
    let plain = [&run[..], &["--", "sh", "-c", "echo a$GREETING"]].concat();
    place.stockade(&plain).is(0, "a\n", "");
    let pulled = [&run[..], &["--pull", "never", "--", "true"]].concat();
    place.stockade(&pulled).is_refused(&["--pull", "--image NAME"]);
}

#[test]
fn what_was_imported_to_be_run_has_no_name_and_is_pruned() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    let digest = pull(&place, &name);
    let file = place.path("image.tar");
    place.stockade(&["image", "export", &name, "-o", file.to_str().unwrap()]).code_is(0);
    place.stockade(&["image", "rm", &name]).code_is(0);
    drop(registry);
    let image = at(&file);
    cat_release(&place, &["--image", &image]).is(0, "one\n", "");
    let listed = json(&place, &["image", "ls"]);
    let images = listed["images"].as_array().unwrap();
    assert_eq!((images.len(), &images[0]["digest"]), (1, &digest.as_str().into()), "{listed}");
    assert!(images[0]["name"].is_null(), "the archive's own name was taken: {listed}");
    json(&place, &["image", "prune"]);
    assert!(json(&place, &["image", "ls"])["images"].as_array().unwrap().is_empty());
    cat_release(&place, &["--image", &image]).is(0, "one\n", "");
}

#[test]
fn a_changed_file_is_another_image() {
    let registry = TestRegistry::start();
    registry.push("2", "two");
    let place = CliPlace::new();
    let file = place.path("image.tar");
    for (tag, release) in [("1", "one\n"), ("2", "two\n")] {
        // Not written to by skopeo if it is there.
        let _ = fs::remove_file(&file);
        registry.save(&registry.name(tag), "oci-archive", &file);
        cat_release(&place, &["--image", &at(&file)]).is(0, release, "");
    }
}

#[test]
fn what_import_refuses_is_refused_by_the_same_words_and_leaves_nothing() {
    let registry = TestRegistry::start();
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let whole = place.path("image.tar");
        registry.save(&registry.name("1"), "oci-archive", &whole);
        let bytes = fs::read(&whole).unwrap();
        let layout = registry.make_layout("one");
        damage_layers(&layout);
        let bad = [
            (place.path("text"), b"no archive".to_vec(), "the archive cannot be read"),
            (place.path("empty"), vec![0; 1024], "lacks `index.json`"),
            (place.path("cut"), bytes[..bytes.len() / 2].to_vec(), "image is refused"),
        ];
        for (path, bytes, reason) in &bad {
            fs::write(path, bytes).unwrap();
            // A layout that is cut lacks a blob, or part of one.
            cat_release(&place, &["--image", &at(path)]).is_refused(&[reason]);
        }
        let pipe = place.path("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o644))
            .unwrap();
        let refused = cat_release(&place, &["--image", &at(&pipe)]);
        refused.is_refused(&["neither a directory nor a file"]);
        let layout = move_layout(&layout, &place.path("layout"));
        cat_release(&place, &["--image", &at(&layout)]).is_refused(&["has the digest"]);
        let left = json(&place, &["image", "ls"]);
        assert_eq!(left["images"].as_array().unwrap().len(), 0, "{left}");
        let blobs = fs::read_dir(place.state().join("images/blobs")).unwrap().count();
        assert_eq!(blobs, 0, "blobs are left");
        place.assert_nothing_is_left();
    }
}

/// Changes one byte of the largest blob, which is a layer.
fn damage_layers(layout: &Path) {
    let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap();
    let blobs = blobs.map(|entry| entry.unwrap().path());
    let largest = blobs.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&largest, bytes).unwrap();
}

/// Puts a layout where every user can read it.
fn move_layout(layout: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to.join("blobs/sha256")).unwrap();
    let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap();
    let blobs = blobs.map(|entry| Path::new("blobs/sha256").join(entry.unwrap().file_name()));
    for name in blobs.chain(["index.json".into(), "oci-layout".into()]) {
        fs::copy(layout.join(&name), to.join(&name)).unwrap();
        fs::set_permissions(to.join(&name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    to.to_owned()
}

#[test]
fn detect_says_that_archives_are_imported() {
    let place = CliPlace::new();
    let by = "imported and unpacked by stockade";
    let detected = place.stockade(&["detect", "native"]).stdout;
    assert!(detected.contains(by), "{detected}");
}
