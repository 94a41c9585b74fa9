//! The kit by the command on a backend that is a program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::common::{CliDone, CliPlace};

/// The program of the examples, changed like this.
fn program(place: &CliPlace, change: (&str, &str)) -> PathBuf {
    const EXAMPLE: &str = include_str!("../../../stockade/examples/exec_backend.sh");
    assert!(EXAMPLE.contains(change.0), "{}", change.0);
    let path = place.path("backend");
    fs::write(&path, EXAMPLE.replacen(change.0, change.1, 1)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn judge(place: &CliPlace, change: (&str, &str), only: &str) -> CliDone {
    let program = program(place, change);
    let kept = place.path("kept");
    fs::create_dir_all(&kept).unwrap();
    let mut command = place.command(&["tck", "--exec", program.to_str().unwrap(), "--only", only]);
    command.env("TMPDIR", kept);
    crate::common::finish(command)
}

#[test]
fn a_program_that_builds_walls_passes_a_part_of_the_kit() {
    let place = CliPlace::new();
    let done = judge(&place, ("set -eu", "set -eu"), "C-10");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("exec"), "{done:?}");
}

#[test]
fn a_program_that_is_broken_fails_it() {
    let place = CliPlace::new();
    // A sandbox that stays in the list.
    let done = judge(&place, ("rm -f \"$kept/$2\"", ":"), "C-30");
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stdout.contains("after `destroy`"), "{done:?}");
}

#[test]
fn a_program_that_does_not_speak_the_protocol_is_named() {
    let place = CliPlace::new();
    let done = judge(&place, ("capabilities)", "capabilities) exit 3;;\nother)"), "C-10");
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stdout.contains("capabilities"), "{done:?}");
}
