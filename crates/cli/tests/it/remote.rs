//! A real daemon as a backend of another engine: the kit through it onto native, and the command line with `--host`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use crate::common::api::ApiDaemon;
use crate::common::lasting::eventually;
use crate::common::{CliDone, CliPlace, finish, wait};

/// A daemon, and another place that uses it.
struct RemotePair {
    daemon: ApiDaemon,
    near: CliPlace,
    url: String,
}

impl RemotePair {
    fn start() -> Self {
        let daemon = ApiDaemon::start();
        let url = format!("unix://{}", daemon.socket.display());
        Self { daemon, near: CliPlace::new(), url }
    }

    fn run(&self, args: &[&str]) -> CliDone {
        self.near.stockade(&[&["run", "--no-workspace", "--host", &self.url], args].concat())
    }

    /// Fails unless nothing is left on either side.
    fn end(self) {
        let (place, done) = self.daemon.end();
        done.code_is(0);
        place.assert_nothing_is_left();
        self.near.assert_nothing_is_left();
    }
}

#[test]
fn the_kit_passes_through_a_daemon() {
    let pair = RemotePair::start();
    let mut command = pair.near.command(&["--json", "tck", "--backend", "remote"]);
    command.env("STOCKADE_HOST", &pair.url);
    let done = command.output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout);
    let reports: serde_json::Value = serde_json::from_str(&told).unwrap();
    for case in reports[0]["cases"].as_array().unwrap() {
        println!("{case}");
    }
    println!("{}", reports[0]["counts"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(reports[0]["counts"]["passed"].as_u64().unwrap() > 100, "{}", reports[0]["counts"]);
    let (place, done) = pair.daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_command_runs_on_the_daemon_as_it_would_here() {
    let pair = RemotePair::start();
    pair.run(&["--", "echo", "hi"]).is(0, "hi\n", "");
    pair.run(&["--shell", "echo out; echo err >&2; exit 3"]).is(3, "out\n", "err\n");
    pair.run(&["--", "no-such-program"]).code_is(127);
    pair.run(&["--timeout", "1s", "--", "sleep", "60"]).code_is(124);
    pair.run(&["--env", "A=b c", "--shell", "printf %s \"$A\"; pwd"]).is(0, "b c/workspace\n", "");
    let mut command = pair.near.command(&["run", "-i", "--no-workspace", "--", "cat"]);
    command.env("STOCKADE_HOST", &pair.url).env_remove("STOCKADE_BACKEND");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let sent = "all of it\n".repeat(100_000);
    let (mut stdin, text) = (child.stdin.take().unwrap(), sent.clone());
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let done = wait(child);
    writer.join().unwrap();
    done.code_is(0);
    assert!(done.stdout == sent, "{} bytes came back", done.stdout.len());
    pair.end();
}

#[test]
fn a_persistent_sandbox_lives_on_the_daemon() {
    let pair = RemotePair::start();
    let made = pair.near.stockade(&["create", "--no-workspace", "--host", &pair.url]);
    made.code_is(0);
    let id = made.stdout.trim();
    pair.near.stockade(&["exec", id, "--shell", "echo kept >file"]).code_is(0);
    pair.near.stockade(&["cp", &format!("{id}:file"), "."]).code_is(0);
    assert_eq!(fs::read_to_string(pair.near.workspace().join("file")).unwrap(), "kept\n");
    // More than one answer lists.
    let many = "mkdir many; cd many; for name in $(seq 1200); do : >$name; done";
    pair.near.stockade(&["exec", id, "--shell", many]).code_is(0);
    pair.near.stockade(&["cp", &format!("{id}:many"), "."]).code_is(0);
    assert_eq!(fs::read_dir(pair.near.workspace().join("many")).unwrap().count(), 1200);
    let listed = pair.daemon.ask("GET", "/v1/attached", b"").json();
    assert_eq!(listed["names"], serde_json::json!([id]));
    pair.near.stockade(&["kill", id]).code_is(0);
    let listed = pair.daemon.ask("GET", "/v1/attached", b"").json();
    assert_eq!(listed["names"], serde_json::json!([]));
    pair.end();
}

#[test]
fn what_a_daemon_cannot_be_given_is_refused_with_a_remedy() {
    let pair = RemotePair::start();
    let run = |args: &[&str]| pair.near.stockade(&[&["run"], args, &["--", "true"]].concat());
    let url = pair.url.as_str();
    run(&["--host", url]).is_refused(&["local-workspace", "--no-workspace"]);
    run(&["--host", url, "--no-workspace", "--mount", "/usr:/mnt"]).is_refused(&["extra-mounts"]);
    run(&["--host", url, "--no-workspace", "--net", "example.org"])
        .is_refused(&["egress-allowlist"]);
    run(&["--host", url, "--no-workspace", "--backend", "native"]).is_refused(&["remote"]);
    run(&["--host", "https://127.0.0.1:1", "--no-workspace"]).is_refused(&["cannot be reached"]);
    run(&["--host", "https://127.0.0.1:1/v1", "--no-workspace"]).is_refused(&["https://HOST"]);
    run(&["--host", "http://192.0.2.1:1", "--no-workspace"]).is_refused(&[
        "not encrypted",
        "https://HOST",
        "ssh -L",
    ]);
    run(&["--host", "unix:///nowhere/at.all", "--no-workspace"])
        .is_refused(&["cannot be reached", "stockade serve"]);
    let mut serve = pair.near.command(&["serve"]);
    serve.env("STOCKADE_HOST", url).env_remove("STOCKADE_BACKEND");
    finish(serve).is_refused(&["another daemon", "STOCKADE_HOST"]);
    pair.near
        .stockade(&["run", "--backend", "remote", "--no-workspace", "--", "true"])
        .is_refused(&["no daemon is configured", "STOCKADE_HOST"]);
    pair.end();
}

#[test]
fn the_holder_of_a_token_uses_a_daemon_by_tcp() {
    let place = CliPlace::new();
    let token = place.stockade(&["token", "new", "near", "--tenant", "team"]).stdout;
    let daemon = ApiDaemon::start_on_tcp(place);
    let (near, address) = (CliPlace::new(), daemon.tcp.unwrap());
    let file = near.path("token");
    fs::write(&file, token).unwrap();
    let dir = near.path("home/.config/stockade");
    fs::create_dir_all(&dir).unwrap();
    let table = format!("[remote]\nurl = \"http://{address}\"\ntokenFile = {file:?}\n");
    fs::write(dir.join("config.toml"), table).unwrap();
    let run =
        || near.stockade(&["run", "--backend", "remote", "--no-workspace", "--", "echo", "hi"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    run().is_refused(&["other users", "chmod 600"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    run().is(0, "hi\n", "");
    // A configuration of the daemon's own that differs is not passed over.
    daemon.place.stockade(&["token", "revoke", "near"]).code_is(0);
    run().is_refused(&["token"]);
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_sandbox_ends_with_the_engine_that_uses_it_and_with_its_daemon() {
    let pair = RemotePair::start();
    let sleep = ["run", "--no-workspace", "--host", &pair.url, "--shell", "echo up; sleep 1000"];
    let (mut child, line) = crate::common::start(pair.near.command(&sleep));
    assert_eq!(line, "up");
    let names = || pair.daemon.ask("GET", "/v1/attached", b"").json()["names"].clone();
    assert_eq!(names().as_array().unwrap().len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the daemon has destroyed it", || names() == serde_json::json!([]));
    // Without the URL no daemon can be asked whether anything is left.
    let listed = pair.near.stockade(&["ps"]);
    assert!(listed.stderr.contains("1 that dead processes had left stay until"), "{listed:?}");
    assert!(!listed.stderr.contains("cleared away"), "{listed:?}");
    let mut asking = pair.near.command(&["ps"]);
    asking.env("STOCKADE_HOST", &pair.url).env_remove("STOCKADE_BACKEND");
    let listed = finish(asking);
    assert!(listed.stderr.contains("cleared away 1"), "{listed:?}");
    let (child, line) = crate::common::start(pair.near.command(&sleep));
    assert_eq!(line, "up");
    let (place, done) = pair.daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
    let done = wait(child);
    done.code_is(125);
    assert!(done.stderr.contains("daemon"), "{done:?}");
}

#[test]
fn a_peer_that_is_no_daemon_is_named_as_that() {
    let near = CliPlace::new();
    let socket = near.path("peer.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The whole request: one that is not read would be reset with the connection.
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        lines.map(Result::unwrap).take_while(|line| !line.is_empty()).for_each(drop);
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{\"backends\": \"\\u001b[2J\"}";
        stream.write_all(text).unwrap();
    });
    let url = format!("unix://{}", socket.display());
    let done = finish(near.command(&["run", "--no-workspace", "--host", &url, "--", "true"]));
    peer.join().unwrap();
    done.is_refused(&["the daemon cannot be used"]);
    assert!(!done.stderr.contains('\u{1b}'), "{done:?}");
}
