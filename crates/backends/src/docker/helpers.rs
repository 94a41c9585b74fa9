//! The programs that a container engine runs beside a container.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::linux::find::list_pids;

/// The programs that container engines run beside a container.
const ENGINE_HELPERS: [&str; 6] = ["conmon", "conmonrs", "crun", "runc", "runsc", "youki"];
/// The prefix of the names of containerd's helpers.
const SHIM_PREFIX: &str = "containerd-shim";

/// The helpers of a container engine with such an argument.
pub(super) fn find_engine_helpers(engine: u32, meant: impl Fn(&[u8]) -> bool) -> Vec<i32> {
    list_pids().filter(|pid| is_helper(*pid, engine, &meant)).collect()
}

/// Whether a process is such a helper: a program of engines, run by the engine's user or this one. Anybody can
/// give a process of his own any arguments.
pub(super) fn is_helper(pid: i32, engine: u32, meant: impl Fn(&[u8]) -> bool) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let has = |line: Vec<u8>| line.split(|byte| *byte == 0).any(&meant);
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(has)
        && fs::metadata(format!("/proc/{pid}")).is_ok_and(|of| [engine, own].contains(&of.uid()))
        && read_program_name(pid)
            .is_some_and(|name| ENGINE_HELPERS.contains(&&*name) || name.starts_with(SHIM_PREFIX))
}

/// The name of the program that a process runs: of its file, or what it calls itself where only root may see
/// the file.
fn read_program_name(pid: i32) -> Option<String> {
    let file = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let name = file.and_then(|file| file.file_name()?.to_str().map(str::to_owned));
    let name = match name {
        Some(name) => name,
        None => fs::read_to_string(format!("/proc/{pid}/comm")).ok()?,
    };
    Some(name.trim().trim_end_matches(" (deleted)").to_owned())
}

#[cfg(test)]
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
