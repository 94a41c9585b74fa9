//! Checkouts by the host's git, of repositories on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::{Place, brief, done, open, ordinary, wait, whiteout, write};
use stockade_core::ErrorCode;
use stockade_engine::{Event, Filter, Journal, JournalOptions, StateDir};
use stockade_workspaces::{ApplyOptions, Hint, Kind, ManagedWorkspace, Mechanism, Request};

/// Runs git in a repository of the test's own, without anybody's configuration.
fn git(dir: &Path, args: &[&str]) -> String {
    let run = Command::new("git")
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "init.defaultBranch=main",
        ])
        .arg("-C")
        .arg(dir)
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap().trim().to_owned()
}

fn commit(dir: &Path, file: &str, text: &str) -> String {
    write(dir.join(file), text);
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "-m", text.trim()]);
    git(dir, &["rev-parse", "HEAD"])
}

/// A repository with two branches and a tag; answers with its commits.
fn repository(place: &Place) -> (PathBuf, [String; 3]) {
    let dir = place.dir.path().canonicalize().unwrap().join("repository");
    fs::create_dir(&dir).unwrap();
    git(&dir, &["init", "-q"]);
    let first = commit(&dir, "code", "one\n");
    git(&dir, &["tag", "-a", "v1", "-m", "v1"]);
    let second = commit(&dir, "code", "two\n");
    git(&dir, &["checkout", "-q", "-b", "side/branch"]);
    let third = commit(&dir, "side", "three\n");
    git(&dir, &["checkout", "-q", "main"]);
    (dir, [first, second, third])
}

fn hint(dir: &Path, rev: Option<&str>) -> Hint {
    Hint::Git { source: dir.display().to_string(), rev: rev.map(str::to_owned) }
}

fn checkout(place: &Place, dir: &Path, rev: Option<&str>) -> ManagedWorkspace {
    place.acquire(hint(dir, rev), Mechanism::Kernel)
}

#[test]
fn a_branch_a_tag_and_a_commit_are_checked_out() {
    let place = Place::new();
    let (dir, [first, second, third]) = repository(&place);
    for (rev, id, branch, text) in [
        (None, &second, Some("main"), "two\n"),
        (Some("side/branch"), &third, Some("side/branch"), "two\n"),
        (Some("v1"), &first, None, "one\n"),
        (Some(&first[..]), &first, None, "one\n"),
        (Some(&first[..10]), &first, None, "one\n"),
    ] {
        let workspace = checkout(&place, &dir, rev);
        assert_eq!(workspace.kind, Kind::Git);
        assert_eq!(workspace.metadata.get("git.commit"), Some(id), "{rev:?}");
        assert_eq!(workspace.metadata.get("git.branch").map(String::as_str), branch);
        assert_eq!(workspace.metadata["git.remote"], dir.display().to_string());
        assert_eq!(fs::read_to_string(workspace.root.join("code")).unwrap(), text);
        assert!(place.diff(&workspace.id).is_empty());
        assert!(!workspace.root.join(".git/hooks").exists());
        assert_eq!(git(&workspace.root, &["status", "--porcelain"]), "");
        assert_eq!(&git(&workspace.root, &["rev-parse", "HEAD"]), id);
    }
}

#[test]
fn an_ordinary_user_checks_out_too() {
    ordinary::repeat(module_path!(), "a_branch_a_tag_and_a_commit_are_checked_out");
}

#[test]
fn five_checkouts_at_once_cost_one_and_each_has_its_own_changes() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let place = Place::new();
        let (dir, _) = repository(&place);
        let found: Vec<(ManagedWorkspace, Vec<String>)> = std::thread::scope(|scope| {
            let work = |number: usize| {
                let (place, dir) = (&place, &dir);
                move || {
                    let workspaces = open(&place.dir.path().join("state"));
                    let request = Request { mechanism, ..Request::new(hint(dir, None)) };
                    let workspace = wait(workspaces.acquire(request)).unwrap();
                    let written = match mechanism {
                        Mechanism::Kernel => place.upper(&workspace.id),
                        Mechanism::Copy => workspace.root.clone(),
                    };
                    write(written.join(format!("new{number}")), "x\n");
                    write(written.join("code"), format!("changed by {number}\n"));
                    let diff = workspaces.diff(&workspace.id).unwrap();
                    (workspace, diff.changes.iter().map(brief).collect())
                }
            };
            let all: Vec<_> = (0..5).map(|number| scope.spawn(work(number))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for (number, (workspace, lines)) in found.iter().enumerate() {
            assert_eq!(*lines, ["M code".to_owned(), format!("A new{number}")]);
            assert_eq!(place.lines(&workspace.id), *lines);
        }
        let stores: Vec<_> = fs::read_dir(place.dir.path().join("state/git")).unwrap().collect();
        assert_eq!(stores.len(), 1);
        let in_it = fs::read_dir(stores[0].as_ref().unwrap().path()).unwrap();
        let trees = in_it.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
        assert_eq!(trees, 2, "the store and one checkout");
    }
}

#[test]
fn a_new_commit_is_seen_by_the_next_checkout_only() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let before = checkout(&place, &dir, Some("main"));
    let third = commit(&dir, "code", "three\n");
    let after = checkout(&place, &dir, Some("main"));
    assert_eq!(after.metadata["git.commit"], third);
    assert_eq!(fs::read_to_string(before.root.join("code")).unwrap(), "two\n");
}

