//! Images of a real registry, by the command: pulled, run, kept, removed.

use std::fs;

use serde_json::Value;

use crate::common::image_commands::{cat_release, json, pull, started};
use crate::common::lasting::Lasting;
use crate::common::registry::TestRegistry;
use crate::common::{CliPlace, wait};

#[test]
fn an_image_of_a_registry_is_the_root_and_its_digest_is_in_the_record() {
    let registry = TestRegistry::start();
    let name = registry.name("1");
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        cat_release(&place, &["--image", &name]).is(0, "one\n", "");
        let digest = pull(&place, &name);
        let recorded = started(&place, "cat");
        assert_eq!(recorded[0]["image"], format!("{name}@{digest}"), "{recorded:?}");
        place.assert_nothing_is_left();
    }
}

#[test]
fn an_image_with_set_id_programs_is_pulled_without_their_bits() {
    let registry = TestRegistry::start();
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        pull(&place, &registry.name("1"));
        let listed = ["--", "ls", "-ld", "/etc/set-id", "/srv"];
        let image = registry.name("1");
        let run = ["run", "--no-workspace", "--image", &image];
        let done = place.stockade(&[&run[..], &listed].concat());
        let modes: Vec<_> = done.stdout.lines().map(|line| &line[..10]).collect();
        assert_eq!(modes, ["-rwxr-xr-x", "drwxr-xr-x"], "{done:?}");
    }
}

#[test]
fn layers_are_unpacked_in_native_walls_and_leave_a_record() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    pull(&place, &registry.name("1"));
    let unpacked = started(&place, "stockade-unpack");
    assert_eq!(unpacked.len(), 1, "one layer, one record: {unpacked:?}");
    assert_eq!(
        (&unpacked[0]["backend"], &unpacked[0]["tenant"]),
        (&"native".into(), &"images".into())
    );
    pull(&place, &registry.name("1"));
    assert_eq!(started(&place, "stockade-unpack").len(), 1, "what is stored is not unpacked again");
    cat_release(&place, &["--image", &registry.name("1")]).is(0, "one\n", "");
    place.assert_nothing_is_left();
}

#[test]
fn what_is_stored_runs_without_its_registry_and_what_is_not_is_refused() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let (one, two) = (registry.name("1"), registry.name("2"));
    cat_release(&place, &["--image", &one, "--pull", "never"])
        .is_refused(&["no image", "stockade image ls"]);
    let digest = pull(&place, &one);
    drop(registry);
    cat_release(&place, &["--image", &one]).is(0, "one\n", "");
    cat_release(&place, &["--image", &one, "--pull", "never"]).is(0, "one\n", "");
    let by_digest = format!("{}@{digest}", one.rsplit_once(':').unwrap().0);
    cat_release(&place, &["--image", &by_digest]).is(0, "one\n", "");
    cat_release(&place, &["--image", &two]).is_refused(&["cannot be reached"]);
    cat_release(&place, &["--image", &one, "--pull", "always"]).is_refused(&["cannot be reached"]);
}

#[test]
fn a_tag_that_moved_is_seen_only_by_those_who_ask() {
    let registry = TestRegistry::start();
    let place = Lasting::new();
    let name = registry.name("1");
    let id = place.create(&["--no-workspace", "--image", &name]);
    registry.push("1", "two");
    cat_release(&place, &["--image", &name]).is(0, "one\n", "");
    cat_release(&place, &["--image", &name, "--pull", "always"]).is(0, "two\n", "");
    cat_release(&place, &["--image", &name]).is(0, "two\n", "");
    let copies = place.stockade(&["fork", &id]);
    let copy = copies.stdout.trim_end();
    assert_eq!(
        place.shell(copy, "cat /etc/release").stdout,
        "one\n",
        "a copy is of the same image"
    );
}

#[test]
fn the_images_own_command_runs_where_none_is_given() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    place.stockade(&["run", "--no-workspace", "--image", &name]).is(
        0,
        "hello from /srv as 33\n",
        "",
    );
    let line = "echo $GREETING $0";
    let taken =
        ["run", "--no-workspace", "--image", &name, "--image-defaults", "-e", "GREETING=bye"];
    place.stockade(&[&taken[..], &["--", line, "x"]].concat()).is(0, "bye x\n", "");
    let plain = ["run", "--no-workspace", "--image", &name, "--", "sh", "-c", "echo a$GREETING"];
    place.stockade(&plain).is(0, "a\n", "");
    place.stockade(&["run", "--image-defaults", "--", "true"]).is_refused(&["--image NAME"]);
    place.stockade(&["run", "--pull", "never", "--", "true"]).is_refused(&["--image NAME"]);
}

#[test]
fn the_root_is_read_only_unless_asked_and_changes_are_the_sandboxs_own() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    let write = ["--shell", "echo changed > /etc/release && cat /etc/release"];
    let run = ["run", "--no-workspace", "--image", &name];
    assert_ne!(place.stockade(&[&run[..], &write].concat()).code, 0);
    place.stockade(&[&run[..], &["--writable-root"], &write].concat()).is(0, "changed\n", "");
    cat_release(&place, &["--image", &name]).is(0, "one\n", "");
}

