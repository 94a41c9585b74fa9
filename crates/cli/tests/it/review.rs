//! `--review`: what was changed is shown, and applied only by a clear yes.

use crate::common::screen::Screen;
use crate::common::{CliPlace, wait};

fn furnished() -> CliPlace {
    let place = CliPlace::new();
    place.write("a", "one\n");
    place
}

fn text(place: &CliPlace, name: &str) -> Option<String> {
    std::fs::read_to_string(place.workspace().join(name)).ok()
}

fn kept(place: &CliPlace) -> usize {
    place.stockade(&["workspace", "ls", "-q"]).stdout.lines().count()
}

#[test]
fn changes_are_applied_by_a_yes() {
    let place = furnished();
    let mut screen = Screen::new();
    let child = screen.start(&place, &["run", "--review", "--shell", "echo two >> a; exit 3"]);
    screen.until("+two");
    screen.until("apply these changes? [y/N] ");
    assert_eq!(text(&place, "a").as_deref(), Some("one\n"));
    screen.keys("y\r");
    screen.until("applied 1 change to ");
    assert_eq!(wait(child).code, 3);
    assert_eq!(text(&place, "a").as_deref(), Some("one\ntwo\n"));
    assert_eq!(kept(&place), 0);
}

#[test]
fn without_a_clear_yes_they_are_kept() {
    for keys in ["\r", "n\r", "maybe\r", "\u{4}", "\u{3}"] {
        let place = furnished();
        let mut screen = Screen::new();
        let child = screen.start_in_front(&place, &["run", "--review", "--shell", "echo two >> a"]);
        screen.until("[y/N] ");
        screen.keys(keys);
        screen.until("1 change is kept apart in workspace ");
        screen.until("to discard:");
        assert_eq!(wait(child).code, 0, "{keys:?}");
        assert_eq!(text(&place, "a").as_deref(), Some("one\n"), "{keys:?}");
        assert_eq!(kept(&place), 1, "{keys:?}");
    }
}

#[test]
fn what_is_held_back_needs_a_word_of_its_own() {
    let place = furnished();
    let args = ["run", "--review", "--shell", "echo two >> a; echo x > .envrc"];
    let mut screen = Screen::new();
    let child = screen.start(&place, &args);
    screen.until("1 held back unless you say `held` [y/N/held] ");
    screen.keys("y\r");
    screen.until("held back: .envrc: ");
    assert_eq!(wait(child).code, 0);
    assert!(text(&place, "a").unwrap().contains("two") && text(&place, ".envrc").is_none());
    let child = screen.start(&place, &args);
    screen.until("[y/N/held] ");
    screen.keys("held\r");
    screen.until("applied 2 changes to ");
    assert_eq!(wait(child).code, 0);
    assert_eq!(text(&place, ".envrc").as_deref(), Some("x\n"));
}

#[test]
fn the_answer_after_a_session_on_the_terminal_is_not_taken_for_input() {
    let place = furnished();
    let mut screen = Screen::new();
    let child = screen.start(&place, &["run", "-t", "--review", "sh"]);
    screen.keys("echo two >> a; echo ready-$((1+1))\r");
    screen.until("ready-2");
    screen.keys("exit\r");
    screen.until("[y/N] ");
    assert!(!screen.is_raw());
    screen.keys("y\r");
    screen.until("applied 1 change to ");
    assert_eq!(wait(child).code, 0);
    assert_eq!(text(&place, "a").as_deref(), Some("one\ntwo\n"));
}

#[test]
fn a_terminal_does_not_obey_what_a_guest_wrote() {
    let place = furnished();
    let mut screen = Screen::new();
    let line = r"printf 'x\033]0;evil\007\033[2Jy\n' > a";
    let child = screen.start(&place, &["run", "--review", "--shell", line]);
    let shown = screen.until("[y/N] ");
    assert!(!shown.contains("\x1b]0;") && !shown.contains("\x1b[2J"), "{shown:?}");
    screen.keys("n\r");
    assert_eq!(wait(child).code, 0);
}

#[test]
fn what_was_typed_while_the_command_ran_is_no_answer() {
    let place = furnished();
    let mut screen = Screen::new();
    std::fs::create_dir(place.path("signs")).unwrap();
    let mount = format!("{}:/signs:ro", place.path("signs").display());
    let line = "echo two >> a; echo begun; until [ -e /signs/go ]; do sleep 0.01; done";
    let args = ["run", "--review", "--mount", &mount, "--shell", line];
    let child = screen.start_in_front(&place, &args);
    screen.until("begun");
    screen.keys("y\r");
    // The terminal has it when it shows it.
    screen.until("y\r\n");
    std::fs::write(place.path("signs/go"), "").unwrap();
    screen.until("[y/N] ");
    screen.keys("n\r");
    screen.until("kept apart");
    assert_eq!(wait(child).code, 0);
    assert_eq!(text(&place, "a").as_deref(), Some("one\n"));
}

#[test]
fn where_nobody_can_be_asked_nothing_is_run() {
    let place = furnished();
    let refused = ["--review", "no terminal", "--overlay", "stockade workspace apply"];
    place.stockade(&["run", "--review", "--shell", "echo two >> a"]).is_refused(&refused);
    let done = place.stockade(&["run", "--review", "--detach", "true"]);
    done.is_refused(&["--review", "--detach"]);
    assert_eq!(text(&place, "a").as_deref(), Some("one\n"));
    place.stockade(&["audit", "list"]).is(0, "", "stockade: nothing was run yet\n");
}
