//! Sockets that have a path: those of the host are out of reach in every view, and those of the sandbox
//! work (C-25). As root and as an ordinary user, on the real kernel.
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use crate::common;
use crate::common::{Owner, directory, for_each_owner, give, launch, local};
use serde_json::{Value, json};
use stockade_launcher::{LaunchPlan, Launcher, PlanMount, PlanNetwork};

/// A program of the host that listens in a directory, open to every user.
struct SocketHost {
    stream: UnixListener,
    datagrams: UnixDatagram,
}

impl SocketHost {
    fn listens_in(owner: Owner, directory: &Path) -> SocketHost {
        let (stream, datagrams) = (directory.join("stream"), directory.join("datagrams"));
        let host = SocketHost {
            stream: UnixListener::bind(&stream).unwrap(),
            datagrams: UnixDatagram::bind(&datagrams).unwrap(),
        };
        for socket in [stream, datagrams] {
            std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
            give(owner, &socket);
        }
        host
    }

    /// Whether anybody has come.
    fn was_reached(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        self.datagrams.set_nonblocking(true).unwrap();
        self.stream.accept().is_ok() || self.datagrams.recv(&mut [0; 8]).is_ok()
    }
}

fn is_refused(answer: &Value) -> bool {
    answer.as_i64().is_some_and(|errno| errno != 0)
}

/// Tries every way to a socket of the host, shown at `place`.
fn nothing_is_reached(launcher: &Launcher, plan: &LaunchPlan, place: &str, host: &SocketHost) {
    let mut inside = launch(launcher, plan);
    for path in [format!("{place}/stream"), format!("{place}/../{}/stream", &place[1..])] {
        let answer = inside.ask(json!({ "connect": path }));
        assert!(is_refused(&answer), "{path}: {answer}");
    }
    assert_eq!(inside.ask(json!({ "chdir": place })), 0);
    assert!(is_refused(&inside.ask(json!({ "connect": "stream" }))));
    inside.run(&["ln", "-s", &format!("{place}/stream"), "/tmp/link"]);
    assert!(is_refused(&inside.ask(json!({ "connect": "/tmp/link" }))));
    for path in [format!("{place}/datagrams"), "datagrams".to_owned()] {
        assert!(is_refused(&inside.ask(json!({ "connect": path }))));
        assert!(is_refused(&inside.ask(json!({ "send": path }))));
    }
    assert!(!host.was_reached());
}

#[test]
fn no_socket_of_the_host_is_reached_in_whatever_view_it_lies() {
    for_each_owner(|owner, launcher| {
        let shown = directory(owner);
        let host = SocketHost::listens_in(owner, shown.path());
        for read_only in [false, true] {
            let workspace = local(shown.path());
            let plan = LaunchPlan { workspace, read_only, ..LaunchPlan::default() };
            nothing_is_reached(launcher, &plan, "/workspace", &host);
            let source = shown.path().canonicalize().unwrap();
            let mounts = vec![PlanMount { source, target: "/data".into(), read_only }];
            let plan = LaunchPlan { mounts, ..LaunchPlan::default() };
            nothing_is_reached(launcher, &plan, "/data", &host);
        }
        assert!(UnixStream::connect(shown.path().join("stream")).is_ok(), "it does listen");
    });
}

#[test]
fn a_socket_that_begins_to_listen_later_is_not_reached_either() {
    for_each_owner(|owner, launcher| {
        let shown = directory(owner);
        let workspace = local(shown.path());
        let mut inside = launch(launcher, &LaunchPlan { workspace, ..LaunchPlan::default() });
        assert_eq!(inside.ask(json!({ "pair": "/tmp/own" }))["heard"], "hello");
        let host = SocketHost::listens_in(owner, shown.path());
        assert!(is_refused(&inside.ask(json!({ "connect": "/workspace/stream" }))));
        assert!(!host.was_reached());
    });
}

#[test]
fn sockets_of_the_sandbox_can_be_connected_to_wherever_they_lie() {
    for_each_owner(|owner, launcher| {
        let shown = directory(owner);
        let workspace = local(shown.path());
        let plan = LaunchPlan { workspace, uid: 1234, gid: 1234, ..LaunchPlan::default() };
        let plan = match owner {
            Owner::Root => LaunchPlan { host_uid: Some(65533), host_gid: Some(65533), ..plan },
            Owner::Ordinary => plan,
        };
        std::fs::set_permissions(shown.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let mut inside = launch(launcher, &plan);
        let heard = json!({ "heard": "hello", "uid": 1234, "blocks": true });
        for place in ["/workspace", "/tmp", "/run", "/home/sandbox", "/dev/shm"] {
            assert_eq!(inside.ask(json!({ "pair": format!("{place}/own") })), heard, "{place}");
        }
        assert_eq!(inside.ask(json!({ "chdir": "/workspace" })), 0);
        assert_eq!(inside.ask(json!({ "pair": "relative" })), heard);
        assert_eq!(inside.ask(json!({ "queue": "/tmp/full" })), json!(true));
        assert_eq!(inside.ask(json!({ "connect": "/tmp/nothing" })), libc::ENOENT);
        assert_eq!(inside.ask(json!({ "connect": "/etc/passwd" })), libc::ECONNREFUSED);
    });
}

#[test]
fn a_connection_over_loopback_works_as_ever() {
    for_each_owner(|_, launcher| {
        let network = PlanNetwork::Loopback;
        let mut inside = launch(launcher, &LaunchPlan { network, ..LaunchPlan::default() });
        let expected = json!({ "heard": "hello", "nobody": libc::ECONNREFUSED });
        assert_eq!(inside.ask(json!({ "tcp": "" })), expected);
    });
}

#[test]
fn one_sandbox_reaches_no_socket_of_another_in_a_directory_they_share() {
    for_each_owner(|owner, launcher| {
        let shown = directory(owner);
        let plan = || LaunchPlan { workspace: local(shown.path()), ..LaunchPlan::default() };
        let (mut one, mut two) = (launch(launcher, &plan()), launch(launcher, &plan()));
        assert_eq!(one.ask(json!({ "listen": "/workspace/one" })), 0);
        assert_eq!(one.ask(json!({ "connect": "/workspace/one" })), 0);
        assert!(is_refused(&two.ask(json!({ "connect": "/workspace/one" }))));
    });
}

#[test]
fn whoever_connects_for_a_guest_is_gone_soon_after_its_end() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &LaunchPlan::default());
        assert_eq!(inside.ask(json!({ "pair": "/tmp/own" }))["heard"], "hello");
        let children = || {
            let list = format!("/proc/{0}/task/{0}/children", launcher.pid());
            std::fs::read_to_string(list).unwrap().split_whitespace().count()
        };
        assert_eq!(children(), 2);
        inside.ended_by_drop();
        common::until("its end", || children() == 0);
    });
}