#[test]
fn an_image_in_use_is_not_removed() {
    let registry = TestRegistry::start();
    let place = Lasting::new();
    let name = registry.name("1");
    let id = place.create(&["--no-workspace", "--image", &name]);
    place.stockade(&["image", "rm", &name]).is_refused(&["in use", "end its sandboxes"]);
    let pruned = json(&place, &["image", "prune", "--all"]);
    assert_eq!(pruned["removed"].as_array().unwrap().len(), 0, "{pruned}");
    assert_eq!(place.shell(&id, "cat /etc/release").stdout, "one\n");
    place.stockade(&["kill", &id]).code_is(0);
    place.stockade(&["image", "rm", &name]).code_is(0);
    assert_eq!(json(&place, &["image", "ls"])["images"], Value::Array(Vec::new()));
}

#[test]
fn two_at_once_pull_one_image() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    let start = || {
        let mut command = place.command(&[
            "run",
            "--no-workspace",
            "--image",
            &name,
            "--",
            "cat",
            "/etc/release",
        ]);
        let piped = std::process::Stdio::piped;
        command.stdout(piped()).stderr(piped()).spawn().unwrap()
    };
    let both = [start(), start()];
    both.map(wait).iter().for_each(|done| done.is(0, "one\n", ""));
    assert_eq!(started(&place, "stockade-unpack").len(), 1, "it was unpacked twice");
    place.assert_nothing_is_left();
}

#[test]
fn an_image_is_listed_inspected_exported_and_imported_again() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    let digest = pull(&place, &name);
    let listed = json(&place, &["image", "ls"]);
    let image = &listed["images"][0];
    assert_eq!(
        (&image["name"], &image["digest"]),
        (&name.as_str().into(), &digest.as_str().into())
    );
    assert_eq!(image["lastUsed"], Value::Null);
    let shown = place.stockade(&["image", "ls"]).stdout;
    assert!(shown.contains(&name) && shown.contains("never"), "{shown}");
    let details = json(&place, &["image", "inspect", &digest[7..19]]);
    let config = &details["images"][0]["config"];
    assert_eq!((&config["workingDir"], &config["user"]), (&"/srv".into(), &"33".into()));
    assert!(!details.to_string().contains(place.state().to_str().unwrap()), "{details}");

    let file = place.path("image.tar");
    let archive = file.to_str().unwrap();
    place.stockade(&["image", "export", &name, "-o", archive]).is(0, "", "");
    place.stockade(&["image", "export", &name, "-o", archive]).is_refused(&["image.tar"]);
    place.stockade(&["image", "rm", &name]).code_is(0);
    place.stockade(&["image", "inspect", &name]).is_refused(&["no image"]);
    place.stockade(&["image", "import", archive, "localhost/again:1"]).is(
        0,
        &format!("{digest}\n"),
        "",
    );
    let again = ["--image", "localhost/again:1", "--pull", "never"];
    cat_release(&place, &again).is(0, "one\n", "");
    assert!(place.stockade(&["image", "ls"]).stdout.contains(" ago"), "its use is noted");
}

#[test]
fn who_cannot_have_another_root_refuses_by_name() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let refused =
        place.stockade(&["run", "--backend", "landlock", "--image", &registry.name("1"), "true"]);
    assert_eq!(refused.code, 125, "{refused:?}");
    assert!(refused.stderr.contains("named-image"), "{refused:?}");
}

#[test]
fn no_guest_is_shown_the_store() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    pull(&place, &registry.name("1"));
    let store = place.state().join("images");
    for dir in [store.clone(), first_below(&store)] {
        let (dir, mount) = (dir.to_str().unwrap(), format!("{}:/x", dir.display()));
        let image = format!("dir:{dir}");
        for view in [["--workspace", dir], ["--mount", &mount], ["--image", &image]] {
            let args = [&["run"], &view[..], &["--", "true"]].concat();
            place.stockade(&args).is_refused(&["the state directory"]);
        }
    }
}

/// Some directory in the store.
fn first_below(store: &std::path::Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.is_dir()).unwrap()
}

#[test]
fn explain_and_detect_say_where_images_come_from() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    let by = "pulled and unpacked by stockade";
    let before = place.stockade(&["explain", "--image", &name]).stdout;
    assert!(before.contains(by) && !before.contains("stored as"), "{before}");
    let digest = pull(&place, &name);
    let after = json(&place, &["explain", "--image", &name]);
    assert_eq!(after["image"]["stored"], digest.as_str(), "{after}");
    let detected = place.stockade(&["detect", "native"]).stdout;
    assert!(detected.contains(by), "{detected}");
}

