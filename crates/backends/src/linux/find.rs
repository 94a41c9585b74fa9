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

/// The programs that container engines run beside a container.
#[cfg(feature = "docker")]
const ENGINE_HELPERS: [&str; 6] = ["conmon", "conmonrs", "crun", "runc", "runsc", "youki"];
/// The prefix of the names of containerd's helpers.
#[cfg(feature = "docker")]
const SHIM_PREFIX: &str = "containerd-shim";

/// The helpers of a container engine with such an argument.
#[cfg(feature = "docker")]
pub(crate) fn find_engine_helpers(engine: u32, meant: impl Fn(&[u8]) -> bool) -> Vec<i32> {
    list_pids().filter(|pid| is_helper(*pid, engine, &meant)).collect()
}

/// Whether a process is such a helper: a program of engines, run by the engine's user or this one. Anybody can
/// give a process of his own any arguments.
#[cfg(feature = "docker")]
pub(crate) fn is_helper(pid: i32, engine: u32, meant: impl Fn(&[u8]) -> bool) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    let has = |line: Vec<u8>| line.split(|byte| *byte == 0).any(&meant);
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(has)
        && fs::metadata(format!("/proc/{pid}")).is_ok_and(|of| [engine, own].contains(&of.uid()))
        && read_program_name(pid)
            .is_some_and(|name| ENGINE_HELPERS.contains(&&*name) || name.starts_with(SHIM_PREFIX))
}

/// The name of the program that a process runs: of its file, or what it calls itself where only root may see
/// the file.
#[cfg(feature = "docker")]
fn read_program_name(pid: i32) -> Option<String> {
    let file = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let name = file.and_then(|file| file.file_name()?.to_str().map(str::to_owned));
    let name = match name {
        Some(name) => name,
        None => fs::read_to_string(format!("/proc/{pid}/comm")).ok()?,
    };
    Some(name.trim().trim_end_matches(" (deleted)").to_owned())
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
#[cfg(feature = "landlock")]
pub(crate) fn open_parent(pid: i32) -> Option<OwnedFd> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is its own choice and may hold anything: the fields start behind its last bracket.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    pidfd_open(Pid::from_raw(parent)?, PidfdFlags::NONBLOCK).ok()
}

#[cfg(all(test, feature = "docker"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_programs_of_engines_are_their_helpers_whatever_arguments_others_have() {
        let place = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let name = format!("stockade-{}", std::process::id());
        for (program, is_one) in [("conmon", true), ("sh", false), ("conmon-notes", false)] {
            let file = place.path().join(program);
            fs::copy("/bin/sh", &file).unwrap();
            let mut waiting = Command::new(&file);
            waiting.args(["-c", "echo; read line", &name]);
            let mut child = waiting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // It runs this program by the time that it says something.
            let mut said = child.stdout.take().unwrap();
            std::io::Read::read_exact(&mut said, &mut [0]).unwrap();
            let found = find_engine_helpers(own, |part| part == name.as_bytes());
            let theirs = find_engine_helpers(own, |part| part == b"stockade-another");
            drop(child.stdin.take());
            let pid = child.id().cast_signed();
            child.wait().unwrap();
            assert_eq!(found.contains(&pid), is_one, "{program}");
            assert!(!theirs.contains(&pid));
        }
    }
}
