//! Reads back what the engine was asked for, from outside: the kernel's own account of the first process
//! and of its group. What the engine says about itself is not believed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, Boundary, Enforcement, Error, ErrorCode, LimitKind, Result, SandboxId,
};

use super::NAME;
use super::socket::EngineHandle;
use crate::linux::OWN_PROCESSES;
use crate::linux::cgroup::{Group, HeldLimits};

/// How much is read of a file in the guest kernel's `/proc`.
const MAX_PROC_BYTES: u32 = 64 << 10;

/// Who the process is that the engine names as a container's first.
pub(super) enum First {
    /// The agent itself, on the host's kernel.
    Agent,
    /// A process of a runtime that runs the agent on a kernel of its own.
    Runtime,
}

/// Identifies the first process, once the agent has spoken: by the very file that it runs, which must be the
/// agent that was laid on the host, or a runtime of the host's. Any other process is not this container's.
/// Its arguments are its own choice, and count only where root alone may see the file.
pub(super) fn identify_first_process(
    pid: i32,
    id: &SandboxId,
    container: &str,
    agent: &Path,
) -> Result<First> {
    let runs = |file: &Path| is_same_file(&PathBuf::from(format!("/proc/{pid}/exe")), file);
    match (runs(agent), by_arguments(pid, id, container)) {
        (Some(true), _) | (None, Some(First::Agent)) => Ok(First::Agent),
        (None, Some(First::Runtime)) => Ok(First::Runtime),
        (Some(false), Some(First::Runtime)) if is_of_the_host(pid) => Ok(First::Runtime),
        (Some(false) | None, _) => {
            Err(wall_missing("a first process that is this container's agent"))
        }
    }
}

/// Whether two paths are the same file; nothing where this user may not know.
fn is_same_file(one: &Path, other: &Path) -> Option<bool> {
    let (one, other) = (fs::metadata(one), fs::metadata(other));
    match one {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
        Ok(one) => {
            Some(other.is_ok_and(|other| (one.dev(), one.ino()) == (other.dev(), other.ino())))
        }
    }
}

/// Whether a process runs a file that lies on the host where it says. What lies in a container's root does not.
fn is_of_the_host(pid: i32) -> bool {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    fs::read_link(&link).is_ok_and(|file| is_same_file(&link, &file) == Some(true))
}

fn by_arguments(pid: i32, id: &SandboxId, container: &str) -> Option<First> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<&[u8]> =
        line.split(|byte| *byte == 0).filter(|part| !part.is_empty()).collect();
    if arguments.last().is_some_and(|last| *last == id.as_str().as_bytes()) {
        return Some(First::Agent);
    }
    let names =
        |part: &&[u8]| part.windows(container.len().max(1)).any(|w| w == container.as_bytes());
    let named = !container.is_empty() && arguments.iter().any(names);
    named.then_some(First::Runtime)
}

/// What stands between this guest and the host's kernel; fails unless it has no capability, can gain
/// none, and its system calls are filtered.
pub(super) async fn read_back(
    first: First,
    pid: i32,
    engine: &EngineHandle,
    client: &AgentClient,
) -> Result<Boundary> {
    let outside = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let filtered =
        ("a filter of system calls", find_status_field(&outside, "Seccomp:") == Some("2"));
    match first {
        First::Agent => {
            let fresh =
                ("no new privileges", find_status_field(&outside, "NoNewPrivs:") == Some("1"));
            let namespace = ("a user namespace", !engine.rootless || is_mapped(pid));
            require_walls(
                check_capabilities(&outside).into_iter().chain([filtered, fresh, namespace]),
            )?;
            Ok(Boundary::SharedKernel)
        }
        // The guest's own are that kernel's to tell; nothing of the guest has run yet that could lie.
        First::Runtime => {
            let kernel = read_inside(client, "/proc/version").await?;
            let host = fs::read_to_string("/proc/version").unwrap_or_default();
            let own = ("a kernel of its own", !kernel.is_empty() && kernel != host);
            let status = read_inside(client, "/proc/1/status").await?;
            require_walls(check_capabilities(&status).into_iter().chain([filtered, own]))?;
            Ok(Boundary::UserspaceKernel)
        }
    }
}