#[test]
fn what_is_pushed_is_what_others_find_and_what_is_pulled_back() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let digest = pull(&place, &registry.name("1"));
    let (local, pushed) = ("localhost/again:1", registry.name_of("other/place", "new"));
    place.stockade(&["image", "tag", &registry.name("1"), local]).is(0, "", "");
    let push = ["image", "push", local, "--to", &pushed];
    place.stockade(&push).is(0, &format!("{digest}\n"), "");
    place.stockade(&push).is(0, &format!("{digest}\n"), "");
    assert_eq!(registry.inspect(&pushed)["Digest"], digest.as_str());
    registry.copy_out(&pushed);
    let other = CliPlace::new();
    let by_digest = format!("{}@{digest}", pushed.rsplit_once(':').unwrap().0);
    assert_eq!(pull(&other, &by_digest), digest);
    cat_release(&other, &["--image", &by_digest]).is(0, "one\n", "");
}

#[test]
fn an_image_is_pushed_only_where_its_name_says() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let digest = pull(&place, &registry.name("1"));
    place.stockade(&["image", "push", &digest[7..19]]).is_refused(&["names no registry", "--to"]);
    place.stockade(&["image", "push", "localhost/none:1"]).is_refused(&["no image"]);
    let other = format!("localhost/x@sha256:{}", "0".repeat(64));
    place.stockade(&["image", "tag", &digest[7..19], &other]).is_refused(&["a digest"]);
    let name = registry.name_of("a/b", "1");
    let elsewhere = format!("{name}@sha256:{}", "0".repeat(64));
    place.stockade(&["image", "push", &digest[7..19], "--to", &elsewhere]).is_refused(&["digest"]);
}

#[test]
fn a_committed_sandbox_runs_again_with_its_changes_and_is_pushed() {
    commits_and_pushes(&Lasting::new());
}

#[test]
fn an_ordinary_user_commits_a_sandbox_too() {
    commits_and_pushes(&Lasting(CliPlace::of_an_ordinary_user()));
}

fn commits_and_pushes(place: &Lasting) {
    let registry = TestRegistry::start();
    let name = registry.name("1");
    let id = place.create(&["--no-workspace", "--image", &name, "--writable-root"]);
    let changes = "echo two > /etc/release && echo new > /srv/new && ln -s new /srv/link && \
                   mkdir /made && echo in > /made/file && rm /bin/touch && echo x > /tmp/x";
    assert_eq!(place.shell(&id, changes).code, 0);
    let committed = place.stockade(&["image", "commit", &id, "localhost/mine:1"]);
    let digest = committed.stdout.trim_end().to_owned();
    committed.is(0, &format!("{digest}\n"), "");
    let look = "cat /etc/release /srv/link /made/file; ls /bin/touch /tmp/x /workspace/x";
    let run = ["run", "--no-workspace", "--image", "localhost/mine:1", "--shell", look];
    let done = place.stockade(&run);
    assert_eq!(done.stdout, "two\nnew\nin\n", "{done:?}");
    cat_release(place, &["--image", &name]).is(0, "one\n", "");

    let details = json(place, &["image", "inspect", "localhost/mine:1"]);
    let image = &details["images"][0];
    assert_eq!((&image["layers"], &image["config"]["workingDir"]), (&2.into(), &"/srv".into()));
    let pushed = registry.name_of("mine", "1");
    place.stockade(&["image", "push", "localhost/mine:1", "--to", &pushed]).code_is(0);
    assert_eq!(registry.inspect(&pushed)["Digest"], digest.as_str());
    registry.copy_out(&pushed);
    place.stockade(&["kill", &id]).code_is(0);
}

#[test]
fn an_ordinary_user_writes_to_the_root_of_an_image_and_not_to_that_of_the_host() {
    let registry = TestRegistry::start();
    let place = CliPlace::of_an_ordinary_user();
    let (run, name) = (["run", "--no-workspace", "--writable-root"], registry.name("1"));
    let image = ["--image", name.as_str()];
    let change = ["--shell", "echo two > /etc/release && mkdir /made && cat /etc/release"];
    place.stockade(&[&run[..], &image, &change].concat()).is(0, "two\n", "");
    cat_release(&place, &image).is(0, "one\n", "");
    place
        .stockade(&[&run[..], &["--", "true"]].concat())
        .is_refused(&["copy-on-write-root", "run as root, or start from an image"]);
    place.assert_nothing_is_left();
}

#[test]
fn a_sandbox_without_a_writable_root_of_an_image_is_not_committed() {
    let registry = TestRegistry::start();
    let place = Lasting::new();
    let host = place.create(&["--no-workspace"]);
    let commit = |id: &str| place.stockade(&["image", "commit", id, "localhost/mine:1"]);
    commit(&host).is_refused(&["start from an image"]);
    let closed = place.create(&["--no-workspace", "--image", &registry.name("1")]);
    commit(&closed).is_refused(&["--writable-root"]);
    let open = place.create(&["--no-workspace", "--image", &registry.name("1"), "--writable-root"]);
    assert_eq!(place.shell(&open, "echo x > /srv/.wh.x").code, 0);
    commit(&open).is_refused(&["whiteout"]);
    assert!(!place.stockade(&["image", "ls"]).stdout.contains("localhost/mine"));
    let drafts = place.state().join("images/drafts");
    assert_eq!(fs::read_dir(drafts).unwrap().count(), 0, "something is left");
}
