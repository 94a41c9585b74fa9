//! What this host lets the landlock backend enforce: measured by building a sandbox and reading every
//! wall back, which is what the launcher does each time.

use std::sync::Arc;

use stockade_core::{Boundary, Capabilities, Error, Feature, LimitKind, SandboxSpec, Support};

use super::{LandlockWalls, NAME};
use crate::linux::{self, limits};
use crate::managed::try_out;

const LANDLOCK_BOUNDARY: Boundary = Boundary::SharedKernel;

/// Features that are there whenever the walls stand, each with what provides it.
const WALL_FEATURES: [(Feature, &str); 15] = [
    (Feature::FilesystemIsolation, "Landlock, and a warden for what it does not decide about"),
    (
        Feature::ProcessIsolation,
        "Landlock's scope of signals and no /proc; which process ids are in use can be found out",
    ),
    (Feature::NetworkIsolation, "a system call filter: no socket can be made"),
    (
        Feature::CompleteKill,
        "one signal to every process in its Landlock scope, and a warden process that waits",
    ),
    (Feature::HostImage, "rules that let the host's system directories be read"),
    (Feature::LocalWorkspace, "a rule for the directory, which keeps its own path"),
    (Feature::EphemeralWorkspace, "a directory for temporary files that its warden removes"),
    (Feature::ReadOnlyWorkspace, "Landlock, and a warden for modes and times"),
    (Feature::HostTrees, "rules for directories, which keep their own paths"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::OpenFilesLimit, "RLIMIT_NOFILE"),
    (Feature::Stdin, "the agent"),
    (Feature::Signals, "the agent"),
    (Feature::FileTransfer, "the agent, resolved by openat2"),
];

const NATIVE_BACKEND_REMEDY: &str = "use the native backend, which needs user namespaces";
const OTHER_BACKEND_REMEDY: &str = "choose a backend that has it";

/// Features that are not offered, each with the reason and the remedy.
const MISSING_FEATURES: [(Feature, &str, &str); 17] = [
    (Feature::LoopbackNetwork, "the only loopback is the host's", NATIVE_BACKEND_REMEDY),
    (Feature::EgressAllowlist, "no socket can be created", OTHER_BACKEND_REMEDY),
    (Feature::DirectoryImage, "another root needs a mount namespace", NATIVE_BACKEND_REMEDY),
    (Feature::OciImage, "another root needs a mount namespace", OTHER_BACKEND_REMEDY),
    (Feature::NamedImage, "another root needs a mount namespace", OTHER_BACKEND_REMEDY),
    (Feature::WasmImage, "it runs programs of the host's own kind", OTHER_BACKEND_REMEDY),
    (Feature::ExtraMounts, "a mount needs a mount namespace", NATIVE_BACKEND_REMEDY),
    (
        Feature::WorkspacePath,
        "a workspace keeps its own path",
        "leave --workspace-at out, or use the native backend",
    ),
    (Feature::CopyOnWriteRoot, "an overlay needs a mount namespace", NATIVE_BACKEND_REMEDY),
    (Feature::CopyOnWriteImage, "an overlay needs a mount namespace", NATIVE_BACKEND_REMEDY),
    (Feature::OverlayWorkspace, "an overlay needs a mount namespace", NATIVE_BACKEND_REMEDY),
    (Feature::ChosenUser, "another user needs a user namespace", NATIVE_BACKEND_REMEDY),
    (Feature::UserPerCommand, "another user needs a user namespace", OTHER_BACKEND_REMEDY),
    (
        Feature::Terminal,
        "its terminals would lie among the user's own, in reach",
        NATIVE_BACKEND_REMEDY,
    ),
    (Feature::Pause, "it does not freeze sandboxes", OTHER_BACKEND_REMEDY),
    (Feature::FilesSnapshot, "it does not capture files", OTHER_BACKEND_REMEDY),
    (Feature::FullSnapshot, "it cannot capture memory", OTHER_BACKEND_REMEDY),
];

pub(super) async fn measure_capabilities(landlock: &Arc<LandlockWalls>) -> Capabilities {
    match try_sandbox(landlock).await {
        Ok(()) => describe_features(landlock),
        Err(error) => {
            let remedy = error.hint().unwrap_or("see docs/backends/landlock.md").to_owned();
            Capabilities::unavailable(
                NAME,
                LANDLOCK_BOUNDARY,
                linux::describe_error(&error),
                remedy,
            )
        }
    }
}

/// Builds a sandbox, has every wall read back, and takes it down.
async fn try_sandbox(landlock: &Arc<LandlockWalls>) -> Result<(), Error> {
    let admitted = linux::admit_provisionally(NAME, &SandboxSpec::default())?;
    try_out(landlock, |landlock, id| async move {
        landlock.build_sandbox(&id, &admitted).await.map(drop)
    })
    .await
}

/// The walls stand: what else is there depends on the control groups.
fn describe_features(landlock: &LandlockWalls) -> Capabilities {
    let mut all = Capabilities::none(NAME, LANDLOCK_BOUNDARY);
    for (feature, by) in WALL_FEATURES {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in MISSING_FEATURES {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    for (feature, support) in limits::measure_limits(
        &landlock.linux_host.hierarchy(),
        limits::processes_by_counting(),
        disk_support(),
    ) {
        all = all.with(feature, support);
    }
    let all = limits::with_user_counts(all);
    match landlock.linux_host.hierarchy().controllers().memory {
        true => all,
        false => all.with_gap(
            "C-18",
            "buffers of socket pairs are not counted as memory",
            limits::delegation_remedy(LimitKind::Memory),
        ),
    }
}

fn disk_support() -> Support {
    Support::partial(
        "RLIMIT_FSIZE, and adding up the files of its directories every 250 ms",
        "a file that was deleted while it is open does not count, nor what is written between two checks",
        "choose native, which holds it exactly where nothing of the host is written",
    )
}
