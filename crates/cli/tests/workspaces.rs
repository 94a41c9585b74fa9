//! Changes that are kept apart: `--overlay`, `--git`, `--resume`, and `stockade workspace`.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::lasting::Lasting;
use common::{Done, Place, finish, signal, start, wait};
use rustix::process::Signal;
use serde_json::Value;

const CHANGES: &str = "echo two >> a; rm gone; echo new > b";

/// A place with a few files.
fn furnished(place: Place) -> Place {
    place.write("a", "one\n");
    place.write("gone", "x\n");
    place.give_files();
    place
}

fn text(place: &Place, name: &str) -> Option<String> {
    fs::read_to_string(place.workspace().join(name)).ok()
}

fn json(place: &Place, args: &[&str]) -> Value {
    let done = place.stockade(&[&["--json"], args].concat());
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// The ids of all that are kept.
fn ids(place: &Place) -> Vec<String> {
    let done = place.stockade(&["workspace", "ls", "--quiet"]);
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(str::to_owned).collect()
}

/// Runs a line of shell on a view; answers the id of the workspace that is kept.
#[track_caller]
fn overlaid(place: &Place, line: &str) -> String {
    let done = place.stockade(&["run", "--overlay", "--shell", line]);
    assert_eq!(done.code, 0, "{done:?}");
    let ids = ids(place);
    assert_eq!(ids.len(), 1, "{done:?}");
    assert!(done.stderr.contains(&ids[0]), "{done:?}");
    ids[0].clone()
}

fn assert_untouched(place: &Place) {
    assert_eq!(text(place, "a").as_deref(), Some("one\n"));
    assert_eq!(text(place, "gone").as_deref(), Some("x\n"));
    assert_eq!(text(place, "b"), None);
}

fn assert_changed(place: &Place) {
    assert_eq!(text(place, "a").as_deref(), Some("one\ntwo\n"));
    assert_eq!((text(place, "gone"), text(place, "b").as_deref()), (None, Some("new\n")));
}

#[test]
fn changes_are_kept_apart_and_applied_when_they_are_wanted() {
    for place in [Place::new(), Place::of_an_ordinary_user()] {
        let place = furnished(place);
        let done = place.stockade(&["run", "--overlay", "--shell", CHANGES]);
        let id = ids(&place).remove(0);
        let told = format!(
            "stockade: 3 changes are kept apart in workspace {id}\n\
             stockade:   to see:      stockade workspace diff {id}\n\
             stockade:   to apply:    stockade workspace apply {id}\n\
             stockade:   to discard:  stockade workspace discard {id}\n"
        );
        done.is(0, "", &told);
        assert_untouched(&place);
        place.stockade(&["workspace", "diff", &id]).is(0, "M a\nA b\nD gone\n", "");
        let patch = place.stockade(&["workspace", "diff", "--patch", &id[..10]]).stdout;
        assert!(patch.contains("--- a/a\n+++ b/a\n@@ -1 +1,2 @@\n one\n+two\n"), "{patch}");
        let applied = format!(
            "stockade: applied 3 changes to {}\n",
            place.workspace().canonicalize().unwrap().display()
        );
        place.stockade(&["workspace", "apply", &id]).is(0, "", &applied);
        assert_changed(&place);
        assert_eq!(ids(&place), Vec::<String>::new());
        place.assert_nothing_is_left();
    }
}

#[test]
fn a_command_that_changes_nothing_leaves_no_workspace() {
    let place = furnished(Place::new());
    let told = "stockade: nothing was changed in the workspace\n";
    place.stockade(&["run", "--overlay", "cat", "a"]).is(0, "one\n", told);
    place
        .stockade(&["run", "--overlay", "--shell", "touch a; chmod 600 a; chmod 644 a; exit 3"])
        .is(3, "", told);
    let empty = "stockade: no changes are kept apart; `stockade run --overlay` keeps them so\n";
    place.stockade(&["workspace", "ls"]).is(0, "", empty);
}

#[test]
fn a_command_that_does_not_start_leaves_no_workspace() {
    let place = furnished(Place::new());
    let args = ["run", "--overlay", "--boundary", "hardware", "true"];
    assert_eq!(place.stockade(&args).code, 125);
    assert_eq!(place.stockade(&["run", "--overlay", "no-such"]).code, 127);
    assert_eq!(ids(&place), Vec::<String>::new());
}

#[test]
fn what_would_run_code_later_is_held_back_until_it_is_named() {
    let place = furnished(Place::new());
    let line = "echo x > .envrc; mkdir -p .git/hooks; echo y > .git/hooks/pre-commit; echo z > b";
    let id = overlaid(&place, line);
    let done = place.stockade(&["workspace", "apply", &id]);
    assert_eq!(done.code, 0, "{done:?}");
    let lines: Vec<_> = done.stderr.lines().collect();
    assert!(lines[0].starts_with("stockade: applied 1 change to "), "{lines:?}");
    assert!(lines[1].starts_with("stockade: held back: .envrc: "), "{lines:?}");
    assert!(lines[2].starts_with("stockade: held back: .git: "), "{lines:?}");
    assert_eq!(lines[3], "stockade: 4 changes held back");
    assert!(text(&place, "b").is_some() && text(&place, ".envrc").is_none());
    let done = place.stockade(&["workspace", "apply", &id, "--include", ".envrc"]);
    assert!(done.code == 0 && text(&place, ".envrc").is_some(), "{done:?}");
    assert!(!place.workspace().join(".git").exists());
    let refused = place.stockade(&["workspace", "apply", &id, "--include", "../x"]);
    refused.is_refused(&["--include", "../x", "`..`"]);
}

#[test]
fn a_file_that_changed_underneath_is_a_conflict_and_nothing_is_applied() {
    let place = furnished(Place::new());
    let id = overlaid(&place, CHANGES);
    place.write("a", "somebody else's\n");
    let done = place.stockade(&["workspace", "apply", &id]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{done:?}");
    let conflict = "stockade: conflict: a changed since the workspace began\n";
    assert!(done.stderr.starts_with(conflict), "{done:?}");
    assert!(done.stderr.contains("nothing was applied (remedy: "), "{done:?}");
    assert_eq!(text(&place, "b"), None);
    let told = json(&place, &["workspace", "apply", &id]);
    assert_eq!((&told["result"], &told["conflicts"][0]["path"]), (&"conflict".into(), &"a".into()));
    assert_eq!(ids(&place), [id]);
}

#[test]
fn changes_that_are_discarded_are_gone() {
    let place = furnished(Place::of_an_ordinary_user());
    let id = overlaid(&place, &format!("{CHANGES}; mkdir -p deep/er; chmod 0 deep"));
    place.stockade(&["workspace", "discard", &id]).is(0, "", "");
    assert_untouched(&place);
    assert_eq!(fs::read_dir(place.state().join("workspaces")).unwrap().count(), 0);
    let unknown = ["this user has no workspace", &id, "stockade workspace ls"];
    place.stockade(&["workspace", "discard", &id]).is_refused(&unknown);
    place.stockade(&["workspace", "diff", &id]).is_refused(&unknown);
    place.stockade(&["workspace", "apply", "NOT-AN-ID"]).is_refused(&["NOT-AN-ID"]);
    place.stockade(&["workspace", "aply", &id]).is_refused(&["aply", "apply"]);
}

#[test]
fn the_beginning_of_an_id_is_enough_if_no_other_begins_with_it() {
    let place = furnished(Place::new());
    let first = overlaid(&place, CHANGES);
    // An id begins with one of 32 characters, so two of these begin alike.
    for _ in 0..32 {
        place.stockade(&["workspace", "fork", &first]).code_is(0);
    }
    let all = ids(&place);
    let alike = |one: &&String| all.iter().filter(|id| id[..1] == one[..1]).count() > 1;
    let shared = &all.iter().find(alike).unwrap()[..1];
    place.stockade(&["workspace", "diff", shared]).is_refused(&["begin with", shared, "more"]);
    place.stockade(&["workspace", "diff", &first[..19]]).code_is(0);
}

#[test]
fn a_fork_goes_its_own_way() {
    let place = furnished(Place::new());
    let one = overlaid(&place, CHANGES);
    let forked = place.stockade(&["workspace", "fork", &one]);
    let two = forked.stdout.trim_end().to_owned();
    forked.is(0, &format!("{two}\n"), "");
    let done = place.stockade(&["run", "--resume", &two, "--shell", "cat a b; echo more > c"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "one\ntwo\nnew\n"), "{done:?}");
    place.stockade(&["workspace", "diff", &one]).is(0, "M a\nA b\nD gone\n", "");
    place.stockade(&["workspace", "diff", &two]).is(0, "M a\nA b\nA c\nD gone\n", "");
    place.stockade(&["workspace", "discard", &one]).code_is(0);
    place.stockade(&["workspace", "apply", &two]).code_is(0);
    assert_changed(&place);
}

#[test]
fn a_workspace_that_a_sandbox_has_is_left_alone_unless_forced() {
    for place in [Place::new(), Place::of_an_ordinary_user()] {
        let place = Lasting(furnished(place));
        let done = place.stockade(&["create", "--overlay"]);
        let (sandbox, id) = (done.stdout.trim_end().to_owned(), ids(&place).remove(0));
        let told = format!("stockade: changes are kept apart in workspace {id}\n");
        done.is(0, &format!("{sandbox}\n"), &told);
        place.shell(&sandbox, CHANGES).is(0, "", "");
        assert_untouched(&place);
        let listed = place.json(&["workspace", "ls"])["workspaces"][0].take();
        assert_eq!((&listed["inUse"], &listed["changes"]), (&true.into(), &3.into()));
        assert_eq!(place.listed(&sandbox).unwrap()["workspace"], id.as_str());
        for verb in ["apply", "discard"] {
            let refused = place.stockade(&["workspace", verb, &id]);
            refused.is_refused(&["a sandbox has workspace", &id, "stockade kill", "--force"]);
        }
        let refused = place.stockade(&["run", "--resume", &id, "true"]);
        refused.is_refused(&["--resume", "a sandbox has workspace", &id]);
        place.stockade(&["workspace", "apply", "--force", &id]).code_is(0);
        assert_changed(&place);
        place.stockade(&["rm", &sandbox]).is(0, "", "");
        place.assert_all_is_gone();
        assert_eq!(ids(&place), Vec::<String>::new());
    }
}

#[test]
fn the_workspace_of_a_lasting_sandbox_outlives_it_only_for_its_changes() {
    let place = Lasting(furnished(Place::new()));
    let make = || place.json(&["create", "--overlay"])["sandbox"].as_str().unwrap().to_owned();
    place.stockade(&["kill", &make()]).code_is(0);
    assert_eq!(ids(&place), Vec::<String>::new());
    let sandbox = make();
    place.shell(&sandbox, CHANGES).code_is(0);
    place.stockade(&["kill", &sandbox]).code_is(0);
    let id = ids(&place).remove(0);
    let listed = place.json(&["workspace", "ls"])["workspaces"][0].take();
    assert_eq!((&listed["inUse"], &listed["changes"]), (&false.into(), &3.into()));
    place.stockade(&["workspace", "apply", &id]).code_is(0);
    assert_changed(&place);
}

#[test]
fn a_supervisor_that_is_killed_leaves_the_changes_to_be_applied() {
    let place = Lasting(furnished(Place::new()));
    let sandbox = place.json(&["create", "--overlay"])["sandbox"].as_str().unwrap().to_owned();
    place.shell(&sandbox, CHANGES).code_is(0);
    place.slay_owner(&sandbox);
    let id = ids(&place).remove(0);
    place.stockade(&["workspace", "apply", &id]).code_is(0);
    assert_changed(&place);
    assert_eq!(ids(&place), Vec::<String>::new());
}

#[test]
fn a_detached_command_keeps_its_changes_apart_too() {
    let place = Lasting(furnished(Place::new()));
    let told = place.json(&["run", "--overlay", "--detach", "--shell", CHANGES]);
    let (sandbox, id) = (told["sandbox"].as_str().unwrap(), told["workspace"].as_str().unwrap());
    common::lasting::eventually("it ends", || place.listed(sandbox).is_none());
    assert_untouched(&place);
    place.stockade(&["workspace", "apply", id]).code_is(0);
    assert_changed(&place);
}

#[test]
fn where_no_overlay_can_be_had_the_workspace_is_copied() {
    for place in [Place::new(), Place::of_an_ordinary_user()] {
        let place = furnished(place);
        let args = ["run", "--backend", "landlock", "--overlay", "--shell", CHANGES];
        place.stockade(&args).code_is(0);
        assert_untouched(&place);
        let id = ids(&place).remove(0);
        place.stockade(&["workspace", "diff", &id]).is(0, "M a\nA b\nD gone\n", "");
        place.stockade(&["workspace", "apply", &id]).code_is(0);
        assert_changed(&place);
    }
}

#[test]
fn a_copy_that_a_sandbox_has_is_left_alone_as_well() {
    let place = Lasting(furnished(Place::new()));
    let args = ["create", "--backend", "landlock", "--overlay"];
    let sandbox = place.json(&args)["sandbox"].as_str().unwrap().to_owned();
    place.shell(&sandbox, CHANGES).code_is(0);
    let id = ids(&place).remove(0);
    place.stockade(&["workspace", "discard", &id]).is_refused(&["a sandbox has workspace", &id]);
    place.stockade(&["kill", &sandbox]).code_is(0);
    place.stockade(&["workspace", "discard", &id]).is(0, "", "");
    assert_untouched(&place);
}

fn git(dir: &Path, args: &[&str]) -> Done {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c"]);
    command.args(["init.defaultBranch=main", "-C"]).arg(dir).args(args);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    let done = finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    done
}

#[test]
fn a_checkout_is_worked_on_apart_from_its_repository() {
    let place = furnished(Place::new());
    let repository = place.workspace();
    git(&repository, &["init", "--quiet"]);
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "--quiet", "-m", "first"]);
    git(&repository, &["tag", "v1"]);
    place.write("a", "later\n");
    git(&repository, &["commit", "--quiet", "-am", "second"]);
    let source = format!("{}@v1", repository.display());
    let line = format!("cat a; git log --oneline | wc -l; {CHANGES}");
    let done = place.stockade(&["run", "--git", &source, "--shell", &line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "one\n1\n"), "{done:?}");
    assert!(done.stderr.contains("--to DIR"), "{done:?}");
    let id = ids(&place).remove(0);
    let listed = place.stockade(&["workspace", "ls"]).stdout;
    assert!(listed.contains("git") && listed.contains("work@"), "{listed}");
    place.stockade(&["workspace", "apply", &id]).is_refused(&["--to DIR"]);
    let target = place.path("clone");
    git(&repository, &["clone", "--quiet", "--branch", "v1", ".", target.to_str().unwrap()]);
    place.stockade(&["workspace", "apply", &id, "--to", target.to_str().unwrap()]).code_is(0);
    assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "one\ntwo\n");
    assert_eq!(text(&place, "a").as_deref(), Some("later\n"));
    let nowhere = place.stockade(&["run", "--git", "/nowhere/at/all", "true"]);
    nowhere.is_refused(&["/nowhere/at/all"]);
}

