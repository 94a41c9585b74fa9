//! `stockade shell`: a terminal in a sandbox that lives on, or in a fresh one.

use crate::common::lasting::Lasting;
use crate::common::screen::Screen;
use crate::common::wait;

/// Types into a shell, reads what it computes, and leaves.
fn talk(place: &Lasting, args: &[&str]) {
    let mut screen = Screen::new();
    let child = screen.start(place, args);
    screen.keys("stty size; echo kind-$TERM\r");
    screen.until("30 90");
    screen.until("kind-xterm-test");
    // What is computed cannot be the echo of what was typed.
    let trap = r#"trap "echo got-$((1+2)); exit" INT"#;
    screen.keys(&format!("sh -c '{trap}; echo go-$((1+1)); while :; do sleep 0.05; done'\r"));
    screen.until("go-2");
    screen.keys("\u{3}");
    screen.until("got-3");
    screen.until("$ ");
    screen.keys("exit 6\r");
    assert_eq!(wait(child).code, 6);
    assert!(!screen.is_raw());
}

#[test]
fn a_shell_in_a_lasting_sandbox_leaves_it_alive() {
    let place = Lasting::new();
    let id = place.create(&[]);
    talk(&place, &["shell", &id]);
    place.shell(&id, "echo alive").is(0, "alive\n", "");
}

#[test]
fn a_shell_without_an_id_has_a_sandbox_of_its_own() {
    let place = Lasting::new();
    talk(&place, &["shell"]);
    place.assert_nothing_is_left();
}

#[test]
fn a_shell_without_a_terminal_is_refused_with_the_command_that_needs_none() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let instead = format!("`stockade exec -i {id} -- sh`");
    place.stockade(&["shell", &id]).is_refused(&["shell: there is no terminal", &instead]);
    let instead = "`stockade run -- sh`";
    place.stockade(&["shell"]).is_refused(&["shell: there is no terminal", instead]);
    place.stockade(&["exec", &id, "-t", "sh"]).is_refused(&["exec: -t needs a terminal"]);
}
