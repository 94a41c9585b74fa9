//! Package caches of projects: what they keep, whom they are shown to, and how large they grow.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::lasting::eventually;
use crate::common::{CliDone, CliPlace, finish};

/// Adds a line to a file in the cache, and prints all of it.
const REMEMBER: &str = "echo kept >> $PIP_CACHE_DIR-notes; cat $PIP_CACHE_DIR-notes";

/// As root and as an ordinary user.
fn both(test: impl Fn(&CliPlace)) {
    test(&CliPlace::new());
    test(&CliPlace::of_an_ordinary_user());
}

fn projects(place: &CliPlace) -> PathBuf {
    place.path("home/.cache/stockade/projects")
}

fn entries(place: &CliPlace) -> Vec<PathBuf> {
    let Ok(listed) = fs::read_dir(projects(place)) else { return Vec::new() };
    let mut all: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

/// The commands of an ordinary user cannot make their home themselves.
fn make_home(place: &CliPlace) {
    let home = place.path("home");
    fs::create_dir_all(&home).unwrap();
    let owner = place.workspace().metadata().unwrap().uid();
    std::os::unix::fs::chown(&home, Some(owner), Some(owner)).unwrap();
}

fn run(place: &CliPlace, cache: &str, line: &str) -> CliDone {
    place.stockade(&["run", "--cache", cache, "--shell", line])
}

#[test]
fn a_cache_is_kept_between_runs_and_private() {
    both(|place| {
        make_home(place);
        run(place, "auto", REMEMBER).is(0, "kept\n", "");
        run(place, "auto", REMEMBER).is(0, "kept\nkept\n", "");
        run(place, "other", REMEMBER).is(0, "kept\n", "");
        place.stockade(&["run", "--shell", "echo ${PIP_CACHE_DIR-none}"]).is(0, "none\n", "");
        assert_eq!(entries(place).len(), 2);
        for entry in entries(place) {
            assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o700, "{}", entry.display());
        }
        place.assert_nothing_is_left();
    });
}

