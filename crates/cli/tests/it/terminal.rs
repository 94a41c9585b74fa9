//! `-t`: a terminal inside, the caller's own raw for as long and as before afterwards.

use crate::common::screen::Screen;
use crate::common::{CliPlace, signal, wait};
use rustix::process::Signal;

#[test]
fn a_shell_on_a_terminal_gets_keys_size_and_kind() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let child = screen.start(&place, &["run", "-t", "sh"]);
    screen.keys("stty size; echo kind-$TERM\r");
    screen.until("30 90");
    screen.until("kind-xterm-test");
    assert!(screen.is_raw());
    // What is computed cannot be the echo of what was typed.
    // In a program of its own: between two commands a shell may miss the interrupt itself.
    screen.keys("sh -c 'echo go-$((1+1)); exec sleep 100'\r");
    screen.until("go-2");
    screen.keys("\u{3}");
    screen.until("$ ");
    screen.keys("echo back-$((1+1))\r");
    screen.until("back-2");
    screen.keys("exit 6\r");
    assert_eq!(wait(child).code, 6);
    assert!(!screen.is_raw());
    place.assert_nothing_is_left();
}

#[test]
fn a_change_of_size_passes_through() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let line = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
    let child = screen.start(&place, &["run", "-t", "--shell", line]);
    screen.until("ready");
    screen.resize(40, 120);
    // The terminal is not this process's controlling terminal, so the kernel sends no SIGWINCH.
    signal(&child, Signal::WINCH);
    screen.until("40 120");
    assert_eq!(wait(child).code, 0);
}

#[test]
fn the_terminal_is_restored_when_a_signal_ends_it() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let child =
        screen.start(&place, &["run", "-t", "--shell", "trap '' TERM; echo ready; sleep 100"]);
    screen.until("ready");
    assert!(screen.is_raw());
    signal(&child, Signal::TERM);
    signal(&child, Signal::INT);
    assert!([130, 143].contains(&wait(child).code));
    assert!(!screen.is_raw());
    place.assert_nothing_is_left();
}

#[test]
fn a_terminal_that_goes_away_takes_what_runs_on_it_along() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let line = "trap '' HUP; echo ready; sleep 1000";
    let child = screen.start(&place, &["run", "-t", "--shell", line]);
    screen.until("ready");
    // The kernel sends no SIGHUP: it is not the controlling terminal of any session.
    drop(screen);
    assert_eq!(wait(child).code, 129);
    place.assert_nothing_is_left();
}

#[test]
fn colours_are_shown_on_a_terminal_unless_they_are_not_wanted() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let child = screen.start(&place, &["detect", "--backend", "native"]);
    screen.until("\x1b[32mavailable");
    screen.until("full-snapshot");
    assert_eq!(wait(child).code, 0);
    let mut screen = Screen::new();
    let mut command = place.command(&["detect", "--backend", "native"]);
    command.env("NO_COLOR", "1");
    let child = screen.start_with(command);
    screen.until("native: available");
    screen.until("full-snapshot");
    assert_eq!(wait(child).code, 0);
}
