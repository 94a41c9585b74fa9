//! What this host lets the native backend enforce: measured by building a sandbox and reading every
//! wall back, which is what the launcher does each time.

use std::sync::Arc;

use rustix::process::{Signal, pidfd_send_signal};
use stockade_core::{
    Boundary, Capabilities, Error, Feature, Network, RootMode, SandboxSpec, Support,
};
use stockade_launcher::{LaunchPlan, PlanWorkspace};

use super::{NAME, NativeWalls, plan};
use crate::linux::cgroup::Hierarchy;
use crate::linux::{self, limits, running};
use crate::managed::try_out;

const NATIVE_BOUNDARY: Boundary = Boundary::SharedKernel;

/// Features that depend on the walls alone.
const WALL_FEATURES: [(Feature, &str); 22] = [
    (Feature::FilesSnapshot, "archives made and unpacked by the agent"),
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
    (Feature::HostTrees, "mount"),
    (Feature::WorkspacePath, "mount"),
    (Feature::ChosenUser, "user namespace"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::OpenFilesLimit, "RLIMIT_NOFILE"),
    (Feature::Stdin, "the agent"),
    (Feature::Terminal, "the agent, with terminals of the sandbox's own"),
    (Feature::Signals, "the agent"),
    (Feature::FileTransfer, "the agent, resolved by openat2"),
];

/// Features that this backend does not offer, and what to use instead.
const MISSING_FEATURES: [(Feature, &str, &str); 5] = [
    (
        Feature::UserPerCommand,
        "its user namespace holds one user",
        "choose the user for the sandbox",
    ),
    (Feature::OciImage, "images are not unpacked by it", "unpack it and give the directory"),
    (
        Feature::NamedImage,
        "it has no store of images",
        "unpack it and give the directory, or use the docker backend",
    ),
    (
        Feature::WasmImage,
        "it runs programs of the host's own kind",
        "use a backend for WebAssembly",
    ),
    (Feature::FullSnapshot, "it cannot capture memory", "choose a backend that has it"),
];

pub(super) async fn measure_capabilities(native: &Arc<NativeWalls>) -> Capabilities {
    let root = try_root(native, RootMode::CopyOnWrite).await;
    if root.is_err()
        && let Err(error) = try_root(native, RootMode::ReadOnly).await
    {
        let remedy = error.hint().unwrap_or("see docs/backends/native.md").to_owned();
        return Capabilities::unavailable(
            NAME,
            NATIVE_BOUNDARY,
            linux::describe_error(&error),
            remedy,
        );
    }
    let workspace = overlay_support(try_overlay(native).await);
    let image = image_support(&root, &workspace);
    let egress = egress_support(try_egress(native).await);
    measured_features(native)
        .with(Feature::CopyOnWriteRoot, overlay_support(root))
        .with(Feature::CopyOnWriteImage, image)
        .with(Feature::OverlayWorkspace, workspace)
        .with(Feature::EgressAllowlist, egress)
}

/// Builds a sandbox, has every wall read back, and takes it down.
async fn try_root(native: &Arc<NativeWalls>, root: RootMode) -> Result<(), Error> {
    try_spec(native, SandboxSpec { root, ..SandboxSpec::default() }).await
}

/// Likewise with a network in which the helper can listen.
async fn try_egress(native: &Arc<NativeWalls>) -> Result<(), Error> {
    // A name that never leads anywhere; nothing asks for it.
    let network = Network::Egress("stockade.invalid".parse().into_iter().collect());
    try_spec(native, SandboxSpec { network, ..SandboxSpec::default() }).await
}

async fn try_spec(native: &Arc<NativeWalls>, spec: SandboxSpec) -> Result<(), Error> {
    let admitted = linux::admit_provisionally(NAME, &spec)?;
    try_out(
        native,
        |native, id| async move { native.build_sandbox(&id, &admitted).await.map(drop) },
    )
    .await
}

/// Likewise with a copy-on-write workspace. Its layers are in memory, so that a trial that is killed
/// leaves no file; whether a given directory can be a layer is seen when it is mounted.
async fn try_overlay(native: &NativeWalls) -> Result<(), Error> {
    let id = linux::trial_id();
    let admitted = linux::admit_provisionally(NAME, &SandboxSpec::default())?;
    let plan =
        LaunchPlan { workspace: PlanWorkspace::Trial, ..plan::build_plan(&id, &admitted, false)? };
    let (_ours, theirs) = native.linux_host.open_pipe()?;
    let launched = native.send_plan(&plan, theirs.into()).await?;
    // It may have ended already.
    let _ = pidfd_send_signal(&launched.pidfd, Signal::KILL);
    running::wait_for_exit(&launched.pidfd).await.map_err(|error| linux::no_pipe(NAME, error))
}

/// The walls stand: what else is there depends on the control groups.
fn measured_features(native: &NativeWalls) -> Capabilities {
    let mut all = Capabilities::none(NAME, NATIVE_BOUNDARY)
        .with(Feature::Pause, pause_support(&native.linux_host.hierarchy()));
    for (feature, by) in WALL_FEATURES {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in MISSING_FEATURES {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    for (feature, support) in limits::measure_limits(
        &native.linux_host.hierarchy(),
        process_limit_support(),
        limits::disk_by_counting(),
    ) {
        all = all.with(feature, support);
    }
    all.private_disk = Some(limits::ONE_PRIVATE_FILE_SYSTEM.into());
    limits::with_user_counts(all)
}

fn egress_support(tried: Result<(), Error>) -> Support {
    match tried {
        Ok(()) => Support::full("the agent's network helper and the engine's relay"),
        Err(error) => {
            let remedy = "let it write to `/proc/sys/net` of its own network namespace";
            Support::missing(linux::describe_error(&error), error.hint().unwrap_or(remedy))
        }
    }
}

fn overlay_support(tried: Result<(), Error>) -> Support {
    match tried {
        Ok(()) => Support::full("overlayfs in the user namespace"),
        Err(error) => {
            let remedy = "use a kernel that allows overlayfs in user namespaces (5.11 or later)";
            Support::missing(linux::describe_error(&error), error.hint().unwrap_or(remedy))
        }
    }
}

/// A layer over an image: wherever there is one over the host's root. Where that fails because the host's
/// files have no owner inside, what counts is whether the kernel makes an overlay of the user's own files, as
/// the copy-on-write workspace has shown. An image of another user is refused when it is mounted.
fn image_support(root: &Result<(), Error>, workspace: &Support) -> Support {
    match (root, workspace) {
        (Ok(()), _) => Support::full("overlayfs in the user namespace"),
        (Err(_), Support::Full { .. }) => {
            Support::full("overlayfs in the user namespace, over images of the user who runs it")
        }
        (Err(_), Support::Partial { .. } | Support::Missing { .. }) => workspace.clone(),
    }
}

fn pause_support(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().freezer {
        true => Support::full(format!("the freezer of {}", hierarchy.name())),
        false => Support::missing(
            "no control group can be frozen",
            "run it in a delegated control group (`systemd-run --user --scope -p Delegate=yes \
             stockade …`)",
        ),
    }
}

/// Where no control group counts them, the user namespace does.
fn process_limit_support() -> Support {
    match rustix::process::geteuid().is_root() {
        // The kernel does not hold root to RLIMIT_NPROC.
        true => limits::processes_by_counting(),
        false => Support::full("RLIMIT_NPROC, counted for the user namespace alone"),
    }
}
