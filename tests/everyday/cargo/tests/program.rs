use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn the_program_counts_its_input() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_words"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(b"one two three").unwrap();
    assert_eq!(program.wait_with_output().unwrap().stdout, b"3\n");
}
