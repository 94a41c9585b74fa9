//! What this host lets the native backend enforce: measured by building a sandbox and reading every
//! wall back, which is what the launcher does each time.

use stockade_core::{
    Backend, Boundary, Capabilities, Error, Feature, LimitKind, RootMode, SandboxSpec, Support,
};

use super::{NAME, Native};
use crate::linux::{self, limits};

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
            Capabilities::unavailable(NAME, BOUNDARY, linux::reason(&error), remedy)
        }
    }
}

/// Builds a sandbox, has every wall read back, and takes it down.
async fn trial(native: &Native, root: RootMode) -> Result<(), Error> {
    let id = linux::trial_id();
    let spec = SandboxSpec { root, ..SandboxSpec::default() };
    let created = native.create(&id, &linux::provisional(NAME, &spec)?).await.map(drop);
    let destroyed = native.destroy(&id).await;
    created.and(destroyed)
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
    for (feature, support) in limits::measured(native.hierarchy(), processes(), disk()) {
        all = all.with(feature, support);
    }
    all
}

/// Where no control group counts them, the user namespace does.
fn processes() -> Support {
    match rustix::process::geteuid().is_root() {
        true => Support::missing(
            "the kernel does not hold root to RLIMIT_NPROC",
            limits::delegation_remedy(LimitKind::Processes),
        ),
        false => Support::full("RLIMIT_NPROC, counted for the user namespace alone"),
    }
}

fn disk() -> Support {
    Support::partial(
        "sized file systems for private places; for a local workspace RLIMIT_FSIZE and adding up \
         its files every 250 ms",
        "a file that was deleted while it is open does not count, nor what is written between two looks",
        "use --read-only, or keep it as far as it goes with --without disk-limit",
    )
}
