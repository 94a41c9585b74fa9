//! Trees that a guest made to do harm: nothing outside is read or written, nothing hangs, and what
//! cannot be done says which path.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Place, brief, fifo, mode, ordinary, picture, whiteout, write};
use rustix::fs::{CWD, RenameFlags};
use stockade_core::WorkspaceId;
use stockade_workspaces::{Application, ApplyOptions, HeldReason, Mechanism};

/// Fills a layer, or a copy, with everything unpleasant.
fn poison(dir: &Path, outside: &Path) {
    symlink("/etc/passwd", dir.join("to-etc")).unwrap();
    symlink(outside.join("secret"), dir.join("to-secret")).unwrap();
    symlink("..", dir.join("up")).unwrap();
    symlink("loop-b", dir.join("loop-a")).unwrap();
    symlink("loop-a", dir.join("loop-b")).unwrap();
    write(dir.join("two\nlines"), "x");
    write(dir.join("-rf"), "x");
    write(dir.join(" "), "x");
    write(dir.join(OsStr::from_bytes(b"bad\xff\x1b[31mname")), "x");
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    fs::remove_file(dir.join("file")).ok();
    fifo(dir.join("file"));
    fs::hard_link(dir.join("-rf"), dir.join("hard")).unwrap();
    write(dir.join("Case"), "upper");
    write(dir.join("case"), "lower");
    write(dir.join(".ENVRC"), "evil");
}

const HARMLESS_NAMES: [&str; 9] =
    [" ", "-rf", "Case", "bad\\xff\\x1b[31mname", "case", "hard", "loop-a", "loop-b", "sparse"];

#[test]
fn a_hostile_tree_is_told_and_applied_without_touching_anything_outside() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let place = Place::new();
        write(place.source().join("file"), "a file\n");
        let outside = place.dir.path().canonicalize().unwrap().join("outside");
        write(outside.join("secret"), "secret\n");
        let before = picture(&outside);
        let hint = stockade_workspaces::Hint::Overlay(place.source());
        let workspace = place.acquire(hint, mechanism);
        let written = match mechanism {
            Mechanism::Kernel => place.upper(&workspace.id),
            Mechanism::Copy => workspace.root.clone(),
        };
        poison(&written, &outside);
        let diff = place.diff(&workspace.id);
        for change in &diff.changes {
            assert_eq!(change.to_string().lines().count(), 1, "{change}");
        }
        assert_eq!(diff.at(&"file".parse().unwrap()).unwrap().held, Some(HeldReason::Special));
        let patch = place.workspaces.patch(&workspace.id).unwrap();
        assert!(!patch.contains("secret\n+") && !patch.contains("root:"), "{patch}");
        let applied = place.applied(&workspace.id);
        let names: Vec<_> = applied.applied.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), HARMLESS_NAMES.len() + 1, "{names:?}");
        for name in HARMLESS_NAMES {
            assert!(names.iter().any(|applied| applied == name), "{name}: {names:?}");
        }
        let sparse = fs::metadata(place.source().join("sparse")).unwrap();
        assert!(sparse.len() == 1 << 40 && sparse.blocks() < 64);
        assert_eq!(fs::metadata(place.source().join("hard")).unwrap().nlink(), 1);
        assert_eq!(fs::read(place.source().join("Case")).unwrap(), b"upper");
        assert_eq!(fs::read_to_string(place.source().join("file")).unwrap(), "a file\n");
        assert_eq!(picture(&outside), before);
    }
}

#[test]
fn an_ordinary_users_hostile_tree_fares_no_better() {
    ordinary::repeat(
        module_path!(),
        "a_hostile_tree_is_told_and_applied_without_touching_anything_outside",
    );
}

#[test]
fn what_its_maker_closed_is_told_and_left() {
    let place = Place::new();
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let hint = stockade_workspaces::Hint::Overlay(place.source());
        let workspace = place.acquire(hint, mechanism);
        let written = match mechanism {
            Mechanism::Kernel => place.upper(&workspace.id),
            Mechanism::Copy => workspace.root.clone(),
        };
        write(written.join("closed/in"), "x");
        write(written.join("unreadable"), "x");
        mode(written.join("closed"), 0);
        mode(written.join("unreadable"), 0);
        if !rustix::process::geteuid().is_root() {
            let lines: Vec<_> = place.diff(&workspace.id).changes.iter().map(brief).collect();
            assert_eq!(lines, ["A closed held", "A unreadable held"], "{mechanism:?}");
        }
        place.workspaces.discard(&workspace.id).unwrap();
        assert!(!place.home(&workspace.id).exists());
    }
}

#[test]
fn what_an_ordinary_guest_closed_is_told_and_left() {
    ordinary::repeat(module_path!(), "what_its_maker_closed_is_told_and_left");
}

