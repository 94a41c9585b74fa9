//! What was approved is what is applied (C-23), what would make the host run code is held back
//! (C-24), and a directory that cannot be entered stops nothing else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common;
use crate::common::{Place, brief, done, mode, ordinary, picture, write};
use rustix::fs::{CWD, RenameFlags};
use stockade_workspaces::{ApplyOptions, Hint, ManagedWorkspace, Mechanism};

fn each(mechanism: Mechanism) -> (Place, ManagedWorkspace, std::path::PathBuf) {
    let place = Place::new();
    write(place.source().join("a"), "before\n");
    let workspace = place.acquire(Hint::Overlay(place.source()), mechanism);
    let layer = match mechanism {
        Mechanism::Kernel => place.upper(&workspace.id),
        Mechanism::Copy => workspace.root.clone(),
    };
    (place, workspace, layer)
}

const ALL_MECHANISMS: [Mechanism; 2] = [Mechanism::Kernel, Mechanism::Copy];

/// Another content of the same length, and a link of the same length, as `touch -r` would leave them.
#[test]
fn content_of_the_same_length_that_was_swapped_in_is_not_applied() {
    for mechanism in ALL_MECHANISMS {
        for swap in ["a", "new", "link"] {
            let (place, workspace, layer) = each(mechanism);
            write(layer.join("a"), "shown!!\n");
            write(layer.join("new"), "shown\n");
            symlink("one", layer.join("link")).unwrap();
            let seen = place.diff(&workspace.id);
            let before = picture(&place.source());
            match swap {
                "link" => {
                    fs::remove_file(layer.join("link")).unwrap();
                    symlink("two", layer.join("link")).unwrap();
                }
                "new" => write(layer.join("new"), "evil!\n"),
                _ => write(layer.join("a"), "evil!!!\n"),
            }
            assert_ne!(place.diff(&workspace.id).digest(), seen.digest());
            let options = ApplyOptions { seen: Some(seen), ..ApplyOptions::default() };
            let error = place.workspaces.apply(&workspace.id, &options).unwrap_err();
            assert!(error.message().contains("was changed after"), "{error}");
            assert!(picture(&place.source()) == before, "{mechanism:?} {swap}");
        }
    }
}

/// A program that was left behind swaps two contents without a pause: the evil one never arrives,
/// whichever instant it is read at.
#[test]
fn content_that_is_swapped_while_it_is_applied_never_arrives() {
    for mechanism in ALL_MECHANISMS {
        let mut applied = 0;
        for _ in 0..40 {
            let (place, workspace, layer) = each(mechanism);
            write(layer.join("a"), "shown!!\n");
            let spare = place.dir.path().join("spare");
            write(&spare, "evil!!!\n");
            let seen = place.diff(&workspace.id);
            let stop = AtomicBool::new(false);
            let options = ApplyOptions { seen: Some(seen), ..ApplyOptions::default() };
            let went = std::thread::scope(|scope| {
                let (stop, layer, spare) = (&stop, &layer, &spare);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let flags = RenameFlags::EXCHANGE;
                        let _ = rustix::fs::renameat_with(CWD, layer.join("a"), CWD, spare, flags);
                    }
                });
                let went = place.workspaces.apply(&workspace.id, &options);
                stop.store(true, Ordering::Relaxed);
                went
            });
            applied += u32::from(went.is_ok());
            let now = fs::read_to_string(place.source().join("a")).unwrap();
            let expected = if went.is_ok() { "shown!!\n" } else { "before\n" };
            assert_eq!(now, expected, "{went:?}");
        }
        println!("{mechanism:?}: applied {applied} of 40");
    }
}

/// A mode that changes with nothing else brings the whole file along: its content is bound too.
#[test]
fn content_behind_a_change_of_mode_is_bound() {
    let (place, workspace, layer) = each(Mechanism::Kernel);
    write(layer.join("a"), "before\n");
    mode(layer.join("a"), 0o700);
    let seen = place.diff(&workspace.id);
    assert_eq!(brief(&seen.changes[0]), "P a");
    assert!(seen.changes[0].digest.is_some());
}

#[test]
fn text_that_is_shown_is_the_text_of_the_diff() {
    let (place, workspace, layer) = each(Mechanism::Kernel);
    write(layer.join("a"), "shown!!\n");
    let seen = place.diff(&workspace.id);
    assert!(place.workspaces.patch_of(&workspace.id, &seen).unwrap().contains("+shown!!"));
    write(layer.join("a"), "evil!!!\n");
    let error = place.workspaces.patch_of(&workspace.id, &seen).unwrap_err();
    assert!(error.message().contains("`a` was changed after"), "{error}");
}

fn held(place: &Place, workspace: &ManagedWorkspace) -> Vec<String> {
    place.diff(&workspace.id).held().map(|change| change.path.to_string()).collect()
}

