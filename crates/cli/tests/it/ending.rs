//! Ends that come from outside: signals, closed pipes. Nothing is left in any case.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::changes::overlaid;
use crate::common::{CliPlace, command_lines, finish, signal, start, wait};
use rustix::process::Signal;

const LOST_OUTPUT: &str = "standard output cannot be written: No space left on device";

/// Runs a line that says `ready`, sends one signal, and answers how it ended.
fn ended_by(place: &CliPlace, sent: Signal, line: &str) -> common::CliDone {
    let (child, ready) = start(place.command(&["run", "--shell", line]));
    assert_eq!(ready, "ready");
    signal(&child, sent);
    let done = wait(child);
    place.assert_nothing_is_left();
    done
}

#[test]
fn the_first_signal_is_passed_on() {
    let place = CliPlace::new();
    ended_by(&place, Signal::INT, "echo ready; sleep 100").is(130, "", "");
    ended_by(&place, Signal::TERM, "echo ready; sleep 100").is(143, "", "");
    ended_by(&place, Signal::HUP, "echo ready; sleep 100").is(129, "", "");
    let trapping = "trap 'echo caught; exit 5' INT; echo ready; sleep 100 & wait";
    ended_by(&place, Signal::INT, trapping).is(5, "caught\n", "");
}

#[test]
fn a_program_that_ignores_the_signal_is_killed_after_two_seconds() {
    let place = CliPlace::new();
    let begin = Instant::now();
    let line = "trap '' INT TERM HUP; echo ready; while :; do sleep 100; done";
    ended_by(&place, Signal::INT, line).is(130, "", "");
    assert!(begin.elapsed() >= Duration::from_secs(2));
}

#[test]
fn a_second_signal_kills_at_once() {
    let place = CliPlace::new();
    let line = "trap 'echo again' INT; echo ready; while :; do sleep 100 & wait; done";
    let (mut child, _) = start(place.command(&["run", "--shell", line]));
    signal(&child, Signal::INT);
    // What the trap says proves that the first one has arrived.
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(&said, b"again\n");
    let begin = Instant::now();
    signal(&child, Signal::TERM);
    wait(child).is(143, "", "");
    assert!(begin.elapsed() < Duration::from_secs(2));
    place.assert_nothing_is_left();
}

#[test]
fn a_reader_who_has_seen_enough_ends_it_quietly() {
    let place = CliPlace::new();
    let (mut child, line) = start(place.command(&["run", "--max-output", "1g", "yes"]));
    assert_eq!(line, "y");
    drop(child.stdout.take());
    wait(child).is(141, "", "");
    place.assert_nothing_is_left();
}

#[test]
fn listings_end_quietly_too() {
    let place = CliPlace::new();
    let mut command = place.command(&["detect"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    wait(child).is(0, "", "");
}

#[test]
fn a_reader_who_does_not_read_does_not_stop_the_clock() {
    let place = CliPlace::new();
    let args = ["run", "--timeout", "500ms", "--max-output", "1g", "yes"];
    let (child, _) = start(place.command(&args));
    // The output is not read until the records say that the command was ended.
    let deadline = Instant::now() + Duration::from_secs(30);
    while !place.stockade(&["audit", "list"]).stdout.contains("timed out") {
        assert!(Instant::now() < deadline, "it was never ended");
    }
    let done = wait(child);
    assert_eq!(done.code, 124);
    assert!(done.stderr.contains("timed out"), "{}", done.stderr);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = CliPlace::new();
    run_into_full(&place, &["run", "echo", "x"]).is_refused(&[LOST_OUTPUT]);
    place.assert_nothing_is_left();
}

/// Runs a command whose standard output takes nothing.
fn run_into_full(place: &CliPlace, args: &[&str]) -> common::CliDone {
    let mut command = place.command(args);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.stdout(full).stderr(Stdio::piped());
    wait(command.spawn().unwrap())
}

#[test]
fn answers_that_cannot_be_written_are_errors_of_every_command() {
    let place = CliPlace::new();
    let workspace = overlaid(&place, "echo x > new");
    for args in [
        &["run", "--json", "--", "echo", "hi"][..],
        &["audit", "export", "--format", "csv"],
        &["audit", "export", "--format", "json"],
        &["audit", "list"],
        &["explain"],
        &["detect"],
        &["config", "show"],
        &["workspace", "diff", workspace.as_str()],
    ] {
        run_into_full(&place, args).is_refused(&[LOST_OUTPUT]);
    }
    place.assert_nothing_is_left();
}

#[test]
fn a_failure_keeps_its_exit_code_where_output_is_lost_too() {
    let place = CliPlace::new();
    let done = run_into_full(&place, &["run", "--json", "--shell", "exit 3"]);
    done.code_is(3);
    assert!(done.stderr.contains(LOST_OUTPUT), "{done:?}");
}

#[test]
fn a_command_whose_own_pipe_closes_dies_of_it_as_everywhere() {
    let place = CliPlace::new();
    finish(place.command(&["run", "--shell", "yes | head -n 1; echo done"])).is(0, "y\ndone\n", "");
}

/// The launcher of a run is a copy of the command, with the same command line.
fn nobody_has(marker: &str) -> bool {
    command_lines().iter().all(|line| !line.contains(marker))
}

#[test]
fn nothing_is_left_of_runs_that_were_killed_at_any_instant() {
    let place = CliPlace::new();
    let marker = place.path("").display().to_string();
    for round in 0..60 {
        let line = ["run", "--", "sh", "-c", "sleep 1000; exit", &marker];
        let mut child = place.command(&line).stdin(Stdio::null()).spawn().unwrap();
        // From the first instruction to well after the program runs.
        std::thread::sleep(Duration::from_micros(round * 400));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while !nobody_has(&marker) {
        assert!(Instant::now() < deadline, "a process is left: {:?}", command_lines());
        std::thread::sleep(Duration::from_millis(10));
    }
    // What is only on disk goes with the next command (C-31).
    assert_eq!(place.stockade(&["run", "true"]).code, 0);
    place.assert_nothing_is_left();
}
