//! What a sandbox is to look like: the launcher's whole input. Plain data; deciding what goes in is
//! the caller's work, and nothing a guest wrote may reach it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One sandbox, as the launcher is to build it. Host paths are given resolved: a symbolic link in
/// any of their components is refused, so that nothing a guest left behind can redirect a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LaunchPlan {
    /// Name of the sandbox, for messages.
    pub id: String,
    /// Host name inside.
    pub hostname: String,
    /// Where the system directories come from.
    pub root: Root,
    /// Bytes of a writable layer over the root; absent: the root is read-only.
    pub copy_on_write: Option<u64>,
    /// The workspace.
    pub workspace: PlanWorkspace,
    /// Whether the workspace is read-only, by mount (C-20).
    pub read_only: bool,
    /// Where the workspace appears inside; absolute and normal.
    pub workspace_target: PathBuf,
    /// A second path at which the workspace appears, with everything that is mounted in it.
    pub workspace_alias: Option<PathBuf>,
    /// Further mounts.
    pub mounts: Vec<PlanMount>,
    /// Targets of writable mounts in which files and directories can be made, but by Landlock no symbolic links,
    /// pipes and sockets: programs of the host would follow or open those.
    pub plain_files: Vec<PathBuf>,
    /// Further device nodes, by their names in the host's `/dev`, that it is trusted with.
    pub devices: Vec<String>,
    /// User id as seen inside.
    pub uid: u32,
    /// Group id as seen inside.
    pub gid: u32,
    /// The host's user that `uid` stands for; absent: the launcher's own. Needs root.
    pub host_uid: Option<u32>,
    /// The host's group that `gid` stands for; absent: the launcher's own. Needs root.
    pub host_gid: Option<u32>,
    /// The network inside.
    pub network: PlanNetwork,
    /// Bytes of all private writable places together (`/tmp`, `/var/tmp`, `/run`, home, shared memory).
    pub tmp_bytes: u64,
    /// Control groups that the caller has made and limited.
    pub cgroup: Option<Cgroup>,
    /// Resource limits.
    pub rlimits: Rlimits,
    /// Gives Landlock up where the kernel has none; the proof then says so.
    pub without_landlock: bool,
}

impl LaunchPlan {
    /// Every path at which the workspace appears.
    pub(crate) fn workspace_paths(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.workspace_target).chain(&self.workspace_alias)
    }
}

impl Default for LaunchPlan {
    fn default() -> Self {
        LaunchPlan {
            id: String::new(),
            hostname: "stockade".to_owned(),
            root: Root::Host,
            copy_on_write: None,
            workspace: PlanWorkspace::Ephemeral { bytes: 64 << 20 },
            read_only: false,
            workspace_target: PathBuf::from("/workspace"),
            workspace_alias: None,
            mounts: Vec::new(),
            plain_files: Vec::new(),
            devices: Vec::new(),
            uid: 1000,
            gid: 1000,
            host_uid: None,
            host_gid: None,
            network: PlanNetwork::None,
            tmp_bytes: 64 << 20,
            cgroup: None,
            rlimits: Rlimits::default(),
            without_landlock: false,
        }
    }
}

/// Where the system directories come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Root {
    /// The host's own programs and libraries, without its homes, state and secrets.
    Host,
    /// A directory tree that holds a root file system.
    Directory(PathBuf),
}

/// Where the workspace's files live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum PlanWorkspace {
    /// In memory; gone with the sandbox.
    Ephemeral {
        /// The most it may hold.
        bytes: u64,
    },
    /// A directory of the host.
    Local {
        /// The directory, resolved.
        path: PathBuf,
    },
    /// A copy-on-write view of a directory of the host. Read-only, it needs nothing to write to.
    Overlay {
        /// The directory that is shown, resolved; never written to.
        lower: PathBuf,
        /// Where the changes go, resolved.
        upper: PathBuf,
        /// The kernel's own place beside `upper`, resolved.
        work: PathBuf,
    },
    /// A copy-on-write view of nothing, with its changes in memory: to find out whether one can be had.
    Trial,
}

/// A further file or directory of the host, shown inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanMount {
    /// The host's file or directory, resolved.
    pub source: PathBuf,
    /// Where it appears inside; absolute and normal.
    pub target: PathBuf,
    /// Whether it is read-only, by mount.
    pub read_only: bool,
}

/// The network inside. There is never an interface but loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlanNetwork {
    /// Loopback is down.
    None,
    /// Loopback is up.
    Loopback,
    /// Loopback is up, and any process may listen at any of its ports: the agent's network helper does.
    Helper,
}

/// Directories of control groups, made and limited by the caller; the launcher removes them when its
/// owner dies before the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Cgroup {
    /// One directory of the unified hierarchy.
    V2(PathBuf),
    /// One directory per controller.
    V1(Vec<PathBuf>),
}

impl Cgroup {
    pub(crate) fn directories(&self) -> &[PathBuf] {
        match self {
            Cgroup::V2(directory) => std::slice::from_ref(directory),
            Cgroup::V1(directories) => directories,
        }
    }
}

/// Resource limits, each set as soft and hard limit where given and nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rlimits {
    /// Open files of one process.
    pub nofile: Option<u64>,
    /// Up to which a process may raise that; absent: not at all.
    pub nofile_hard: Option<u64>,
    /// Processes and threads of this sandbox's user. The kernel does not hold host root to it.
    pub nproc: Option<u64>,
    /// Bytes of one file.
    pub fsize: Option<u64>,
    /// Bytes of private memory of one process.
    pub data: Option<u64>,
    /// Bytes of address space of one process.
    pub address_space: Option<u64>,
    /// Bytes of one stack.
    pub stack: Option<u64>,
    /// CPU seconds of one process.
    pub cpu: Option<u64>,
    /// Bytes of locked memory.
    pub memlock: Option<u64>,
    /// Bytes of a core file; absent: 0.
    pub core: Option<u64>,
}
