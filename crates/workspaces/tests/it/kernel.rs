//! What the kernel's own overlay writes is read back rightly: a shell changes a tree through a real
//! mount, in namespaces of its own.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Place, inside, mode, ordinary, picture, write};

fn furnish(source: &Path) {
    write(source.join("a"), "a\n");
    write(source.join("moved"), "moved\n");
    write(source.join("dir/b"), "b\n");
    write(source.join("dir/c"), "c\n");
    write(source.join("again/x"), "x\n");
    write(source.join("again/y"), "y\n");
    write(source.join("touched"), "touched\n");
    symlink("a", source.join("link")).unwrap();
}

#[test]
fn what_a_shell_does_through_a_mount_is_told_and_applied() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    let line = "echo more >> a; mv moved elsewhere; rm dir/b; rm -r again; mkdir again; \
                echo x > again/x; chmod 700 dir; touch touched; ln -sf dir link; mkfifo pipe; \
                ln a hard; mkdir -p n/e/w; echo 1 > n/e/w/1";
    inside(&place, &workspace, line);
    assert_eq!(
        place.lines(&workspace.id),
        [
            "M a",
            "D again/y",
            "P dir",
            "D dir/b",
            "A elsewhere",
            "A hard",
            "M link",
            "D moved",
            "A n",
            "A n/e",
            "A n/e/w",
            "A n/e/w/1",
            "A pipe held"
        ]
    );
    let fork = place.workspaces.fork(&workspace.id).unwrap();
    let mut lines = place.lines(&workspace.id);
    lines.retain(|line| !line.contains("pipe"));
    assert_eq!(place.lines(&fork.id), lines, "all but what is never copied");
    place.applied(&workspace.id);
    let text = |path: &str| fs::read_to_string(place.source().join(path)).unwrap();
    assert_eq!((text("a"), text("elsewhere")), ("a\nmore\n".into(), "moved\n".into()));
    assert_eq!(fs::metadata(place.source().join("dir")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(place.lines(&workspace.id), ["A pipe held"]);

    inside(&place, &workspace, "echo again >> a; rm elsewhere; test ! -e again/y");
    assert_eq!(place.lines(&workspace.id), ["M a", "D elsewhere", "M hard", "A pipe held"]);
    place.applied(&workspace.id);
    assert_eq!(text("a"), "a\nmore\nagain\n");
}

#[test]
fn an_ordinary_users_mount_is_read_too() {
    ordinary::repeat(module_path!(), "what_a_shell_does_through_a_mount_is_told_and_applied");
}

#[test]
fn a_file_that_was_removed_beneath_a_mount_does_not_come_back() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    inside(&place, &workspace, "echo more >> dir/b");
    fs::remove_file(place.source().join("dir/b")).unwrap();
    let found = common::conflicts(place.apply(&workspace.id));
    assert_eq!(found[0].to_string(), "dir/b is gone");
}

#[test]
fn a_fork_is_a_view_of_its_own() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    inside(&place, &workspace, "rm -r again; mkdir again; rm a; echo n > new");
    let fork = place.workspaces.fork(&workspace.id).unwrap();
    inside(&place, &fork, "test ! -e a; test ! -e again/x; test -e new; echo f > only-here");
    let mut lines = place.lines(&workspace.id);
    lines.push("A only-here".into());
    assert_eq!(place.lines(&fork.id), lines);
}

#[test]
fn a_view_of_a_wide_tree_is_acquired_and_told_at_once() {
    let place = Place::new();
    for number in 0..20_000 {
        let dir = place.source().join(format!("d{}", number / 500));
        if number % 500 == 0 {
            fs::create_dir(&dir).unwrap();
        }
        fs::File::create(dir.join(number.to_string())).unwrap();
    }
    let begun = Instant::now();
    let workspace = place.overlay();
    write(place.upper(&workspace.id).join("d0/0"), "x");
    assert_eq!(place.lines(&workspace.id), ["M d0/0"]);
    // Looking at each of the files alone would take longer on the fastest machine.
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[test]
fn a_copy_of_an_awkward_tree_is_faithful() {
    let place = Place::new();
    furnish(&place.source());
    let source = place.source();
    fs::hard_link(source.join("a"), source.join("twin")).unwrap();
    fs::File::create(source.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    write(source.join("closed/in"), "x");
    mode(source.join("closed"), 0o555);
    common::fifo(source.join("pipe"));
    let workspace = place.copied();
    let mut expected = picture(&source);
    expected.remove(Path::new("pipe"));
    assert_eq!(picture(&workspace.root), expected);
    assert_eq!(fs::metadata(workspace.root.join("a")).unwrap().nlink(), 1);
    assert!(place.diff(&workspace.id).is_empty());
    place.release(&workspace.id);
    assert!(!place.home(&workspace.id).exists());
    mode(source.join("closed"), 0o755);
}

#[test]
fn an_ordinary_users_copy_is_faithful_too() {
    ordinary::repeat(module_path!(), "a_copy_of_an_awkward_tree_is_faithful");
}