#[test]
fn trees_deeper_than_a_path_can_say_are_survived() {
    let place = Place::new();
    let workspace = place.overlay();
    let name = "d".repeat(200);
    let mut dir = rustix::fs::open(
        place.upper(&workspace.id),
        rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    for _ in 0..60 {
        rustix::fs::mkdirat(&dir, &name, 0o755.into()).unwrap();
        dir = rustix::fs::openat(
            &dir,
            &name,
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
    }
    let diff = place.diff(&workspace.id);
    assert_eq!(diff.changes.last().unwrap().held, Some(HeldReason::OutOfReach));
    place.applied(&workspace.id);
    place.workspaces.discard(&workspace.id).unwrap();
    assert!(!place.home(&workspace.id).exists());
}

#[test]
fn a_link_in_the_target_is_replaced_and_never_followed() {
    let place = Place::new();
    let outside = place.dir.path().join("outside");
    write(outside.join("file"), "theirs\n");
    symlink(&outside, place.source().join("dir")).unwrap();
    symlink(outside.join("file"), place.source().join("link")).unwrap();
    fs::hard_link(outside.join("file"), place.source().join("hard")).unwrap();
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("dir/file"), "ours\n");
    write(upper.join("link"), "ours\n");
    write(upper.join("hard"), "ours\n");
    mode(upper.join("hard"), 0o777);
    let before = picture(&outside);
    place.applied(&workspace.id);
    assert_eq!(picture(&outside), before);
    assert_eq!(fs::read_to_string(place.source().join("dir/file")).unwrap(), "ours\n");
    assert!(!place.source().join("dir").is_symlink());
}

/// Swaps a directory of the target for a link that leads out, as fast as it can.
fn swap(source: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let (real, trap) = (source.join("dir"), source.join("trap"));
        rustix::fs::renameat_with(CWD, &real, CWD, &trap, RenameFlags::EXCHANGE).unwrap();
    }
}

/// Applies a change to a tree that another thread keeps changing, and says whether it went in.
fn against(place: &Place, id: &WorkspaceId) -> bool {
    match place.workspaces.apply(id, &ApplyOptions::default()) {
        Ok(Application::Applied(_)) => true,
        Ok(Application::Conflict { conflicts }) => {
            assert!(!conflicts.is_empty());
            false
        }
        Err(error) => {
            assert!(!error.message().is_empty());
            false
        }
    }
}

#[test]
fn a_directory_swapped_for_a_link_while_apply_runs_leads_nowhere() {
    let place = Place::new();
    let outside = place.dir.path().join("outside");
    write(outside.join("kept"), "theirs\n");
    write(place.source().join("dir/kept"), "ours\n");
    symlink(&outside, place.source().join("trap")).unwrap();
    let before = picture(&outside);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let source = place.source();
        let stop = &stop;
        scope.spawn(move || swap(&source, stop));
        for round in 0..100 {
            let workspace = place.overlay();
            let upper = place.upper(&workspace.id);
            write(upper.join(format!("dir/new{round}")), "x");
            write(upper.join("dir/kept"), format!("round {round}\n"));
            whiteout(upper.join("dir/gone"));
            against(&place, &workspace.id);
            place.workspaces.discard(&workspace.id).ok();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(picture(&outside), before, "something outside was read or written");
}

#[test]
fn a_link_turned_outwards_while_apply_runs_is_not_applied() {
    let place = Place::new();
    let stop = AtomicBool::new(false);
    for _ in 0..100 {
        let workspace = place.overlay();
        let upper = place.upper(&workspace.id);
        symlink("inside", upper.join("link")).unwrap();
        symlink("/etc/passwd", upper.join("spare")).unwrap();
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let (upper, stop) = (&upper, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let (link, spare) = (upper.join("link"), upper.join("spare"));
                    let _ = rustix::fs::renameat_with(CWD, link, CWD, spare, RenameFlags::EXCHANGE);
                }
            });
            against(&place, &workspace.id);
            stop.store(true, Ordering::Relaxed);
        });
        for name in ["link", "spare"] {
            let path = place.source().join(name);
            if let Ok(target) = fs::read_link(&path) {
                assert_eq!(target, Path::new("inside"));
                fs::remove_file(path).unwrap();
            }
        }
        place.workspaces.discard(&workspace.id).unwrap();
    }
}

#[test]
fn a_file_saved_while_apply_runs_is_never_lost() {
    let place = Place::new();
    let path = place.source().join("file");
    write(&path, "0\n");
    for round in 0..60 {
        let workspace = place.overlay();
        write(place.upper(&workspace.id).join("file"), "guest\n");
        let saved = format!("saved {round}\n");
        let went_in = std::thread::scope(|scope| {
            let (path, saved) = (&path, &saved);
            let editor = scope.spawn(move || {
                let draft = path.with_extension("draft");
                fs::write(&draft, saved).unwrap();
                fs::rename(&draft, path).unwrap();
            });
            let went_in = against(&place, &workspace.id);
            editor.join().unwrap();
            went_in
        });
        // The last write is there; the other was replaced by a writer that had seen it.
        let now = fs::read_to_string(&path).unwrap();
        assert!(now == saved || (went_in && now == "guest\n"), "{went_in} {now}");
        place.workspaces.discard(&workspace.id).ok();
    }
}

#[test]
fn a_wide_directory_is_told_in_good_time() {
    let place = Place::new();
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    fs::create_dir(upper.join("wide")).unwrap();
    for number in 0..20_000 {
        fs::File::create(upper.join(format!("wide/{number}"))).unwrap();
    }
    assert_eq!(place.diff(&workspace.id).changes.len(), 20_001);
}
