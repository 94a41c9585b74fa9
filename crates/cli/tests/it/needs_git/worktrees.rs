//! Git worktrees as workspaces: their git directory lies elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::common::{CliDone, CliPlace, finish};
use crate::mcp_ends::Conversation;

const COMMIT: &str = "git -c user.name=a -c user.email=a@example.org commit -q -a -m second";
/// Makes a repository beside the workspace, and the workspace a worktree of it.
const MAKE_WORKTREE: &str = "cd ..; git init -q main; cd main; git config user.name a
    git config user.email a@example.org; echo one > a; git add .; git commit -q -m first
    rmdir ../work; git worktree add -q ../work";

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
    make_worktree(&place, &place.path("main"));
    place
}

/// A new directory that is not below /tmp, where a sandbox may make what it likes; a checkout may be there.
fn make_dir_outside_tmp() -> tempfile::TempDir {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let bases = [PathBuf::from(env!("CARGO_TARGET_TMPDIR"))].into_iter().chain(home);
    let bases = bases.chain(["/srv", "/opt", "/var/lib"].map(PathBuf::from));
    let is_outside = |dir: &PathBuf| !dir.starts_with("/tmp") && !dir.starts_with("/var/tmp");
    let made = bases.filter(is_outside).find_map(|base| tempfile::tempdir_in(base).ok());
    made.expect("a directory outside /tmp that can be written to")
}

fn make_worktree(place: &CliPlace, main: &Path) {
    fs::create_dir(main).unwrap();
    git(main, &["init", "--quiet"]);
    fs::write(main.join("a"), "one\n").unwrap();
    git(main, &["add", "."]);
    git(main, &["commit", "--quiet", "-m", "first"]);
    fs::remove_dir(place.workspace()).unwrap();
    git(main, &["worktree", "add", "--quiet", place.workspace().to_str().unwrap()]);
}

#[test]
fn a_worktree_can_be_looked_at() {
    let place = worktree();
    let line = "git status --short && git log --format=%s && echo two >> a && git status --short";
    let done = place.stockade(&["run", "--shell", line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "first\n M a\n"), "{done:?}");
}

