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

use rustix::process::Signal;
use stockade_fs::read_kernel_file;

use super::ensure_dir;
use super::v2::resolve_group;
use dbus::{Connection, Encoder, Method, Reply};

/// Timeout of the whole request, which the first sandbox of a process waits for.
const SCOPE_TIMEOUT: Duration = Duration::from_secs(3);
/// Poll interval for the launcher's arrival in its scope: the answer to the request comes before it.
const ARRIVAL_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Interval of further requests. systemd queues a start, and says nothing of one that fails later.
const REPEAT_INTERVAL: Duration = Duration::from_millis(250);

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
    // One that was late for an earlier request is there already, and not started again.
    if find_scope(top, &unit, launcher)?.is_none() {
        start_scope(&unit, launcher, deadline)?;
    }
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

/// Which service manager would be asked, for what is measured to depend on: whether one listens.
pub(crate) fn describe_manager() -> String {
    let found = find_private_socket().and_then(fs::symlink_metadata);
    found.map(|socket| format!("{} {}", socket.dev(), socket.ino())).unwrap_or_default()
}

/// Fails where PID 1 is another program, or where `/proc` counts processes otherwise than this process does. In a
/// container that shows the socket of its host's manager, that manager would take our process ids for those of other
/// processes.
fn require_systemd() -> io::Result<()> {
    let first = read_kernel_file("/proc/1/comm").unwrap_or_default();
    let own = fs::read_link("/proc/self").unwrap_or_default();
    match first.trim() == "systemd" && own.as_os_str() == std::process::id().to_string().as_str() {
        true => Ok(()),
        false => Err(io::Error::other("systemd does not run here")),
    }
}

fn start_scope(unit: &str, launcher: u32, deadline: Instant) -> io::Result<()> {
    let mut manager = Connection::open(&find_private_socket()?, deadline)?;
    match manager.call(&START_TRANSIENT_UNIT, &describe_scope(unit, launcher))? {
        Reply::Returned => Ok(()),
        Reply::Refused(reason) => {
            Err(io::Error::other(format!("systemd refuses a scope: {reason}")))
        }
    }
}

/// The arguments of the call. In a delegated scope, one process that the kernel ends for want of memory takes no others
/// with it.
fn describe_scope(unit: &str, launcher: u32) -> Encoder {
    let mut arguments = Encoder::default();
    arguments.string(unit).string("fail");
    arguments.array(8, |properties| {
        properties.property("Description", "s").string("Sandboxes of Stockade");
        properties.property("PIDs", "au").array(4, |pids| {
            pids.number(launcher);
        });
        properties.property("Delegate", "b").number(1);
        properties.property("CollectMode", "s").string("inactive-or-failed");
        // Each sandbox has a limit of its own; the usual one of a scope would be one for all of them.
        properties.property("TasksMax", "t").long(u64::MAX);
        // The launcher heeds no other: a scope that is stopped ends at once.
        properties.property("KillSignal", "i").number(Signal::KILL.as_raw().unsigned_abs());
    });
    // No auxiliary units.
    arguments.array(8, |_| ());
    arguments
}

/// The socket of this user's service manager, in a runtime directory that is theirs. A variable that another user has
/// left behind, as after `su`, is passed over.
fn find_private_socket() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{user}"));
    let mut all = named.filter(|dir| dir.is_absolute()).into_iter().chain([usual]);
    let is_ours = |dir: &PathBuf| fs::metadata(dir).is_ok_and(|found| found.uid() == user);
    let runtime = all.find(is_ours).ok_or_else(|| {
        io::Error::other(
            "no systemd runs for this user (remedy: log in, or `loginctl enable-linger`)",
        )
    })?;
    Ok(runtime.join(PRIVATE_SOCKET))
}

/// The launcher's scope, if it is in it.
fn find_scope(top: &Path, unit: &str, launcher: u32) -> io::Result<Option<PathBuf>> {
    let groups = read_kernel_file(format!("/proc/{launcher}/cgroup"))?;
    let group = resolve_group(top, groups.trim_end());
    Ok(Some(group).filter(|group| group.file_name().is_some_and(|name| name == unit)))
}

/// Waits until the launcher is in its scope.
fn wait_for_arrival(
    top: &Path,
    unit: &str,
    launcher: u32,
    deadline: Instant,
) -> io::Result<PathBuf> {
    let mut repeat_at = Instant::now() + REPEAT_INTERVAL;
    loop {
        if let Some(scope) = find_scope(top, unit, launcher)? {
            return Ok(scope);
        }
        let now = Instant::now();
        if now > deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "systemd did not start the scope in time",
            ));
        }
        if now > repeat_at {
            // Refused while the first start is under way.
            let _ = start_scope(unit, launcher, deadline);
            repeat_at = now + REPEAT_INTERVAL;
        }
        thread::sleep(ARRIVAL_POLL_INTERVAL);
    }
}
