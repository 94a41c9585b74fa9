//! What this host lets the native backend enforce: measured by building a sandbox and reading every
//! wall back, which is what the launcher does each time.

use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Error, Feature, LimitKind, RootMode,
    SandboxId, SandboxSpec, Support, admit,
};

use super::cgroup::{Hierarchy, throwaway};
use super::{NAME, Native};

const BOUNDARY: Boundary = Boundary::SharedKernel;

/// What stands or falls with the walls themselves.
const WALLS: [(Feature, &str); 19] = [
    (Feature::FilesystemIsolation, "mount namespace with a read-only root, Landlock"),
    (Feature::ProcessIsolation, "process namespace"),
    (Feature::NetworkIsolation, "network namespace with nothing but loopback"),
    (Feature::CompleteKill, "the end of the process namespace"),
    (Feature::LoopbackNetwork, "network namespace"),
    (Feature::HostImage, "read-only mounts of the host's system directories"),
    (Feature::DirectoryImage, "read-only mount"),
    (Feature::LocalWorkspace, "mount"),
    (Feature::EphemeralWorkspace, "a sized file system in memory"),
    (Feature::ReadOnlyWorkspace, "read-only mount"),
    (Feature::ExtraMounts, "mount"),
    (Feature::ChosenUser, "user namespace"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::OpenFilesLimit, "RLIMIT_NOFILE"),
    (Feature::Stdin, "the agent"),
    (Feature::Terminal, "the agent, with terminals of the sandbox's own"),
    (Feature::Signals, "the agent"),
    (Feature::FileTransfer, "the agent, resolved by openat2"),
];

/// What it does not offer, and what does.
const ABSENT: [(Feature, &str, &str); 7] = [
    (
        Feature::UserPerCommand,
        "its user namespace holds one user",
        "choose the user for the sandbox",
    ),
    (
        Feature::EgressAllowlist,
        "the native backend opens no network yet",
        "use --net none or loopback",
    ),
    (Feature::OciImage, "images are not unpacked by it", "unpack it and give the directory"),
    (
        Feature::WasmImage,
        "it runs programs of the host's own kind",
        "use a backend for WebAssembly",
    ),
    (Feature::Pause, "it does not freeze sandboxes", "choose a backend that has it"),
    (Feature::FilesSnapshot, "it does not capture files yet", "choose a backend that has it"),
    (Feature::FullSnapshot, "it cannot capture memory", "choose a backend that has it"),
];

pub(super) async fn measure(native: &Native) -> Capabilities {
    let writable = trial(native, RootMode::CopyOnWrite).await;
    if writable.is_ok() {
        return stands(native, Support::full("overlayfs in the user namespace"));
    }
    match (trial(native, RootMode::ReadOnly).await, writable) {
        (Ok(()), Err(error)) => {
            let remedy = "use a kernel that allows overlayfs in user namespaces (5.11 or later)";
            stands(native, Support::missing(error.message(), remedy))
        }
        (Ok(()), Ok(())) => stands(native, Support::full("overlayfs in the user namespace")),
        (Err(error), _) => {
            let remedy = error.hint().unwrap_or("see docs/backends/native.md").to_owned();
            Capabilities::unavailable(NAME, BOUNDARY, reason(&error), remedy)
        }
    }
}

/// The running kernel, who asks, from which control group, how many namespaces they may make, and
/// the programs that build and judge.
pub(super) fn fingerprint() -> Option<String> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let facts = [
        read("/proc/sys/kernel/random/boot_id")?,
        read("/proc/self/cgroup")?,
        read("/proc/sys/user/max_user_namespaces").unwrap_or_default(),
        read("/proc/self/attr/current").unwrap_or_default(),
        format!("{:?}", rustix::process::geteuid()),
        env!("CARGO_PKG_VERSION").into(),
        format!("{}+{}", super::embed::AGENT.len(), super::embed::LAUNCHER.len()),
    ];
    Some(facts.join("\n"))
}

fn reason(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{}: {source}", error.message()),
        None => error.message().to_owned(),
    }
}

