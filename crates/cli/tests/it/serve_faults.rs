//! What clients do to `stockade serve` by mistake or on purpose: connections that say nothing, heads and bodies that do not
//! end, bodies that are too long, more connections than there are descriptors. Others are answered all the while.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::CliPlace;
use crate::common::api::ApiDaemon;
use crate::serve_tenants::issue;

/// Connections that say nothing.
const IDLE_CONNECTIONS: usize = 1000;
/// Open files of a daemon that has few.
const FEW_OPEN_FILES: u32 = 64;

/// Lets this process open many files.
fn allow_open_files(wanted: usize) {
    let (found, wanted) = (getrlimit(Resource::Nofile), Some(wanted as u64));
    if found.current.is_some() && found.current < wanted {
        setrlimit(Resource::Nofile, Rlimit { current: wanted, ..found }).unwrap();
    }
}

/// The same command with a limit of open files.
fn limit_open_files(command: &Command, most: u32) -> Command {
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args()).env_clear();
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    limited
}

/// Fails unless those who send requests are answered.
#[track_caller]
fn assert_answers(daemon: &ApiDaemon, token: &str) {
    assert_eq!(daemon.ask_as(token, "GET", "/v1/sandboxes", b"").status, 200);
    assert_eq!(daemon.ask("GET", "/v1/sandboxes", b"").status, 200);
}

#[test]
fn a_thousand_idle_connections_keep_nobody_out() {
    let place = CliPlace::new();
    let token = issue(&place, &["a"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    allow_open_files(IDLE_CONNECTIONS + 100);
    let by_tcp: Vec<_> = (0..IDLE_CONNECTIONS).map(|_| daemon.connect_tcp()).collect();
    assert_answers(&daemon, &token);
    drop(by_tcp);
    let on_socket: Vec<_> = (0..IDLE_CONNECTIONS).map(|_| daemon.connect()).collect();
    assert_answers(&daemon, &token);
    // The oldest was turned out to make room.
    let mut answer = String::new();
    let _ = (&on_socket[0]).read_to_string(&mut answer);
    assert_eq!(answer, "");
    let (_, done) = daemon.end();
    done.code_is(0);
}

#[test]
fn a_daemon_with_few_descriptors_answers_while_many_connect() {
    let place = CliPlace::new();
    let token = issue(&place, &["a"]);
    let serve = place.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    let limited = limit_open_files(&serve, FEW_OPEN_FILES);
    let daemon = ApiDaemon::start_command(place, limited);
    let by_tcp: Vec<_> = (0..200).map(|_| daemon.connect_tcp()).collect();
    let on_socket: Vec<_> = (0..200).map(|_| daemon.connect()).collect();
    assert_answers(&daemon, &token);
    drop((by_tcp, on_socket));
    assert_answers(&daemon, &token);
    let (_, done) = daemon.end();
    done.code_is(0);
}

#[test]
fn slow_heads_and_bodies_hold_up_no_other_client() {
    let place = CliPlace::new();
    let [slow, other] = ["slow", "other"].map(|name| issue(&place, &[name]));
    let daemon = ApiDaemon::start_on_tcp(place);
    let (host, key) = (daemon.host(), format!("Authorization: Bearer {slow}"));
    let heads: Vec<_> = (0..64)
        .map(|_| {
            let (mut by_tcp, mut on_socket) = (daemon.connect_tcp(), daemon.connect());
            by_tcp.write_all(b"GET /v1/health HTTP/1.1\r\nHo").unwrap();
            on_socket.write_all(b"GET /v1/health HTTP/1.1\r\nHo").unwrap();
            (by_tcp, on_socket)
        })
        .collect();
    let head = format!("POST /v1/sandboxes HTTP/1.0\r\n{host}\r\n{key}\r\nContent-Length: 2");
    let bodies: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = daemon.connect_tcp();
            write!(stream, "{head}\r\n\r\n[").unwrap();
            stream
        })
        .collect();
    assert_answers(&daemon, &other);
    // A body that comes after all is read, unless this machine is slower than its bound.
    for mut stream in bodies {
        let _ = stream.write_all(b"]");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.contains(" 400 ") || answer.contains(" 408 "), "{answer}");
    }
    drop(heads);
    assert_answers(&daemon, &slow);
}

#[test]
fn bodies_that_are_too_long_are_refused_without_being_read() {
    let daemon = ApiDaemon::start();
    let files = format!("PUT /v1/sandboxes/{}/files?path=x", daemon.create("{}"));
    let send = |head: &str, pieces: usize| {
        let mut stream = daemon.connect();
        write!(stream, "{head}\r\n\r\n").unwrap();
        let piece = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
        // The server answers before everything is sent.
        let _ = (0..pieces).try_for_each(|_| stream.write_all(piece.as_bytes()));
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("too-large"), "{answer}");
    };
    for (request, length) in [
        ("POST /v1/sandboxes", 2u64 << 20),
        ("POST /v1/sandboxes", u64::MAX / 2),
        (&files, 5 << 30),
    ] {
        send(&format!("{request} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}"), 0);
    }
    // One that does not say how long it is is read as far as it may be long.
    send("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked", 64);
    assert_eq!(daemon.ask("GET", "/v1/sandboxes", b"").status, 200);
}