/// Every file below a directory, with its content.
fn read_files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().is_dir() {
            true => files.extend(read_files(&path)),
            false => drop(files.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    files
}

#[test]
fn a_commit_in_a_worktree_is_seen_outside() {
    let place = worktree();
    let line = format!("echo two >> a && {COMMIT} && git log --format=%s && git status --short");
    let done = place.stockade(&["run", "--shell", &line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "second\nfirst\n"), "{done:?}");
    let main = place.path("main");
    assert_eq!(git(&main, &["log", "--format=%s", "work"]).stdout, "second\nfirst\n");
    assert_eq!(git(&main, &["log", "--format=%s"]).stdout, "first\n");
    assert_eq!(git(&place.workspace(), &["status", "--short"]).stdout, "");
    for log in ["work", "HEAD"] {
        let logged = git(&place.workspace(), &["reflog", "show", log]).stdout;
        assert!(logged.contains("commit: second"), "{log}: {logged}");
    }
    git(&main, &["fsck", "--strict"]);
}

#[test]
fn an_ordinary_users_commit_in_a_worktree_is_seen_outside() {
    let place = CliPlace::of_an_ordinary_user();
    let made = finish(place.script(MAKE_WORKTREE));
    assert_eq!(made.code, 0, "{made:?}");
    let done = place.stockade(&["run", "--shell", &format!("echo two >> a && {COMMIT}")]);
    assert_eq!(done.code, 0, "{done:?}");
    let seen = finish(place.script("git -C ../main log --format=%s work; git status --short"));
    assert_eq!((seen.code, seen.stdout.as_str()), (0, "second\nfirst\n"), "{seen:?}");
}

#[test]
fn a_branch_that_was_made_in_a_worktree_is_seen_outside() {
    let place = worktree();
    let line = format!("git switch -q -c agent/new && echo two >> a && {COMMIT}");
    let done = place.stockade(&["run", "--shell", &line]);
    assert_eq!(done.code, 0, "{done:?}");
    let seen = git(&place.path("main"), &["log", "--format=%s", "agent/new"]);
    assert_eq!(seen.stdout, "second\nfirst\n");
}

#[test]
fn a_branch_that_git_has_packed_can_be_committed_to_and_reset() {
    let place = worktree();
    git(&place.workspace(), &["switch", "--quiet", "-c", "agent/packed"]);
    git(&place.path("main"), &["pack-refs", "--all", "--prune"]);
    let line = format!("echo two >> a && {COMMIT} && git log --format=%s && git reset -q HEAD~1");
    let done = place.stockade(&["run", "--shell", &line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "second\nfirst\n"), "{done:?}");
    let seen = git(&place.path("main"), &["log", "--format=%s", "agent/packed"]);
    assert_eq!(seen.stdout, "first\n");
}

#[test]
fn what_leads_git_elsewhere_or_runs_code_cannot_be_written_in_a_worktree() {
    let place = worktree();
    let git_dir = place.path("main/.git");
    let paths = ["hooks/post-commit", "config", "config.worktree", "HEAD", "packed-refs", "x"];
    let shared = ["refs/x", "refs/tags/x", "refs/replace", "logs/x", "logs/refs/heads/x"];
    let objects = ["objects/info/alternates", "objects/pack/x", "info/exclude", "modules"];
    let own = ["commondir", "gitdir", "logs/x"].map(|name| format!("worktrees/work/{name}"));
    let before = read_files(&git_dir);
    let others = [&paths[..], &shared, &objects].concat().into_iter().map(str::to_owned);
    for path in others.chain(own) {
        let line = format!("echo x > {}", git_dir.join(&path).display());
        let done = place.stockade(&["run", "--shell", &line]);
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{path}: {done:?}");
    }
    assert_eq!(read_files(&git_dir), before);
}

#[test]
fn what_is_read_only_in_a_worktrees_git_directory_cannot_be_replaced() {
    let place = worktree();
    let git_dir = place.path("main/.git");
    let before = read_files(&git_dir);
    for path in [
        "objects",
        "objects/info",
        "objects/pack",
        "refs/heads",
        "logs/refs/heads/work",
        "worktrees/work",
        "worktrees/work/commondir",
        "worktrees/work/gitdir",
        "worktrees/work/logs",
        "worktrees/work/logs/HEAD",
    ] {
        let path = git_dir.join(path).display().to_string();
        let moved = place.stockade(&["run", "--", "mv", &path, &format!("{path}.old")]);
        assert_ne!(moved.code, 0, "{path}: {moved:?}");
        let linked = place.stockade(&["run", "--", "ln", "-sfnT", "/etc/passwd", &path]);
        assert_ne!(linked.code, 0, "{path}: {linked:?}");
    }
    assert_eq!(read_files(&git_dir), before);
}

#[test]
fn a_guest_makes_neither_links_nor_pipes_where_git_of_the_host_would_follow_them() {
    let place = CliPlace::new();
    let elsewhere = make_dir_outside_tmp();
    let main = elsewhere.path().canonicalize().unwrap().join("main");
    make_worktree(&place, &main);
    for path in ["objects/link", "refs/heads/link", "worktrees/work/link"] {
        let path = main.join(".git").join(path);
        let line = format!("! ln -s /etc {0} && ! mkfifo {0}", path.display());
        let done = place.stockade(&["run", "--shell", &line]);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stderr.contains("Permission denied"), "{done:?}");
        assert!(path.symlink_metadata().is_err(), "{done:?}");
    }
    let done = place.stockade(&["run", "--shell", &format!("echo two >> a && {COMMIT}")]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(git(&main, &["log", "--format=%s", "work"]).stdout, "second\nfirst\n");
}

#[test]
fn nothing_outside_is_changed_where_the_workspace_is_not() {
    for flag in ["--read-only", "--overlay"] {
        let place = worktree();
        place.write("a", "two\n");
        let before = read_files(&place.path("main/.git"));
        let done = place.stockade(&["run", flag, "--shell", COMMIT]);
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{flag}: {done:?}");
        let line = format!("touch {}", place.path("main/.git/refs/heads/x").display());
        let done = place.stockade(&["run", flag, "--shell", &line]);
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{flag}: {done:?}");
        assert_eq!(read_files(&place.path("main/.git")), before, "{flag}");
    }
}

#[test]
fn a_worktree_with_a_configuration_of_its_own_is_read_only_and_that_is_said() {
    let place = worktree();
    git(&place.path("main"), &["config", "extensions.worktreeConfig", "true"]);
    place.write("a", "two\n");
    let before = read_files(&place.path("main/.git"));
    let done = place.stockade(&["run", "--shell", COMMIT]);
    assert!(done.code != 0 && done.stderr.contains("is read-only: `extensions."), "{done:?}");
    assert_eq!(read_files(&place.path("main/.git")), before);
    let done = place.stockade(&["run", "--read-only", "--", "git", "log", "--format=%s"]);
    assert!(done.stdout == "first\n" && !done.stderr.contains("is read-only"), "{done:?}");
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

/// The next call works in a new one.
fn end_only_sandbox(agent: &mut Conversation) {
    let listed = agent.call("sandbox_list", json!({}))["structuredContent"].clone();
    let id = &listed["sandboxes"][0]["sandboxId"];
    let ended = agent.call("sandbox_destroy", json!({ "sandbox_id": id }));
    assert_ne!(ended["isError"], true, "{ended}");
}

#[test]
fn each_sandbox_of_a_server_sees_the_repository_as_it_is_by_then() {
    let place = worktree();
    let mut agent = Conversation::begin(&place, &[]);
    let identity = "git -c user.name=a -c user.email=a@example.org";
    let commit = format!("echo {{}} >> a && {identity} commit -q -a -m {{}}");
    let told = agent.bash(&commit.replace("{}", "second"));
    assert_eq!(told["exitCode"], 0, "{told}");
    end_only_sandbox(&mut agent);
    git(&place.workspace(), &["branch", "-m", "renamed"]);
    let told = agent.bash(&commit.replace("{}", "third"));
    assert_eq!(told["exitCode"], 0, "{told}");
    assert_eq!(git(&place.workspace(), &["log", "-1", "--format=%s"]).stdout, "third\n");
    // From now on git on the host obeys a file that a guest could write.
    git(&place.workspace(), &["config", "extensions.worktreeConfig", "true"]);
    end_only_sandbox(&mut agent);
    let told = agent.bash(&commit.replace("{}", "fourth"));
    assert_ne!(told["exitCode"], 0, "{told}");
    agent.end().code_is(0);
    place.assert_nothing_is_left();
}
