//! Git worktrees as workspaces: their git directory lies elsewhere.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{CliDone, CliPlace, finish};

fn git(dir: &Path, args: &[&str]) -> CliDone {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c"]);
    command.args(["init.defaultBranch=main", "-C"]).arg(dir).args(args);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    let done = finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    done
}

/// A repository in `main`, and the workspace as a worktree of it.
fn worktree() -> CliPlace {
    let place = CliPlace::new();
    let main = place.path("main");
    fs::create_dir(&main).unwrap();
    git(&main, &["init", "--quiet"]);
    fs::write(main.join("a"), "one\n").unwrap();
    git(&main, &["add", "."]);
    git(&main, &["commit", "--quiet", "-m", "first"]);
    fs::remove_dir(place.workspace()).unwrap();
    git(&main, &["worktree", "add", "--quiet", place.workspace().to_str().unwrap()]);
    place
}

#[test]
fn a_worktree_can_be_looked_at() {
    let place = worktree();
    let line = "git status --short && git log --format=%s && echo two >> a && git status --short";
    let done = place.stockade(&["run", "--shell", line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "first\n M a\n"), "{done:?}");
}

#[test]
fn nothing_of_the_repository_can_be_changed() {
    let place = worktree();
    let git = place.path("main/.git").display().to_string();
    let paths = ["hooks/post-commit", "config", "refs/x", "objects/x", "logs/x"];
    let own = ["commondir", "config.worktree", "HEAD"].map(|name| format!("worktrees/work/{name}"));
    for path in paths.map(str::to_owned).into_iter().chain(own) {
        let line = format!("echo x > {git}/{path}");
        let done = place.stockade(&["run", "--shell", &line]);
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{path}: {done:?}");
    }
}

#[test]
fn a_link_in_the_git_directory_shows_nothing_behind_it() {
    let place = worktree();
    let secret = place.path("secret");
    fs::write(&secret, "key").unwrap();
    let link = place.path("main/.git/worktrees/work/config.worktree");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    let done = place.stockade(&["run", "--shell", &format!("cat {}", link.display())]);
    assert!(done.code != 0 && done.stdout.is_empty(), "{done:?}");
}

#[test]
fn a_git_directory_that_is_not_this_worktrees_is_not_shown() {
    let place = worktree();
    let other = place.path("main/.git").display().to_string();
    fs::write(place.workspace().join(".git"), format!("gitdir: {other}\n")).unwrap();
    let done = place.stockade(&["run", "--shell", &format!("ls {other}")]);
    assert_ne!(done.code, 0, "{done:?}");
}

#[test]
fn a_repository_with_credentials_in_its_configuration_is_not_shown() {
    for key in ["http.https://example.org/.extraheader", "remote.origin.url"] {
        let place = worktree();
        let secret = "https://user:token@example.org/a.git";
        git(&place.path("main"), &["config", key, secret]);
        let line = format!("cat {}", place.path("main/.git/config").display());
        let done = place.stockade(&["run", "--shell", &line]);
        assert!(done.code != 0 && !done.stdout.contains("token"), "{done:?}");
    }
}

#[test]
fn the_git_directory_is_left_to_who_shows_it_and_not_shown_without_toolchains() {
    let place = worktree();
    let own = place.path("main/.git").display().to_string();
    let line = ["--shell", "git add -A && git status --short"];
    let mount = format!("{own}:{own}:rw");
    place.write("b", "new");
    let done = place.stockade(&[&["run", "--mount", &mount][..], &line].concat());
    assert_eq!((done.code, done.stdout.as_str()), (0, "A  b\n"), "{done:?}");
    let done = place.stockade(&[&["run", "--toolchain", "none"][..], &line].concat());
    assert_ne!(done.code, 0, "{done:?}");
}
