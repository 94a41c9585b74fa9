//! `stockade cp`, in and out, with trees that are honest and trees that are not.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::common::lasting::Lasting;

fn at(id: &str, path: &str) -> String {
    format!("{id}:{path}")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o111
}

/// A place and a sandbox that does not see the place's files.
fn apart() -> (Lasting, String) {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    (place, id)
}

#[test]
fn a_tree_survives_the_way_in_and_out() {
    let (place, id) = apart();
    let big: Vec<u8> = (0..2_500_000u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("a/b/empty")).unwrap();
    fs::write(tree.join("a/big"), &big).unwrap();
    fs::write(tree.join("a/b/nothing"), "").unwrap();
    fs::write(tree.join("with space\n"), "odd").unwrap();
    fs::write(tree.join("run"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(tree.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    place.stockade(&["cp", tree.to_str().unwrap(), &at(&id, "/tmp")]).is(0, "", "");
    place.stockade(&["exec", &id, "/tmp/tree/run"]).is(0, "ran\n", "");
    place.stockade(&["cp", &at(&id, "/tmp/tree"), "back"]).is(0, "", "");
    let back = place.workspace().join("back");
    assert!(fs::read(back.join("a/big")).unwrap() == big);
    assert_eq!(fs::read(back.join("a/b/nothing")).unwrap(), b"");
    assert_eq!(fs::read(back.join("with space\n")).unwrap(), b"odd");
    assert!(back.join("a/b/empty").is_dir());
    assert_ne!(mode(&back.join("run")), 0);
    assert_eq!(mode(&back.join("a/big")), 0);
}

#[test]
fn an_execute_bit_is_set_without_running_a_program() {
    let (place, id) = apart();
    place.write("run", "#!/bin/sh\necho ran\n");
    fs::set_permissions(place.workspace().join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    place.stockade(&["cp", "run", &at(&id, "run")]).is(0, "", "");
    assert_eq!(place.listed(&id).unwrap()["jobs"], serde_json::json!([]));
    place.stockade(&["exec", &id, "./run"]).is(0, "ran\n", "");
}

#[test]
fn a_file_goes_into_a_directory_or_takes_the_name() {
    let (place, id) = apart();
    place.write("f", "one");
    place.stockade(&["cp", "f", &at(&id, "")]).is(0, "", "");
    place.stockade(&["cp", "f", &at(&id, "g")]).is(0, "", "");
    place.stockade(&["cp", "f", &at(&id, "new/dir/")]).is(0, "", "");
    place.shell(&id, "cat f g new/dir/f").is(0, "oneoneone", "");
    fs::create_dir(place.workspace().join("d")).unwrap();
    place.stockade(&["cp", &at(&id, "g"), "d"]).is(0, "", "");
    place.stockade(&["cp", &at(&id, "g"), "h"]).is(0, "", "");
    place.stockade(&["cp", &at(&id, "."), "d"]).is(0, "", "");
    place.stockade(&["cp", &at(&id, "new/."), "."]).is(0, "", "");
    for name in ["d/g", "h", "d/new/dir/f", "dir/f"] {
        assert_eq!(fs::read_to_string(place.workspace().join(name)).unwrap(), "one", "{name}");
    }
}

#[test]
fn links_within_the_tree_stay_links_both_ways() {
    let (place, id) = apart();
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("bin")).unwrap();
    fs::create_dir_all(tree.join("lib")).unwrap();
    fs::write(tree.join("lib/tool"), "x").unwrap();
    symlink("../lib/tool", tree.join("bin/tool")).unwrap();
    symlink("lib", tree.join("current")).unwrap();
    symlink("nowhere\n", tree.join("dangling")).unwrap();
    place.stockade(&["cp", tree.to_str().unwrap(), &at(&id, "t")]).is(0, "", "");
    place.shell(&id, "readlink t/bin/tool; cat t/current/tool").is(0, "../lib/tool\nx", "");
    for _ in 0..2 {
        place.stockade(&["cp", &at(&id, "t/."), "."]).is(0, "", "");
        for (name, target) in
            [("bin/tool", "../lib/tool"), ("current", "lib"), ("dangling", "nowhere\n")]
        {
            let link = place.workspace().join(name);
            assert_eq!(fs::read_link(link).unwrap(), Path::new(target));
        }
    }
}

#[test]
fn links_that_lead_out_are_left_out_and_told() {
    let (place, id) = apart();
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("f"), "x").unwrap();
    symlink("/etc/passwd", tree.join("out")).unwrap();
    symlink("../x", tree.join("up")).unwrap();
    let done = place.stockade(&["cp", tree.to_str().unwrap(), &at(&id, "t")]);
    assert_eq!(done.code, 0);
    for name in ["out", "up"] {
        let told = format!("{name}`: left out: a symbolic link");
        assert!(done.stderr.contains(&told), "{}", done.stderr);
    }
    place
        .shell(&id, "ls t; ln -s /etc/passwd t/in; ln -s f/../.. t/by; mkfifo t/pipe")
        .is(0, "f\n", "");
    let back = place.json(&["cp", &at(&id, "t"), "back"]);
    assert_eq!(
        (&back["files"], back["skipped"].as_array().unwrap().len()),
        (&1.into(), 3),
        "{back}"
    );
    assert_eq!(fs::read_dir(place.workspace().join("back")).unwrap().count(), 1);
    place.stockade(&["cp", &at(&id, "t/in"), "x"]).is_refused(&["symbolic link"]);
    place.stockade(&["cp", &at(&id, "t/pipe"), "x"]).is_refused(&["special file"]);
}

#[test]
fn paths_that_escape_are_refused_on_both_sides() {
    let (place, id) = apart();
    place.write("f", "x");
    place.stockade(&["cp", "f", &at(&id, "../../etc/x")]).is_refused(&["../../etc/x"]);
    place.stockade(&["cp", &at(&id, "../../etc/passwd"), "."]).is_refused(&["../../etc/passwd"]);
    place.shell(&id, "ln -s / up").is(0, "", "");
    assert_eq!(place.stockade(&["cp", "f", &at(&id, "up/etc/x")]).code, 125);
    place.stockade(&["cp", &at(&id, "/nowhere"), "."]).is_refused(&["no `/nowhere`"]);
    place.stockade(&["cp", "nowhere", &at(&id, ".")]).is_refused(&["nowhere", "No such file"]);
}

#[test]
fn a_link_the_guest_made_on_the_host_is_not_written_through() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let (outside, dir) = (place.path("outside"), place.path("outside-dir"));
    fs::write(&outside, "untouched").unwrap();
    fs::create_dir(&dir).unwrap();
    symlink(&outside, place.workspace().join("trap")).unwrap();
    symlink(&dir, place.workspace().join("d")).unwrap();
    place
        .shell(&id, "mkdir /tmp/d /tmp/e; cd /tmp; tee d/trap e/trap trap </dev/null")
        .is(0, "", "");
    for (source, target) in
        [("/tmp/trap", "trap"), ("/tmp/trap", "."), ("/tmp/e/.", "."), ("/tmp/d", ".")]
    {
        let done = place.stockade(&["cp", &at(&id, source), target]);
        assert_eq!(done.code, 125, "{source} to {target}: {done:?}");
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn more_than_was_agreed_is_not_copied() {
    let (place, id) = apart();
    place.shell(&id, "truncate -s 8M /tmp/huge").is(0, "", "");
    place
        .stockade(&["cp", "--max-size", "2m", &at(&id, "/tmp/huge"), "."])
        .is_refused(&["--max-size"]);
}