/// Builds a sandbox, has every wall read back, and takes it down.
async fn trial(native: &Native, root: RootMode) -> Result<(), Error> {
    let id: SandboxId = trial_id();
    let created = native.create(&id, &provisional(root)?).await.map(drop);
    let destroyed = native.destroy(&id).await;
    created.and(destroyed)
}

fn trial_id() -> SandboxId {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    throwaway::name("probe", number)
        .parse()
        .unwrap_or_else(|_| unreachable!("a number makes a valid id"))
}

/// Admission by what is about to be found out.
fn provisional(root: RootMode) -> Result<Admitted, Error> {
    let hope = Feature::ALL
        .iter()
        .fold(Capabilities::none(BackendName::literal("native"), BOUNDARY), |hope, feature| {
            hope.with(*feature, Support::full("hope"))
        });
    let spec = SandboxSpec { root, ..SandboxSpec::default() };
    admit(&spec, &hope).map_err(|refusals| Error::refused("probe", Some(NAME), refusals))
}

/// The walls stand: what else is there depends on the control groups.
fn stands(native: &Native, copy_on_write: Support) -> Capabilities {
    let mut all = Capabilities::none(NAME, BOUNDARY).with(Feature::CopyOnWriteRoot, copy_on_write);
    for (feature, by) in WALLS {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in ABSENT {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    for kind in [
        LimitKind::Memory,
        LimitKind::Processes,
        LimitKind::CpuRate,
        LimitKind::CpuTime,
        LimitKind::Disk,
    ] {
        all = all.with(kind.feature(), limit(kind, native.hierarchy()));
    }
    all
}

fn limit(kind: LimitKind, hierarchy: &Hierarchy) -> Support {
    let controllers = hierarchy.controllers();
    let by = hierarchy.name();
    let remedy = delegation_remedy(kind);
    match kind {
        LimitKind::Memory if controllers.memory => Support::full(format!("{by} memory controller")),
        LimitKind::Memory => Support::partial(
            "counting resident memory every 10 ms",
            "processes together may go beyond it for a few milliseconds, and files in memory that none \
             of them maps do not count",
            remedy,
        ),
        LimitKind::Processes if controllers.processes => {
            Support::full(format!("{by} pids controller"))
        }
        LimitKind::Processes if rustix::process::geteuid().is_root() => {
            Support::missing("the kernel does not hold root to RLIMIT_NPROC", remedy)
        }
        LimitKind::Processes => Support::full("RLIMIT_NPROC, counted for the user namespace alone"),
        LimitKind::CpuRate if controllers.cpu => Support::full(format!("{by} cpu controller")),
        LimitKind::CpuRate => Support::missing(unavailable(hierarchy), remedy),
        LimitKind::CpuTime if controllers.cpu_usage => {
            Support::full(format!("{by} counter, read every 50 ms"))
        }
        LimitKind::CpuTime => Support::partial(
            "RLIMIT_CPU for each process, and adding up their times",
            "a process that nobody waits for takes its time with it",
            remedy,
        ),
        LimitKind::Disk => Support::partial(
            "sized file systems for private places; for a local workspace RLIMIT_FSIZE and adding up \
             its files every 250 ms",
            "a file that was deleted while it is open does not count, nor what is written between two looks",
            "use --read-only, or keep it as far as it goes with --without disk-limit",
        ),
        LimitKind::WallTime | LimitKind::OpenFiles | LimitKind::Output => {
            Support::missing("not a matter of control groups", "none needed")
        }
    }
}

fn unavailable(hierarchy: &Hierarchy) -> String {
    match hierarchy {
        Hierarchy::None { reason } => reason.clone(),
        Hierarchy::V1(_) | Hierarchy::V2(_) => "the controller is not available".into(),
    }
}

fn delegation_remedy(kind: LimitKind) -> String {
    format!(
        "run it in a delegated control group (`systemd-run --user --scope -p Delegate=yes stockade …`), \
         or go without with --without {}",
        kind.feature()
    )
}
