//! What can go wrong, always with the wall it went wrong at. Never a bare string: the wall names the
//! step, the errno the mechanism, the remedy what a person can do.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// One step of the launch, in the order in which the steps are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Wall {
    /// The request itself: its plan or its descriptors.
    Request,
    /// The launcher's own namespaces, made once when it starts.
    Ground,
    /// A source on the host that the plan names.
    Source,
    /// The prepared root of this kind of sandbox.
    Template,
    /// User, mount, pid, network, ipc, uts, cgroup and time namespaces.
    Namespaces,
    /// A session and a process group of the sandbox's own.
    Session,
    /// The parent-death signal.
    ParentDeath,
    /// The identity inside and its mapping.
    Identity,
    /// Membership in the control groups that were made for this sandbox.
    Cgroup,
    /// Resource limits.
    Rlimits,
    /// The host name.
    Hostname,
    /// The network of the sandbox.
    Network,
    /// The read-only root.
    Root,
    /// The copy-on-write layer over the root.
    CopyOnWrite,
    /// The private writable places: `/tmp`, `/var/tmp`, `/run`, home, shared memory.
    Scratch,
    /// The workspace.
    Workspace,
    /// The mounts the plan adds.
    Mounts,
    /// The fresh, masked, read-only `/proc`.
    Proc,
    /// The terminals of the sandbox.
    Devpts,
    /// Host descriptors.
    Descriptors,
    /// Capabilities, secure bits and `no_new_privs`.
    Capabilities,
    /// Landlock.
    Landlock,
    /// The system call filter.
    Seccomp,
    /// The agent's first instruction.
    Agent,
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = serde_json::to_value(self).ok();
        let name = name.as_ref().and_then(serde_json::Value::as_str);
        f.write_str(name.unwrap_or("wall"))
    }
}

/// A launch that did not happen: nothing of it is left (C-32).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{wall}: {detail}{}", describe_errno(*.errno))]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The step that failed.
    pub wall: Wall,
    /// The kernel's answer, or 0 where no system call failed.
    pub errno: i32,
    /// What was being done, naming the object.
    pub detail: String,
    /// What a person can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

fn describe_errno(errno: i32) -> String {
    match errno {
        0 => String::new(),
        n => format!(": {}", io::Error::from_raw_os_error(n)),
    }
}

impl Failure {
    pub(crate) fn new(wall: Wall, errno: Errno, detail: impl Into<String>) -> Self {
        let errno = errno.raw_os_error();
        let remedy = find_remedy(wall, errno).map(str::to_owned);
        Failure { wall, errno, detail: detail.into(), remedy }
    }

    pub(crate) fn without_errno(wall: Wall, detail: impl Into<String>) -> Self {
        Failure { wall, errno: 0, detail: detail.into(), remedy: None }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

fn find_remedy(wall: Wall, errno: i32) -> Option<&'static str> {
    match (wall, errno) {
        (Wall::Ground | Wall::Namespaces, libc::EPERM | libc::EACCES) if is_container() => Some(
            "this is a container: start it with `--security-opt seccomp=unconfined`, or with Podman, \
             or use the landlock backend",
        ),
        (Wall::Ground | Wall::Namespaces, libc::EPERM | libc::EACCES) => Some(
            "allow user namespaces for this user (kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0), or use the landlock backend",
        ),
        (Wall::Ground | Wall::Namespaces, libc::ENOSPC) => {
            Some("raise user.max_user_namespaces and its siblings under /proc/sys/user")
        }
        (Wall::Proc, libc::EPERM) => Some(
            "the host's own /proc is partly masked (a container?): give it an unmasked /proc, \
             or use the landlock backend",
        ),
        (Wall::Seccomp, libc::EBUSY) => Some(
            "this is inside another sandbox, and the kernel gives both together one listener: start the \
             command beside that sandbox, not in it",
        ),
        (Wall::Source, libc::ENOENT) => Some("create it, or correct the path"),
        (Wall::Source, libc::ELOOP) => Some("give the path with its symbolic links resolved"),
        (Wall::Landlock, libc::ENOSYS | libc::EOPNOTSUPP) => {
            Some("use a kernel with Landlock, or give the second wall up by name")
        }
        _ => None,
    }
}

/// Whether this process is in a container of Docker or Podman, by the file that each puts there.
fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
}

/// Puts the wall and the object beside a system call's error.
pub(crate) trait At<T> {
    fn at(self, wall: Wall, detail: &str) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, wall: Wall, detail: &str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(wall, errno, detail))
    }
}

/// Why [`crate::Launcher`] did not launch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The launcher answered that a step failed.
    #[error("launch refused")]
    Failed(#[source] Failure),
    /// The launcher is gone, or was never there.
    #[error("the launcher is gone")]
    Gone(#[source] io::Error),
    /// The plan does not fit into one message.
    #[error("the plan takes {size} bytes, more than the {limit} one message may have")]
    TooLarge {
        /// Size of this plan.
        size: usize,
        /// The most a message may have.
        limit: usize,
    },
    /// The answer could not be understood.
    #[error("the launcher's answer makes no sense")]
    Answer(#[source] serde_json::Error),
}