/// What git itself takes for a repository: asked of git, with a program that leaves a mark.
#[test]
fn no_directory_that_git_runs_programs_for_is_applied() {
    let shapes: [(&str, &[&str]); 3] = [
        ("commondir", &["config.worktree"]),
        ("objects refs", &["config"]),
        ("commondir objects refs", &["config.worktree"]),
    ];
    for (parts, configs) in shapes {
        let place = Place::new();
        let base = place.source().join("base");
        run(Command::new("git").args(["init", "-q", "--bare"]).arg(&base));
        run(git(&base).args(["config", "extensions.worktreeConfig", "true"]));
        let workspace = place.overlay();
        let evil = place.upper(&workspace.id).join("evil");
        let mark = place.dir.path().join("mark");
        write(evil.join("HEAD"), "ref: refs/heads/main\n");
        for part in parts.split(' ') {
            match part {
                "commondir" => write(evil.join("commondir"), base.as_os_str().as_encoded_bytes()),
                part => fs::create_dir_all(evil.join(part)).unwrap(),
            }
        }
        for config in configs {
            let text = format!(
                "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = \"touch {}; false\"\n",
                mark.display()
            );
            write(evil.join(config), text);
        }
        // Put there by hand it would run: the shape is a real one.
        let by_hand = place.dir.path().join("by-hand");
        run(Command::new("cp").arg("-r").arg(&evil).arg(&by_hand));
        let _ = git(&by_hand).arg("status").output().unwrap();
        assert!(mark.exists(), "git runs nothing in {parts}");
        fs::remove_file(&mark).unwrap();
        done(place.apply(&workspace.id));
        assert!(!place.source().join("evil").exists(), "{parts}: {:?}", place.diff(&workspace.id));
    }
}

fn git(dir: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir).args(["-c", "safe.directory=*", "-c", "safe.bareRepository=all"]);
    git.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    git
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_repository_that_grows_over_several_applies_is_held_back() {
    let place = Place::new();
    write(place.source().join("d/HEAD"), "ref: refs/heads/main\n");
    write(place.source().join("docs/head/config"), "x");
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("d/hooks/pre-commit"), "evil");
    write(upper.join("d/plain"), "x");
    write(upper.join("docs/head/more"), "x");
    write(upper.join("docs/hooks/x"), "x");
    assert_eq!(held(&place, &workspace), ["d/hooks", "d/hooks/pre-commit"]);
}

#[test]
fn everything_in_a_repository_by_shape_is_held_back_to_its_depths() {
    let place = Place::new();
    for part in ["HEAD", "objects/x", "refs/x"] {
        write(place.source().join("repo.git").join(part), "x");
    }
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("repo.git/worktrees/one/config.worktree"), "evil");
    write(upper.join(".git/refs/x/HEAD"), "x");
    write(upper.join(".git/refs/x/commondir"), "x");
    write(upper.join(".git/logs/HEAD"), "x");
    write(upper.join(".git/logs/refs/heads/main"), "x");
    let held = held(&place, &workspace);
    assert!(held.iter().any(|path| path.ends_with("one/config.worktree")), "{held:?}");
    assert!(held.iter().any(|path| path == ".git/refs/x/commondir"), "{held:?}");
}

#[test]
fn unknown_dot_names_are_held_back_and_reviewed_ones_pass() {
    let place = Place::new();
    write(place.source().join("gone/.made-up"), "x");
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    for path in [".made-up", "a/.Rprofile", ".hg/hgrc", "ansible.cfg", ".gitignore", "a/b"] {
        write(upper.join(path), "x");
    }
    common::whiteout(upper.join("gone"));
    let applied = done(place.apply(&workspace.id));
    let applied: Vec<_> = applied.applied.iter().map(ToString::to_string).collect();
    assert_eq!(applied, [".gitignore", "a", "a/b", "gone"]);
}

/// Mode 0400: its names can be listed, and nothing in it can be looked at.
fn closed(mode_bits: u32) {
    for mechanism in ALL_MECHANISMS {
        let (place, workspace, layer) = each(mechanism);
        write(layer.join("closed/inside"), "x");
        write(layer.join("closed/.hidden"), "x");
        write(layer.join("open/b"), "b\n");
        mode(layer.join("closed"), mode_bits);
        let diff = place.diff(&workspace.id);
        let lines: Vec<_> = diff.changes.iter().map(brief).collect();
        assert_eq!(lines, ["A closed held", "A open", "A open/b"], "{mechanism:?} {mode_bits:o}");
        assert!(diff.to_string().contains("it cannot be read"), "{diff}");
        assert!(place.workspaces.patch(&workspace.id).unwrap().contains("+b"));
        let applied = done(place.apply(&workspace.id));
        assert_eq!(applied.applied.len(), 2);
        assert_eq!(applied.held.len(), 1);
        assert_eq!(fs::read_to_string(place.source().join("open/b")).unwrap(), "b\n");
        place.workspaces.discard(&workspace.id).unwrap();
    }
}

/// The same in the user's own tree, with a guest that opened it for itself.
fn closed_beneath() {
    let place = Place::new();
    write(place.source().join("closed/inside"), "x");
    write(place.source().join("secret"), "old");
    mode(place.source().join("closed"), 0o400);
    mode(place.source().join("secret"), 0o000);
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("closed/inside"), "y");
    write(upper.join("secret"), "new");
    write(upper.join("open"), "b\n");
    let lines = place.lines(&workspace.id);
    assert!(lines.contains(&"A open".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|line| line.ends_with("closed held")), "{lines:?}");
    assert!(lines.iter().any(|line| line.ends_with(" secret")), "{lines:?}");
    place.workspaces.patch(&workspace.id).unwrap();
    done(place.apply(&workspace.id));
    assert_eq!(fs::read_to_string(place.source().join("open")).unwrap(), "b\n");
    fs::set_permissions(place.source().join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
}

/// Run by the test below as an ordinary user; root enters every directory.
#[test]
fn directories_that_cannot_be_entered() {
    if rustix::process::geteuid().is_root() {
        return ordinary::repeat(module_path!(), "directories_that_cannot_be_entered");
    }
    for mode_bits in [0o400, 0o000, 0o100, 0o200] {
        closed(mode_bits);
    }
    closed_beneath();
}
