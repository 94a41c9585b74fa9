//! A place with a few files, and what a command changes in them.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part; a test fails where a value is missing"
)]

use std::fs;

use serde_json::Value;

use super::CliPlace;

pub const CHANGES_SCRIPT: &str = "echo two >> a; rm gone; echo new > b";

/// A place with a few files.
pub fn furnished(place: CliPlace) -> CliPlace {
    place.write("a", "one\n");
    place.write("gone", "x\n");
    place.give_files();
    place
}

pub fn text(place: &CliPlace, name: &str) -> Option<String> {
    fs::read_to_string(place.workspace().join(name)).ok()
}

pub fn json(place: &CliPlace, args: &[&str]) -> Value {
    let done = place.stockade(&[&["--json"], args].concat());
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// The ids of all that are kept.
pub fn ids(place: &CliPlace) -> Vec<String> {
    let done = place.stockade(&["workspace", "ls", "--quiet"]);
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(str::to_owned).collect()
}

/// Runs a line of shell on a view; answers the id of the workspace that is kept.
#[track_caller]
pub fn overlaid(place: &CliPlace, line: &str) -> String {
    overlaid_with(place, &[], line)
}

/// The same with further flags.
#[track_caller]
pub fn overlaid_with(place: &CliPlace, flags: &[&str], line: &str) -> String {
    let done = place.stockade(&[&["run", "--overlay"], flags, &["--shell", line]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let ids = ids(place);
    assert_eq!(ids.len(), 1, "{done:?}");
    assert!(done.stderr.contains(&ids[0]), "{done:?}");
    ids[0].clone()
}

pub fn assert_untouched(place: &CliPlace) {
    assert_eq!(text(place, "a").as_deref(), Some("one\n"));
    assert_eq!(text(place, "gone").as_deref(), Some("x\n"));
    assert_eq!(text(place, "b"), None);
}

pub fn assert_changed(place: &CliPlace) {
    assert_eq!(text(place, "a").as_deref(), Some("one\ntwo\n"));
    assert_eq!((text(place, "gone"), text(place, "b").as_deref()), (None, Some("new\n")));
}
