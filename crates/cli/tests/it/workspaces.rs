//! Changes that are kept apart: `--overlay`, `--resume`, and `stockade workspace`.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::changes::{
    CHANGES_SCRIPT, assert_changed, assert_untouched, furnished, ids, json, overlaid,
    overlaid_with, text,
};
use crate::common::{CliDone, CliPlace, finish, signal, start, wait};
use rustix::process::Signal;

#[test]
fn changes_are_kept_apart_and_applied_when_they_are_wanted() {
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let place = furnished(place);
        let done = place.stockade(&["run", "--overlay", "--shell", CHANGES_SCRIPT]);
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
    let place = furnished(CliPlace::new());
    let told = "stockade: nothing was changed in the workspace\n";
    place.stockade(&["run", "--overlay", "cat", "a"]).is(0, "one\n", told);
    place
        .stockade(&["run", "--overlay", "--shell", "touch a; chmod 600 a; chmod 644 a; exit 3"])
        .is(3, "", told);
    let empty = "stockade: no workspaces with changes; `stockade run --overlay` makes one\n";
    place.stockade(&["workspace", "ls"]).is(0, "", empty);
}

#[test]
fn a_command_that_does_not_start_leaves_no_workspace() {
    let place = furnished(CliPlace::new());
    let args = ["run", "--overlay", "--boundary", "hardware", "true"];
    assert_eq!(place.stockade(&args).code, 125);
    assert_eq!(place.stockade(&["run", "--overlay", "no-such"]).code, 127);
    assert_eq!(ids(&place), Vec::<String>::new());
}

#[test]
fn what_would_run_code_later_is_held_back_until_it_is_named() {
    let place = furnished(CliPlace::new());
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
fn what_is_never_applied_is_left_behind_without_advice_to_name_it() {
    let place = furnished(CliPlace::new());
    let id = overlaid(&place, "echo z > b; mkfifo p");
    let told = |done: &CliDone| done.stderr.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let left = [
        "stockade: never applied: p: it is a device, fifo or socket".to_owned(),
        "stockade: 1 change left behind".to_owned(),
    ];
    let discard = format!("stockade:   to discard:      stockade workspace discard {id}");
    let done = place.stockade(&["workspace", "apply", &id]);
    done.code_is(0);
    assert_eq!(told(&done), [&left[..], std::slice::from_ref(&discard)].concat());
    place.stockade(&["run", "--resume", &id, "--shell", "echo x > .envrc"]).code_is(0);
    let lines = told(&place.stockade(&["workspace", "apply", &id]));
    assert_eq!(lines[..2], left);
    assert!(lines[2].starts_with("stockade: held back: .envrc: "), "{lines:?}");
    let include = format!("stockade workspace apply {id} --include PATH");
    let advice = format!("stockade:   to let through:  {include}");
    assert_eq!(lines[3..], ["stockade: 1 change held back".to_owned(), advice, discard]);
}

#[test]
fn a_file_that_changed_underneath_is_a_conflict_and_nothing_is_applied() {
    let place = furnished(CliPlace::new());
    let id = overlaid(&place, CHANGES_SCRIPT);
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
    let place = furnished(CliPlace::of_an_ordinary_user());
    // The disk watcher cannot look into a closed directory, and would end the program for it.
    let flags = ["--without", "disk-limit"];
    let line = format!("{CHANGES_SCRIPT}; mkdir -p deep/er; chmod 0 deep");
    let id = overlaid_with(&place, &flags, &line);
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
    let place = furnished(CliPlace::new());
    let first = overlaid(&place, CHANGES_SCRIPT);
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
    let place = furnished(CliPlace::new());
    let one = overlaid(&place, CHANGES_SCRIPT);
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
fn json_tells_of_the_workspace() {
    let place = furnished(CliPlace::new());
    let told = json(&place, &["run", "--overlay", "--shell", CHANGES_SCRIPT]);
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
    let place = furnished(CliPlace::new());
    let line = format!("{CHANGES_SCRIPT}; echo ready; exec sleep 100");
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
    let place = furnished(CliPlace::new());
    let id = overlaid(&place, "seq 200000 > many");
    let mut command = place.command(&["workspace", "diff", "--patch", &id]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    wait(child).is(0, "", "");
}

#[test]
fn a_view_that_would_show_its_own_records_is_refused() {
    let place = furnished(CliPlace::new());
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
    let place = furnished(CliPlace::new());
    let done = place.stockade(&["explain", "--overlay", "--backend", "landlock"]);
    assert!(done.code == 125 && done.stdout.contains("overlay-workspace"), "{done:?}");
    place.stockade(&["explain", "--overlay"]).code_is(0);
    assert_eq!(ids(&place), Vec::<String>::new());
}

#[test]
fn root_works_on_a_view_of_another_users_directory_as_that_user() {
    let place = furnished(CliPlace::of_an_ordinary_user());
    let owner = |name: &str| {
        let found = fs::metadata(place.workspace().join(name)).unwrap();
        std::os::unix::fs::MetadataExt::uid(&found)
    };
    let theirs = owner("a");
    // Started as the user who runs the tests: root, where that is not the ordinary user.
    let by_root = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stockade"));
        command.args(args).current_dir(place.workspace()).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("STOCKADE_BACKEND", "native");
        command.env("STOCKADE_STATE_DIR", place.path("roots-state"));
        let done = finish(command);
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout.trim_end().to_owned()
    };
    by_root(&["run", "--overlay", "--shell", CHANGES_SCRIPT]);
    assert_untouched(&place);
    let id = by_root(&["workspace", "ls", "-q"]);
    let fork = by_root(&["workspace", "fork", &id]);
    by_root(&["run", "--resume", &fork, "--shell", "echo more > c"]);
    by_root(&["workspace", "apply", &fork]);
    assert_changed(&place);
    assert_eq!((owner("a"), owner("b"), owner("c")), (theirs, theirs, theirs));
}
