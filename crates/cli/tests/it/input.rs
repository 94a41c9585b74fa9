//! Standard input without flags: a pipe or a file is the program's, a terminal on all three streams gives
//! it one of its own, and nothing else is read.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::common::lasting::Lasting;
use crate::common::screen::Screen;
use crate::common::{CliDone, CliPlace, finish, wait};

fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A line of shell with the command as its arguments.
fn through(place: &CliPlace, line: &str, args: &[&str]) -> Command {
    let stockade = place.command(args);
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh"]).arg(stockade.get_program()).args(stockade.get_args());
    command.current_dir(place.workspace());
    command.envs(stockade.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

fn fed(command: Command, input: &[u8]) -> CliDone {
    let mut child = spawn(command);
    child.stdin.take().unwrap().write_all(input).unwrap();
    wait(child)
}

#[test]
fn a_pipe_and_a_file_are_passed_on() {
    let place = CliPlace::new();
    for args in [&["run", "cat"][..], &["run", "-i", "cat"]] {
        fed(place.command(args), b"one\ntwo\n").is(0, "one\ntwo\n", "");
    }
    place.write("f", "12345");
    let mut command = place.command(&["run", "--", "wc", "-c"]);
    command.stdin(File::open(place.workspace().join("f")).unwrap());
    finish(command).is(0, "5\n", "");
    place.assert_nothing_is_left();
}

#[test]
fn more_than_a_pipe_holds_arrives_whole() {
    let place = CliPlace::new();
    let input = vec![b'x'; 3_000_000];
    fed(place.command(&["run", "--", "wc", "-c"]), &input).is(0, "3000000\n", "");
}

#[test]
fn the_json_object_has_what_the_program_made_of_its_input() {
    let place = CliPlace::new();
    let done = fed(place.command(&["--json", "run", "--", "wc", "-c"]), b"abc");
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["stdout"], "3\n");
}

#[test]
fn exec_passes_a_pipe_on_too() {
    let place = Lasting::new();
    let id = place.create(&[]);
    fed(place.command(&["exec", &id, "cat"]), b"one\n").is(0, "one\n", "");
}

/// The parent of a service may have left it a pipe that never closes.
#[test]
fn a_pipe_that_stays_open_keeps_no_program_that_does_not_read() {
    let place = CliPlace::new();
    let mut child = spawn(place.command(&["run", "--", "echo", "hi"]));
    let held = child.stdin.take();
    wait(child).is(0, "hi\n", "");
    drop(held);
    place.assert_nothing_is_left();
}

#[test]
fn a_writer_that_never_ends_ends_with_the_program() {
    let place = CliPlace::new();
    let done = finish(through(&place, "yes | \"$@\"", &["run", "--", "head", "-n", "1"]));
    assert_eq!((done.code, done.stdout.as_str()), (0, "y\n"), "{done:?}");
}

#[test]
fn input_that_is_closed_or_the_null_device_is_empty() {
    let place = CliPlace::new();
    place.stockade(&["run", "cat"]).is(0, "", "");
    finish(through(&place, "exec \"$@\" <&-", &["run", "cat"])).is(0, "", "");
}

/// A detached command reads no input: the pipe is left for its next reader.
#[test]
fn a_detached_command_leaves_the_input_alone() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let args = ["exec", "--detach", &id, "cat"];
    let command = through(&place, "\"$@\" >/dev/null && cat", &args);
    fed(command, b"still here").is(0, "still here", "");
}

#[test]
fn on_a_terminal_a_program_gets_one_without_a_flag() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let child = screen.start_in_front(&place, &["run", "sh"]);
    screen.keys("stty size; echo kind-$TERM\r");
    screen.until("30 90");
    screen.until("kind-xterm-test");
    screen.keys("exit 6\r");
    assert_eq!(wait(child).code, 6);
    assert!(!screen.is_raw());
    place.assert_nothing_is_left();
}

#[test]
fn exec_gives_a_terminal_without_a_flag() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let mut screen = Screen::new();
    let child = screen.start_in_front(&place, &["exec", &id, "--shell", "stty size"]);
    screen.until("30 90");
    assert_eq!(wait(child).code, 0);
}

/// In one stream with the output, errors would not arrive where they were sent.
#[test]
fn errors_that_are_redirected_stay_apart_and_take_the_terminal() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let line = "test -t 1 || echo no terminal; echo wrong >&2";
    let child = screen.start_line(&place, "\"$@\" 2>errors", &["run", "--shell", line]);
    screen.until("no terminal");
    assert_eq!(wait(child).code, 0);
    assert_eq!(std::fs::read_to_string(place.workspace().join("errors")).unwrap(), "wrong\n");
}

/// Keys are the pager's at the end of the pipe.
#[test]
fn a_terminal_is_not_read_where_the_output_is_a_pipe() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let child = screen.start_line(&place, "\"$@\" | cat", &["run", "--shell", "cat; echo over"]);
    screen.until("over");
    assert_eq!(wait(child).code, 0);
}

/// A read, or a change of the terminal's modes, would stop a job in the background for good.
#[test]
fn a_job_in_the_background_does_without_the_terminal() {
    let place = CliPlace::new();
    let mut screen = Screen::new();
    let job = "set -m; \"$@\" & wait; echo all-$((1+1))";
    let child = screen.start_line(&place, job, &["run", "--shell", "cat; test -t 1 || echo plain"]);
    screen.until("plain");
    screen.until("all-2");
    assert_eq!(wait(child).code, 0);
}

/// Only a terminal that was asked for is refused.
#[test]
fn a_backend_without_terminals_gets_the_keys_line_by_line() {
    let place = Lasting::new();
    let id = place.create(&["--backend", "landlock"]);
    let line = "test -t 0 || echo plain; read -r line; echo got-$line";
    for args in
        [&["run", "--backend", "landlock", "--shell", line][..], &["exec", &id, "--shell", line]]
    {
        let mut screen = Screen::new();
        let child = screen.start_in_front(&place, args);
        screen.until("plain");
        screen.keys("this\r");
        screen.until("got-this");
        assert_eq!(wait(child).code, 0);
    }
}
