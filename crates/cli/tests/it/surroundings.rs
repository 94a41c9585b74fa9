//! Where people really run it: from cron, in a hook of git, inside another sandbox. Something runs, at the
//! level that it can, or the remedy is named.

use std::process::{Command, Stdio};

use crate::common::{CliPlace, finish};

const STOCKADE_PROGRAM: &str = env!("CARGO_BIN_EXE_stockade");

/// The flag that shows the program inside, where it is outside.
fn shown() -> String {
    let dir = STOCKADE_PROGRAM.rsplit_once('/').unwrap().0;
    format!("{dir}:{dir}")
}

#[test]
fn inside_another_sandbox_the_remedy_is_to_stay_outside() {
    let place = CliPlace::new();
    let inner = [STOCKADE_PROGRAM, "detect", "landlock"];
    let done = place.stockade(&[&["run", "--mount", &shown(), "--"], &inner[..]].concat());
    assert!(done.stdout.contains("beside that sandbox, not in it"), "{done:?}");
}

#[test]
fn without_a_home_as_cron_has_it_a_command_runs() {
    let place = CliPlace::new();
    place.write("note", "kept");
    let mut command = Command::new(STOCKADE_PROGRAM);
    command.env_clear().current_dir(place.workspace()).stdin(Stdio::null());
    // What cron has, and a state directory of this test's own.
    command.env("PATH", "/usr/bin:/bin").env("STOCKADE_STATE_DIR", place.state());
    command.args(["run", "--backend", "native", "--", "cat", "note"]);
    finish(command).is(0, "kept", "");
}

#[test]
fn in_a_hook_the_caller_is_git() {
    let place = CliPlace::new();
    let mut command =
        place.command(&["run", "--", "sh", "-c", "echo ${GIT_DIR-unset}; touch made"]);
    // What git sets for a hook. None of it is for the program inside.
    command.env("GIT_DIR", ".git").env("GIT_INDEX_FILE", ".git/index").env("GIT_PREFIX", "");
    finish(command).is(0, "unset\n", "");
    assert!(place.workspace().join("made").exists());
}
