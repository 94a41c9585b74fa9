//! Git worktrees as workspaces: their git directory lies elsewhere.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Done, Place, finish};

fn git(dir: &Path, args: &[&str]) -> Done {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c"]);
    command.args(["init.defaultBranch=main", "-C"]).arg(dir).args(args);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    let done = finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    done
}

/// A repository in `main`, and the workspace as a worktree of it.
fn worktree() -> Place {
    let place = Place::new();
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
fn a_worktree_can_be_looked_at_and_committed_in() {
    let place = worktree();
    let line = "git status --short && git log --format=%s && echo two >> a && git status --short && \
                git -c user.name=b -c user.email=b@example.org commit --quiet -am second";
    let done = place.stockade(&["run", "--shell", line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "first\n M a\n"), "{done:?}");
    assert_eq!(git(&place.workspace(), &["log", "--format=%s"]).stdout, "second\nfirst\n");
    assert_eq!(git(&place.path("main"), &["log", "--format=%s"]).stdout, "first\n");
}

#[test]
fn hooks_and_configuration_of_the_repository_cannot_be_changed() {
    let place = worktree();
    let git = place.path("main/.git").display().to_string();
    for path in ["hooks/post-commit", "config", "worktrees/work/commondir"] {
        let line = format!("echo x > {git}/{path}");
        let done = place.stockade(&["run", "--shell", &line]);
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{path}: {done:?}");
    }
    let done = place.stockade(&["run", "--read-only", "--shell", &format!("echo > {git}/refs/x")]);
    assert!(done.code != 0 && done.stderr.contains("Read-only"), "{done:?}");
}

#[test]
fn a_git_directory_that_is_not_this_worktrees_is_not_shown() {
    let place = worktree();
    let other = place.path("main/.git").display().to_string();
    fs::write(place.workspace().join(".git"), format!("gitdir: {other}\n")).unwrap();
    let done = place.stockade(&["run", "--shell", &format!("ls {other}")]);
    assert_ne!(done.code, 0, "{done:?}");
}
