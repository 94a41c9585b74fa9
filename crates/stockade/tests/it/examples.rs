//! Every example is run as a program, with a state directory of its own and nothing configured, and says what it should.
//! Cargo builds examples with the tests.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// An example, with directories in which nothing is configured.
fn example(name: &str, home: &TempDir) -> Command {
    let mut command = Command::new(examples_dir().join(name));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", home.path()).env("STOCKADE_STATE_DIR", home.path().join("state"));
    // Which boundary is the strongest depends on the host; what the examples show does not.
    command.env("STOCKADE_BACKEND", "native");
    command
}

/// Where cargo puts examples: beside the directory of this program.
fn examples_dir() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let target = own.parent().and_then(|deps| deps.parent()).unwrap();
    let examples = target.join("examples");
    assert!(examples.is_dir(), "no {}: build with `cargo test --no-run`", examples.display());
    examples
}

fn says(name: &str, expected: &str) {
    let home = tempfile::tempdir().unwrap();
    let output = example(name, &home).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}{errors}");
    assert_eq!(said, expected, "{errors}");
}

#[test]
fn quickstart() {
    says("quickstart", "hi from /workspace\n1\n2\n3\nExited(3), saying \"no\\n\"\n");
}

#[test]
fn stream_output() {
    let expected = "out: got one\nout: got two\nout: got three\nerr: no more\nend: Exited(4)\n";
    says("stream_output", expected);
}

#[test]
fn fork_ten_ways() {
    // Each way takes every tenth number from its own on.
    let sums: Vec<_> = (1..=10).map(|way| (10 * way + 450).to_string()).collect();
    says("fork_ten_ways", &format!("{}\nin the first: numbers\n", sums.join(" ")));
}

#[test]
fn own_backend() {
    let expected = "few: shared-kernel\none is there\n\
                    quota-exceeded: no slot is left of 1\nthe kit: passed\n";
    says("own_backend", expected);
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn embed_in_a_server() {
    let home = tempfile::tempdir().unwrap();
    let mut command = example("embed_in_a_server", &home);
    let mut server = Server(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let answer = post(address, "echo hi; exit 3");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hi\n[exited with 3]\n"));
    assert!(post(address, "kill -9 $$").ends_with("[ended by SIGKILL]\n"));
}

fn post(address: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "POST / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n").unwrap();
    write!(stream, "content-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn every_example_has_a_test() {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let names: BTreeSet<_> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let tested =
        ["quickstart", "stream_output", "fork_ten_ways", "own_backend", "embed_in_a_server"];
    assert_eq!(names, tested.map(str::to_owned).into());
}
