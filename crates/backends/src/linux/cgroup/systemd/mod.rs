//! A delegated control group from the service manager of this user: systemd puts the launcher into a scope of its
//! own, and every sandbox that it launches begins in there. The process that uses Stockade stays where it is. systemd
//! removes the scope with all groups in it when its last process has ended, after SIGKILL too.

mod dbus;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use stockade_fs::read_kernel_file;

use super::ensure_dir;
use super::v2::resolve_group;
use dbus::{Connection, Encoder, Method, Reply};

/// Timeout of the whole request, which the first sandbox of a process waits for.
const SCOPE_TIMEOUT: Duration = Duration::from_secs(3);
/// Poll interval for the launcher's arrival in its scope: the answer to the request comes before it.
const ARRIVAL_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Where a user's service manager listens, below their runtime directory.
const PRIVATE_SOCKET: &str = "systemd/private";

/// Child group that the launcher is moved to: a cgroup with processes cannot enable controllers for its children.
const LAUNCHER_CGROUP: &str = "stockade-launcher";

const START_TRANSIENT_UNIT: Method = Method {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
    member: "StartTransientUnit",
    signature: "ssa(sv)a(sa(sv))",
};

/// Has the launcher put into a scope of its own and makes room in that for other groups. Answers the scope's
/// directory below `top`, where the hierarchy is mounted.
pub(super) fn enter_scope(top: &Path, launcher: u32) -> io::Result<PathBuf> {
    require_systemd()?;
    let unit = format!("stockade-{launcher}.scope");
    let deadline = Instant::now() + SCOPE_TIMEOUT;
    start_scope(&unit, launcher)?;
    let scope = wait_for_arrival(top, &unit, launcher, deadline)?;
    let below = scope.join(LAUNCHER_CGROUP);
    ensure_dir(&below)?;
    fs::write(below.join("cgroup.procs"), launcher.to_string())?;
    Ok(scope)
}

/// Removes the launcher's child group, once the launcher has ended. systemd removes the scope itself.
pub(super) fn leave_scope(scope: &Path) {
    let _ = fs::remove_dir(scope.join(LAUNCHER_CGROUP));
}

/// Fails where PID 1 is another program. In a container that shows the socket of its host's manager,
/// that manager would take our process ids for those of other processes.
fn require_systemd() -> io::Result<()> {
    let first = read_kernel_file("/proc/1/comm").unwrap_or_default();
    match first.trim() {
        "systemd" => Ok(()),
        _ => Err(io::Error::other("systemd does not run here")),
    }
}

fn start_scope(unit: &str, launcher: u32) -> io::Result<()> {
    let mut manager = Connection::open(&find_private_socket()?, SCOPE_TIMEOUT)?;
    let mut reply = Reply::Returned;
    // systemd before 253 refuses this property for scopes, and stops no scope for an OOM kill.
    for oom_policy in [Some("continue"), None] {
        reply = manager.call(&START_TRANSIENT_UNIT, &describe_scope(unit, launcher, oom_policy))?;
        if reply == Reply::Returned {
            return Ok(());
        }
    }
    match reply {
        Reply::Returned => Ok(()),
        Reply::Refused(reason) => {
            Err(io::Error::other(format!("systemd refuses a scope: {reason}")))
        }
    }
}

/// The arguments of the call. `oom_policy`: what happens to the other processes when the kernel ends one for want of
/// memory; a sandbox that reaches its limit must not take the others with it.
fn describe_scope(unit: &str, launcher: u32, oom_policy: Option<&str>) -> Encoder {
    let mut arguments = Encoder::default();
    arguments.string(unit).string("fail");
    arguments.array(8, |properties| {
        properties.property("Description", "s").string("Sandboxes of Stockade");
        properties.property("PIDs", "au").array(4, |pids| {
            pids.number(launcher);
        });
        properties.property("Delegate", "b").number(1);
        properties.property("CollectMode", "s").string("inactive-or-failed");
        if let Some(policy) = oom_policy {
            properties.property("OOMPolicy", "s").string(policy);
        }
    });
    // No auxiliary units.
    arguments.array(8, |_| ());
    arguments
}

/// The socket of this user's service manager, in a runtime directory that is theirs.
fn find_private_socket() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let named =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let runtime = named.unwrap_or_else(|| PathBuf::from(format!("/run/user/{user}")));
    let owner = fs::metadata(&runtime).map(|found| found.uid());
    match owner {
        Ok(owner) if owner == user => Ok(runtime.join(PRIVATE_SOCKET)),
        Ok(_) => Err(io::Error::other(format!("{} is another user's", runtime.display()))),
        Err(_) => Err(io::Error::other(
            "no systemd runs for this user (remedy: log in, or `loginctl enable-linger`)",
        )),
    }
}

/// Waits until the launcher is in its scope.
fn wait_for_arrival(
    top: &Path,
    unit: &str,
    launcher: u32,
    deadline: Instant,
) -> io::Result<PathBuf> {
    loop {
        let groups = read_kernel_file(format!("/proc/{launcher}/cgroup"))?;
        let group = resolve_group(top, groups.trim_end());
        if group.file_name().is_some_and(|name| name == unit) {
            return Ok(group);
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "systemd did not start the scope in time",
            ));
        }
        thread::sleep(ARRIVAL_POLL_INTERVAL);
    }
}