#[test]
fn changes_go_to_a_named_tree_that_holds_the_commit() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let workspace = checkout(&place, &dir, None);
    let upper = place.upper(&workspace.id);
    write(upper.join("code"), "guest\n");
    write(upper.join("more"), "more\n");
    let error = place.workspaces.apply(&workspace.id, &ApplyOptions::default()).unwrap_err();
    assert!(error.hint().unwrap().contains("--to"), "{error}");
    let options = ApplyOptions { include: Vec::new(), to: Some(dir.clone()), seen: None };
    done(place.workspaces.apply(&workspace.id, &options).unwrap());
    assert_eq!(git(&dir, &["status", "--porcelain"]), "M code\n?? more");
}

#[test]
fn a_commit_made_by_the_guest_is_applied_without_its_hooks_and_configuration() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let workspace = place.acquire(Hint::Overlay(dir.clone()), Mechanism::Copy);
    commit(&workspace.root, "code", "by the guest\n");
    write(workspace.root.join(".git/hooks/pre-commit"), "#!/bin/sh\nevil\n");
    git(&workspace.root, &["config", "core.fsmonitor", "evil"]);
    let held = place.applied(&workspace.id).held;
    let held: Vec<_> = held.iter().map(ToString::to_string).collect();
    assert!(
        held.contains(&".git/config".to_owned())
            && held.contains(&".git/hooks/pre-commit".to_owned())
    );
    assert_eq!(git(&dir, &["log", "-1", "--format=%s"]), "by the guest");
    assert_eq!(git(&dir, &["status", "--porcelain"]), "");
    assert!(!fs::read_to_string(dir.join(".git/config")).unwrap().contains("evil"));
}

#[test]
fn no_filter_or_hook_runs_when_a_hostile_repository_is_checked_out() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let witness = place.dir.path().join("witness");
    write(dir.join(".gitattributes"), "* filter=evil\n");
    commit(&dir, "code", "filtered\n");
    let evil = format!("touch {}", witness.display());
    git(&dir, &["config", "filter.evil.smudge", &evil]);
    git(&dir, &["config", "uploadpack.packObjectsHook", &evil]);
    write(dir.join(".git/hooks/post-checkout"), format!("#!/bin/sh\n{evil}\n"));
    common::mode(dir.join(".git/hooks/post-checkout"), 0o755);
    let workspace = checkout(&place, &dir, None);
    assert_eq!(fs::read_to_string(workspace.root.join("code")).unwrap(), "filtered\n");
    assert!(!witness.exists());
}

const EVIL_SOURCE_VAR: &str = "STOCKADE_TEST_EVIL";

/// Not a test of its own: acquires a checkout while standing in a directory that a guest wrote.
#[test]
fn standing_elsewhere() {
    let Ok(source) = std::env::var(EVIL_SOURCE_VAR) else { return };
    let place = Place::new();
    let hint = Hint::Git { source, rev: None };
    assert!(wait(place.workspaces.acquire(Request::new(hint))).is_err());
}