async fn read_inside(client: &AgentClient, path: &str) -> Result<String> {
    let path = path.parse().map_err(|_| wall_missing("a readable /proc"))?;
    let read = client.files().read(&path, 0, MAX_PROC_BYTES).await?;
    Ok(String::from_utf8_lossy(&read).into_owned())
}

fn find_status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn check_capabilities(status: &str) -> [(&'static str, bool); 2] {
    let none = |name: &str| {
        let set = find_status_field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok());
        set == Some(0)
    };
    [
        ("no capabilities", none("CapEff:") && none("CapPrm:")),
        ("no capability to be gained", none("CapBnd:")),
    ]
}

/// Whether root in it is not root on the host.
fn is_mapped(pid: i32) -> bool {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
    let root = map.lines().find_map(|line| {
        let mut parts = line.split_whitespace();
        (parts.next()? == "0").then(|| parts.next().map(str::to_owned))?
    });
    root.is_some_and(|outside| outside != "0")
}

fn require_walls(walls: impl IntoIterator<Item = (&'static str, bool)>) -> Result<()> {
    match walls.into_iter().find(|(_, stands)| !stands) {
        None => Ok(()),
        Some((wall, _)) => Err(wall_missing(wall)),
    }
}

/// The limits that were asked for and that the container's group is not held to.
pub(super) fn find_loose_limits(
    pid: i32,
    group: Option<&Group>,
    admitted: &Admitted,
) -> Vec<LimitKind> {
    let limits = admitted.limits();
    let held = group.map(Group::read_limits).unwrap_or_default();
    let HeldLimits { memory, processes, cpu } = held;
    let within = |held: Option<u64>, asked: Option<u64>| {
        asked.is_none_or(|asked| held.is_some_and(|held| held <= asked))
    };
    // A kernel of its own counts the guest's processes itself.
    let counted_inside = admitted.boundary() != Boundary::SharedKernel;
    let most = limits.processes.map(|most| u64::from(most) + OWN_PROCESSES);
    let all = [
        (LimitKind::Memory, within(memory, limits.memory.map(|memory| memory.0))),
        (LimitKind::Processes, counted_inside || within(processes, most)),
        (LimitKind::CpuRate, within(cpu, limits.cpu_rate.map(|rate| u64::from(rate.0)))),
        (LimitKind::CpuTime, group.is_some()),
        (
            LimitKind::OpenFiles,
            counted_inside || within(open_files(pid), limits.open_files.map(u64::from)),
        ),
    ];
    all.into_iter().filter(|(_, holds)| !holds).map(|(kind, _)| kind).collect()
}

/// How many files a process may have open.
fn open_files(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Whether there is but one user in it.
pub(super) fn has_one_user(pid: i32) -> bool {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
    let sizes = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    sizes.sum::<u64>() <= 1
}

/// Fails where a limit that was promised is not held, or where the guest is closer to the host's kernel
/// than was promised.
pub(super) fn keep_the_promise(
    admitted: &Admitted,
    boundary: Boundary,
    loose: &[LimitKind],
) -> Result<()> {
    if boundary < admitted.boundary() {
        return Err(wall_missing("the boundary that was measured before"));
    }
    let promised = admitted.enforcement().iter().find_map(|enforced| match enforced {
        Enforcement::Fully { limit, .. } if loose.contains(limit) => Some(*limit),
        Enforcement::Fully { .. } | Enforcement::Partly { .. } | Enforcement::NotAtAll { .. } => {
            None
        }
    });
    match promised {
        None => Ok(()),
        Some(limit) => Err(wall_missing(&format!("the {limit} limit, in its control group"))),
    }
}

fn wall_missing(wall: &str) -> Error {
    let message = format!("the engine started a container without this wall: {wall}");
    Error::new(ErrorCode::WallMissing, "create", message)
        .backend(NAME)
        .remedy("see the engine's configuration, or choose another backend")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_the_agent_by_its_file_and_not_by_its_arguments() {
        let id: SandboxId = "dressed".parse().unwrap();
        let hash = "0123456789abcdef".repeat(4);
        let mut child = Command::new("/bin/sh")
            .args(["-c", "echo; read line", &hash, id.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id().cast_signed();
        let real = identify_first_process(pid, &id, "", Path::new("/bin/sh"));
        let dressed = identify_first_process(pid, &id, "", &std::env::current_exe().unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(matches!(real, Ok(First::Agent)));
        assert!(dressed.is_err());
    }
}