#[test]
fn another_project_or_tenant_sees_another_cache_and_none_sees_what_is_around_it() {
    both(|place| {
        make_home(place);
        run(place, "auto", REMEMBER).code_is(0);
        let elsewhere = place.path("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let mut command = place.command(&["run", "--cache", "auto", "--shell", REMEMBER]);
        command.current_dir(&elsewhere);
        finish(command).is(0, "kept\n", "");
        let tenant = ["run", "--cache", "auto", "--tenant", "b", "--shell", REMEMBER];
        place.stockade(&tenant).is(0, "kept\n", "");
        let around = "cd ${XDG_CACHE_HOME%/*}/..; ls -A . | wc -l; ls -A .. | wc -l";
        run(place, "auto", around).is(0, "1\n1\n", "");
        let shown = entries(place)[0].join("files").display().to_string();
        place
            .stockade(&["run", "--mount", &format!("{shown}:/x"), "--", "true"])
            .is_refused(&["the cache"]);
    });
}

#[test]
fn a_cache_that_has_grown_too_large_is_cleared_with_a_line_that_says_so() {
    both(|place| {
        make_home(place);
        let limited = |line: &str| {
            let mut command = place.command(&["run", "--cache", "auto", "--shell", line]);
            command.env("STOCKADE_CACHE_LIMIT", "1m");
            finish(command)
        };
        limited("mkdir $XDG_CACHE_HOME; head -c 3000000 /dev/zero > $XDG_CACHE_HOME/large")
            .code_is(0);
        let done = limited("ls ${XDG_CACHE_HOME%/*} | wc -l");
        assert_eq!((done.code, done.stdout.trim()), (0, "0"), "{done:?}");
        assert!(done.stderr.contains("holds more than 1m and is cleared"), "{done:?}");
        // What a guest closes to itself, or nests without end, does not stay either.
        limited(
            "mkdir -p $XDG_CACHE_HOME/closed; chmod 0 $XDG_CACHE_HOME/closed ${XDG_CACHE_HOME%/*}",
        )
        .code_is(0);
        limited("touch $XDG_CACHE_HOME-new").code_is(0);
        let deep = "cd ${XDG_CACHE_HOME%/*} && for i in $(seq 80); do mkdir d && cd d; done";
        limited(deep).code_is(0);
        let done = limited("ls ${XDG_CACHE_HOME%/*} | wc -l");
        assert_eq!((done.code, done.stdout.trim()), (0, "0"), "{done:?}");
        assert!(done.stderr.contains("more than can be counted"), "{done:?}");
    });
}

#[test]
fn a_persistent_sandbox_holds_its_cache_until_it_ends() {
    both(|place| {
        make_home(place);
        let id = place.stockade(&["create", "--cache", "auto"]).stdout.trim().to_owned();
        place.stockade(&["exec", &id, "--", "sh", "-c", REMEMBER]).is(0, "kept\n", "");
        let cleaned = |place: &CliPlace| -> Value {
            let done = place.stockade(&["clean", "--json"]);
            let told: Value = serde_json::from_str(&done.stdout).unwrap();
            let kinds = told["kinds"].as_array().unwrap().clone();
            kinds.into_iter().find(|row| row["kind"] == "package caches of projects").unwrap()
        };
        let row = cleaned(place);
        assert_eq!((&row["inUse"], &row["freedEntries"]), (&1.into(), &0.into()), "{row}");
        run(place, "auto", REMEMBER).is(0, "kept\nkept\n", "");
        place.stockade(&["kill", &id]).code_is(0);
        // The process that held the sandbox gives the cache back as the last thing that it does.
        eventually("the cache is freed", || cleaned(place)["freedEntries"] == 1);
        assert_eq!(entries(place), Vec::<PathBuf>::new());
        run(place, "auto", REMEMBER).is(0, "kept\n", "");
    });
}

#[test]
fn explain_names_the_cache_and_makes_none() {
    let place = CliPlace::of_an_ordinary_user();
    make_home(&place);
    let done = place.stockade(&["explain", "--json", "--cache", "ci"]);
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(told["cache"]["name"], "ci", "{told}");
    let path = told["cache"]["path"].as_str().unwrap();
    assert!(Path::new(path).starts_with(projects(&place)), "{told}");
    assert!(!projects(&place).exists());
    let text = place.stockade(&["explain", "--cache", "ci"]).stdout;
    assert!(text.contains("CACHE  ci: ") && text.contains("at most 5g"), "{text}");
}

#[test]
fn what_cannot_have_a_cache_is_refused_by_name_and_auto_goes_without() {
    let place = CliPlace::of_an_ordinary_user();
    make_home(&place);
    place.stockade(&["run", "--cache", "A/b", "--", "true"]).is_refused(&["is not a cache"]);
    let nowhere = ["run", "--no-workspace", "--cache"];
    place.stockade(&[&nowhere[..], &["ci", "--", "true"]].concat()).is_refused(&["--workspace"]);
    place.stockade(&[&nowhere[..], &["auto", "--", "true"]].concat()).code_is(0);
    let mock = ["run", "--backend", "mock", "--cache"];
    let refused = place.stockade(&[&mock[..], &["ci", "--", "true"]].concat());
    assert!(refused.code == 125 && refused.stderr.contains("refused: host-trees: "), "{refused:?}");
    let local = ["mcp", "--local", "--cache", "auto"];
    place.stockade(&local).is_refused(&["--cache"]);
}

#[test]
fn the_landlock_backend_shows_it_too() {
    both(|place| {
        make_home(place);
        let line = ["run", "--backend", "landlock", "--cache", "auto", "--shell", REMEMBER];
        place.stockade(&line).is(0, "kept\n", "");
        run(place, "auto", REMEMBER).is(0, "kept\nkept\n", "");
    });
}