#[test]
fn the_configuration_of_where_the_caller_stands_is_not_used() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let witness = place.dir.path().join("witness");
    let evil = format!("touch {};", witness.display());
    git(&dir, &["config", "core.sshCommand", &evil]);
    git(&dir, &["config", "credential.helper", &format!("!{evil}")]);
    git(&dir, &["config", "core.fsmonitor", &evil]);
    for source in ["ssh://127.0.0.1:9/x", "http://127.0.0.1:9/x", "me@127.0.0.1:x"] {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "needs_git::git::standing_elsewhere", "--nocapture"])
            .env(EVIL_SOURCE_VAR, source)
            .current_dir(&dir)
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert!(!witness.exists(), "{source}");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let ask = |hint| wait(place.workspaces.acquire(Request::new(hint))).unwrap_err();
    let error = ask(hint(&dir, Some("nowhere")));
    assert!(error.code() == ErrorCode::NotFound && error.message().contains("nowhere"), "{error}");
    let error = ask(hint(&place.dir.path().join("absent"), None));
    assert!(error.code() == ErrorCode::Invalid && error.message().contains("absent"), "{error}");
    let error = ask(hint(&place.source(), None));
    assert!(error.code() == ErrorCode::Unavailable && error.hint().is_some(), "{error}");
    for rev in ["--upload-pack=x", "a..b", "HEAD:code"] {
        assert_eq!(ask(hint(&dir, Some(rev))).code(), ErrorCode::Invalid);
    }
    assert!(place.workspaces.list().unwrap().is_empty());
}

#[test]
fn a_password_in_an_address_is_told_to_nobody() {
    let place = Place::new();
    let source = "http://me:hunter2@127.0.0.1:9/repo.git".to_owned();
    let error = wait(place.workspaces.acquire(Request::new(Hint::Git { source, rev: None })));
    let error = error.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    let left = Command::new("grep").args(["-r", "hunter2"]).arg(place.dir.path()).output().unwrap();
    assert!(left.stdout.is_empty());
}

#[test]
fn a_checkout_is_recorded_by_its_public_address() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let source = format!("file://{}", dir.display());
    let workspace =
        place.acquire(Hint::Git { source: source.clone(), rev: None }, Mechanism::Kernel);
    let state = StateDir::open(place.dir.path().join("state")).unwrap();
    let journal = Journal::open(&state, JournalOptions::default()).unwrap();
    let first = journal.records(Filter::default()).unwrap().next().unwrap().unwrap();
    let Event::WorkspaceAcquired { workspace_kind, root, .. } = first.event else { panic!() };
    assert_eq!((workspace_kind.as_str(), root), ("git", source.clone()));
    assert_eq!(git(&workspace.root, &["remote", "get-url", "origin"]), source);
}

#[test]
fn removing_a_tracked_file_is_told() {
    let place = Place::new();
    let (dir, _) = repository(&place);
    let workspace = checkout(&place, &dir, None);
    whiteout(place.upper(&workspace.id).join("code"));
    assert_eq!(place.lines(&workspace.id), ["D code"]);
    place.release(&workspace.id);
    assert!(place.workspaces.list().unwrap()[0].released);
}

/// Makes it look as if every checkout had been asked for two hours ago.
fn age(stores: &Path) {
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for store in fs::read_dir(stores).unwrap() {
        for entry in fs::read_dir(store.unwrap().path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "used") {
                fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
            }
        }
    }
}

#[test]
fn checkouts_that_nobody_uses_are_removed_and_made_again_when_they_are_wanted() {
    let place = Place::new();
    let (source, [first, ..]) = repository(&place);
    let source = source.to_str().unwrap().to_owned();
    let hint =
        |rev: Option<&str>| Hint::Git { source: source.clone(), rev: rev.map(str::to_owned) };
    let kept = place.acquire(hint(None), Mechanism::Kernel);
    let old = place.acquire(hint(Some(&first)), Mechanism::Kernel);
    let stores = place.dir.path().join("state/git");
    place.release(&old.id);
    assert_eq!(place.workspaces.prune(std::time::Duration::ZERO).unwrap(), 0, "it was just used");
    age(&stores);
    assert_eq!(place.workspaces.prune(std::time::Duration::ZERO).unwrap(), 1);
    assert!(kept.root.exists() && !old.root.exists());
    let again = place.acquire(hint(Some(&first)), Mechanism::Kernel);
    assert_eq!(fs::read_to_string(again.root.join("code")).unwrap(), "one\n");
    place.release(&again.id);
    place.release(&kept.id);
    age(&stores);
    assert_eq!(place.workspaces.prune(std::time::Duration::ZERO).unwrap(), 2);
    assert_eq!(fs::read_dir(&stores).unwrap().count(), 0, "a store goes with its last checkout");
    let anew = place.acquire(hint(None), Mechanism::Kernel);
    assert_eq!(fs::read_to_string(anew.root.join("code")).unwrap(), "two\n");
}
