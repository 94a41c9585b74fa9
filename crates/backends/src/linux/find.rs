//! Finds sandboxes by what is visible on the host, for those whose engine is gone.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal as Kill, pidfd_open, pidfd_send_signal};
use stockade_core::SandboxId;

/// The sandbox whose agent this process is, if it is one of this user's that runs under this name; the
/// sandbox's id is its last argument.
///
/// A guest may dress up as an agent. It gains nothing: it can only be found, and then killed.
pub(crate) fn sandbox_of(agent: &str, pid: i32) -> Option<SandboxId> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut arguments = line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    if arguments.next()? != agent.as_bytes() {
        return None;
    }
    std::str::from_utf8(arguments.next_back()?).ok()?.parse().ok()
}

/// Every process of this host.
pub(crate) fn list_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The agents of this name on this host with their sandboxes.
pub(crate) fn find_agents(agent: &str) -> Vec<(i32, SandboxId)> {
    list_pids().filter_map(|pid| Some((pid, sandbox_of(agent, pid)?))).collect()
}

/// Kills a process if it is still the one that was meant. The pidfd is opened first, so that a pid which was
/// reused for another process in between is noticed.
pub(crate) fn kill_if(pid: i32, meant: impl Fn(i32) -> bool) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK).ok()?;
    if !meant(pid) {
        return None;
    }
    pidfd_send_signal(&pidfd, Kill::KILL).ok()?;
    Some(pidfd)
}

/// The parent of a process, held on to.
pub(crate) fn open_parent(pid: i32) -> Option<OwnedFd> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is its own choice and may hold anything: the fields start behind its last bracket.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    pidfd_open(Pid::from_raw(parent)?, PidfdFlags::NONBLOCK).ok()
}
