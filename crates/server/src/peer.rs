//! The peer of a Unix socket on which a supervisor or the daemon listens. The directory of sockets lets no other user in, and
//! no guest is shown it (C-06); this is the wall behind that one: a process in namespaces of its own is a
//! guest, under any user id.

use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;

/// Namespaces that a peer must share. A guest that lacks one of its own has another wall there.
const SHARED_NAMESPACES: [&str; 2] = ["user", "pid"];

/// Why a peer is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stranger {
    /// It belongs to another user: root gets everywhere, and is another user all the same.
    User,
    /// It lives in a user or process namespace of its own, or has ended.
    Namespace,
}

/// Checks who has connected.
pub fn check_peer(stream: &UnixStream) -> Result<(), Stranger> {
    let peer = stream.peer_cred().map_err(|_| Stranger::User)?;
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(Stranger::User);
    }
    // A process outside of this process namespace has no id here.
    let pid = peer.pid().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    match pid.is_some_and(shares_namespaces) {
        true => Ok(()),
        false => Err(Stranger::Namespace),
    }
}

fn shares_namespaces(pid: Pid) -> bool {
    // Held while the id is looked up, so that the id cannot come to mean another process meanwhile.
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let same = SHARED_NAMESPACES.iter().all(|name| {
        let own = read_namespace_link("self", name);
        own.is_some() && own == read_namespace_link(&pid.as_raw_nonzero().to_string(), name)
    });
    same && is_alive(&held)
}

fn read_namespace_link(process: &str, name: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/{name}")).ok()
}

fn is_alive(held: &impl std::os::fd::AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(held, PollFlags::IN)], Some(&now)) == Ok(0)
}