#[test]
fn json_tells_of_the_workspace() {
    let place = furnished(Place::new());
    let told = json(&place, &["run", "--overlay", "--shell", CHANGES]);
    let id = told["workspace"]["id"].as_str().unwrap().to_owned();
    assert_eq!((&told["workspace"]["changes"], &told["workspace"]["held"]), (&3.into(), &0.into()));
    let diff = json(&place, &["workspace", "diff", &id, "--patch"]);
    assert_eq!(diff["changes"][0]["kind"], "changed");
    assert!(diff["patch"].as_str().unwrap().contains("+two"), "{diff}");
    let applied = json(&place, &["workspace", "apply", &id]);
    assert_eq!((&applied["result"], &applied["applied"][2]), (&"applied".into(), &"gone".into()));
    let refused = json(&place, &["workspace", "discard", &id]);
    assert_eq!(refused["error"]["code"], "not-found");
}

#[test]
fn a_command_that_is_interrupted_keeps_its_changes_apart() {
    let place = furnished(Place::new());
    let line = format!("{CHANGES}; echo ready; exec sleep 100");
    let (child, ready) = start(place.command(&["run", "--overlay", "--shell", &line]));
    assert_eq!(ready, "ready");
    signal(&child, Signal::INT);
    let done = wait(child);
    assert_eq!(done.code, 130, "{done:?}");
    assert!(done.stderr.contains("3 changes are kept apart"), "{done:?}");
    assert_untouched(&place);
    place.assert_nothing_is_left();
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let place = furnished(Place::new());
    let id = overlaid(&place, "seq 200000 > many");
    let mut command = place.command(&["workspace", "diff", "--patch", &id]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    wait(child).is(0, "", "");
}

#[test]
fn a_view_that_would_show_its_own_records_is_refused() {
    let place = furnished(Place::new());
    let above = place.path("").canonicalize().unwrap();
    let args = ["run", "--overlay", "--workspace", above.to_str().unwrap(), "true"];
    place.stockade(&args).is_refused(&["state directory", "STOCKADE_STATE_DIR"]);
    for conflict in ["--no-workspace", "--git=x"] {
        let args = ["run", "--resume", "x", conflict, "true"];
        assert_eq!(place.stockade(&args).code, 125, "{conflict}");
    }
}

#[test]
fn explain_says_who_would_take_a_view_and_makes_none() {
    let place = furnished(Place::new());
    let done = place.stockade(&["explain", "--overlay", "--backend", "landlock"]);
    assert!(done.code == 125 && done.stdout.contains("overlay-workspace"), "{done:?}");
    place.stockade(&["explain", "--overlay"]).code_is(0);
    assert_eq!(ids(&place), Vec::<String>::new());
}

#[test]
fn no_setting_is_read_from_what_a_view_shows() {
    let place = Lasting(furnished(Place::new()));
    let config = place.workspace().join("stockade");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("config.toml"), "backend = \"brick\"").unwrap();
    let with = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("XDG_CONFIG_HOME", place.workspace());
        finish(command)
    };
    assert_eq!(with(&["run", "--no-workspace", "true"]).code, 125);
    let ignored = |done: Done| {
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stderr.contains("is ignored: it lies in the workspace"), "{done:?}");
    };
    ignored(with(&["run", "--overlay", "--shell", CHANGES]));
    let id = ids(&place).remove(0);
    ignored(with(&["run", "--resume", &id, "true"]));
    ignored(with(&["create", "--overlay"]));
}

#[test]
fn root_works_on_a_view_of_another_users_directory_as_that_user() {
    let place = furnished(Place::of_an_ordinary_user());
    let owner = |name: &str| {
        let found = fs::metadata(place.workspace().join(name)).unwrap();
        std::os::unix::fs::MetadataExt::uid(&found)
    };
    let theirs = owner("a");
    // Started by whoever runs the tests: root, if anybody.
    let by_root = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stockade"));
        command.args(args).current_dir(place.workspace()).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("STOCKADE_STATE_DIR", place.path("roots-state"));
        let done = finish(command);
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.trim_end().to_owned()
    };
    by_root(&["run", "--overlay", "--shell", CHANGES]);
    assert_untouched(&place);
    let id = by_root(&["workspace", "ls", "-q"]);
    let fork = by_root(&["workspace", "fork", &id]);
    by_root(&["run", "--resume", &fork, "--shell", "echo more > c"]);
    by_root(&["workspace", "apply", &fork]);
    assert_changed(&place);
    assert_eq!((owner("a"), owner("b"), owner("c")), (theirs, theirs, theirs));
}
