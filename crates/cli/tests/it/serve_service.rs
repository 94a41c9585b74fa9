//! `stockade serve` below a service manager: it says when clients can come, takes a changed configuration over, and
//! says whether it takes work.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::common::CliPlace;
use crate::common::api::ApiDaemon;

/// The next state that the service told.
fn receive_state(socket: &UnixDatagram) -> String {
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut state = [0; 256];
    let length = socket.recv(&mut state).unwrap();
    String::from_utf8(state[..length].to_vec()).unwrap()
}

fn write_config(place: &CliPlace, text: &str) {
    let dir = place.path("home/.config/stockade");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), text).unwrap();
}

/// A daemon that tells its states, to this socket.
fn start_service(place: CliPlace, address: &str) -> ApiDaemon {
    let mut command = place.command(&["serve", "--json"]);
    command.env("NOTIFY_SOCKET", address);
    ApiDaemon::start_command(place, command)
}

#[test]
fn the_service_manager_is_told_when_it_serves_reloads_and_ends() {
    let place = CliPlace::new();
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    write_config(&place, "[quotas.default]\nsandboxes = 1\n");
    let daemon = start_service(place, path.to_str().unwrap());
    assert_eq!(receive_state(&manager), "READY=1");
    let first = daemon.create(r#"{"labels": {"is": "first"}}"#);
    daemon.ask("POST", "/v1/sandboxes", b"{}").is_error(429, "quota-exceeded");
    write_config(&daemon.place, "[quotas.default]\nsandboxes = 2\n[limits]\nmemory = \"64m\"\n");
    daemon.signal(Signal::HUP);
    let reloading = receive_state(&manager);
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(receive_state(&manager), "READY=1");
    // The new quota, and what a spec is over.
    let made = daemon.ask("POST", "/v1/sandboxes", b"{}").json();
    let limits = made["limits"].as_array().unwrap();
    let memory = limits.iter().find(|limit| limit["limit"] == "memory");
    assert!(memory.is_some_and(|memory| memory.to_string().contains("64m")), "{made}");
    daemon.ask("POST", "/v1/sandboxes", b"{}").is_error(429, "quota-exceeded");
    // One that cannot be read changes nothing.
    write_config(&daemon.place, "[quotas.default]\nsandboxs = 3\n");
    daemon.signal(Signal::HUP);
    assert!(receive_state(&manager).starts_with("RELOADING=1\n"));
    assert_eq!(receive_state(&manager), "READY=1");
    daemon.ask("POST", "/v1/sandboxes", b"{}").is_error(429, "quota-exceeded");
    assert_eq!(
        daemon.ask("GET", &format!("/v1/sandboxes/{first}"), b"").json()["state"],
        "running"
    );
    daemon.ask_to_end();
    assert_eq!(receive_state(&manager), "STOPPING=1");
    let (place, done) = daemon.wait_for_end();
    done.code_is(0);
    assert!(done.stderr.contains("sandboxs"), "{done:?}");
    write_config(&place, "");
    place.assert_nothing_is_left();
}

#[test]
fn an_abstract_socket_of_the_service_manager_is_told_too() {
    let name = format!("stockade-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    let daemon = start_service(CliPlace::new(), &format!("@{name}"));
    assert_eq!(receive_state(&manager), "READY=1");
    assert_eq!(daemon.ask("GET", "/v1/ready", b"").json(), json!({ "status": "ready" }));
    daemon.end().1.code_is(0);
}

#[test]
fn a_reload_without_a_service_manager_ends_nothing() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    for _ in 0..3 {
        daemon.signal(Signal::HUP);
    }
    let found = daemon.ask("GET", &format!("/v1/sandboxes/{sandbox}"), b"").json();
    assert_eq!(found["state"], "running");
    daemon.end().1.code_is(0);
}
