//! What the engine behind the socket lets this backend enforce: measured by having it build a
//! sandbox, and looking at that from outside.

use std::sync::Arc;

use stockade_core::{
    Boundary, Capabilities, Error, Feature, LimitKind, Millicores, SandboxSpec, Support,
};

use super::{DockerWalls, MeasuredWalls, NAME, Purpose};
use crate::linux::{self, limits};
use crate::managed::{Cancellation, try_out};

/// Features that are there whenever the walls stand, each with what provides it.
const WALL_FEATURES: [(Feature, &str); 25] = [
    (Feature::FilesSnapshot, "archives made and unpacked by the agent"),
    (Feature::FilesystemIsolation, "the container's mounts, with a read-only root"),
    (Feature::ProcessIsolation, "the container's process namespace"),
    (Feature::NetworkIsolation, "the engine's network `none`"),
    (Feature::CompleteKill, "the end of the container"),
    (Feature::LoopbackNetwork, "the container's network namespace"),
    (Feature::EgressAllowlist, "the agent's network helper and the engine's relay"),
    (Feature::HostImage, "read-only mounts of the host's system directories"),
    (Feature::DirectoryImage, "an image made of it"),
    (Feature::OciImage, "the engine's loading of archives"),
    (Feature::NamedImage, "the engine's own images"),
    (Feature::LocalWorkspace, "mount"),
    (Feature::EphemeralWorkspace, "a sized file system in memory"),
    (Feature::ReadOnlyWorkspace, "read-only mount"),
    (Feature::ExtraMounts, "mount"),
    (Feature::HostTrees, "mount"),
    (Feature::WorkspacePath, "mount"),
    (Feature::ChosenUser, "the container's user"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::OpenFilesLimit, "RLIMIT_NOFILE"),
    (Feature::Stdin, "the agent"),
    (Feature::Terminal, "the agent, with terminals of the container's own"),
    (Feature::Signals, "the agent"),
    (Feature::FileTransfer, "the agent, resolved by openat2"),
];

const OTHER_BACKEND_REMEDY: &str = "choose a backend that has it";

/// Features that are not offered, each with the reason and the remedy.
const MISSING_FEATURES: [(Feature, &str, &str); 6] = [
    (
        Feature::CopyOnWriteRoot,
        "the host's files are mounted read-only",
        "use the native backend, or an image that has all that is needed",
    ),
    (
        Feature::CopyOnWriteImage,
        "an image's files belong to its own users",
        "use the native backend, or an image that has all that is needed",
    ),
    (
        Feature::OverlayWorkspace,
        "engines mount no overlay for others",
        "use a copy of the directory, which --overlay makes where it cannot mount an overlay",
    ),
    (
        Feature::UserPerCommand,
        "it keeps no capability to change users",
        "choose the user for the sandbox",
    ),
    (
        Feature::WasmImage,
        "it runs programs of the host's own kind",
        "use a backend for WebAssembly",
    ),
    (Feature::FullSnapshot, "it cannot capture memory", OTHER_BACKEND_REMEDY),
];

pub(super) async fn measure_capabilities(docker: &Arc<DockerWalls>) -> Capabilities {
    match inspect_container(docker).await {
        Ok(seen) => describe_features(&seen),
        Err(error) => {
            let remedy = error.hint().unwrap_or("see docs/backends/docker.md").to_owned();
            // Nothing was seen that could claim more.
            let boundary = Boundary::SharedKernel;
            Capabilities::unavailable(NAME, boundary, linux::describe_error(&error), remedy)
        }
    }
}

/// Looks at a container; and, where that has a kernel of its own, at one that is made for such a
/// kernel.
async fn inspect_container(docker: &Arc<DockerWalls>) -> Result<MeasuredWalls, Error> {
    let seen = try_sandbox(docker, Boundary::SharedKernel).await?;
    if seen.boundary == Boundary::SharedKernel {
        return Ok(seen);
    }
    try_sandbox(docker, seen.boundary).await
}

/// Builds a sandbox with every limit, reads its walls and limits back, and takes it down, even if the caller
/// gives up.
async fn try_sandbox(
    docker: &Arc<DockerWalls>,
    boundary: Boundary,
) -> Result<MeasuredWalls, Error> {
    let mut spec = SandboxSpec::default();
    spec.limits.cpu_rate = Some(Millicores(1000));
    spec.limits.open_files = Some(256);
    let admitted = linux::provisional_at(boundary, NAME, &spec)?;
    try_out(docker, |docker, id| async move {
        let trial = Cancellation::default();
        let (_, seen) = docker.build_for(Purpose::Trial, &id, &admitted, &trial).await?;
        Ok(seen)
    })
    .await
}

fn describe_features(seen: &MeasuredWalls) -> Capabilities {
    let mut all = Capabilities::none(NAME, seen.boundary)
        .with(Feature::Pause, Support::full("the engine's freezer"));
    for (feature, by) in WALL_FEATURES {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in MISSING_FEATURES {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    for (feature, kind) in [
        (Feature::MemoryLimit, LimitKind::Memory),
        (Feature::ProcessLimit, LimitKind::Processes),
        (Feature::CpuRateLimit, LimitKind::CpuRate),
        (Feature::CpuTimeLimit, LimitKind::CpuTime),
        (Feature::OpenFilesLimit, LimitKind::OpenFiles),
    ] {
        all = all.with(feature, limit_support(feature, !seen.loose.contains(&kind)));
    }
    // A freezer is one of a group's.
    if seen.loose.contains(&LimitKind::CpuTime) {
        let reason = "its containers have no control group to be frozen in";
        all = all.with(Feature::Pause, Support::missing(reason, OTHER_BACKEND_REMEDY));
    }
    if seen.one_user {
        let (reason, remedy) = ("its containers have one user", "give it ranges in /etc/subuid");
        all = all.with(Feature::ChosenUser, Support::missing(reason, remedy));
    }
    if seen.boundary != Boundary::SharedKernel {
        all = with_own_kernel(all, seen);
    }
    let all = all.with(Feature::DiskLimit, limits::disk_by_counting());
    if seen.boundary == Boundary::SharedKernel { with_gaps(all) } else { all }
}

/// What an engine's own walls let through.
fn with_gaps(all: Capabilities) -> Capabilities {
    let native = "use the native backend, or one with a kernel of its own";
    all.with_gap(
        "C-25",
        "a guest can connect to a socket on which a program of the host listens in its workspace or a mount, \
         if its user may write to it",
        native,
    )
    .with_gap(
        "C-18",
        "watches of inotify and epoll count against the container's user on the host",
        native,
    )
}

/// What is different where a container has a kernel of its own, whose end is the sandbox's.
fn with_own_kernel(all: Capabilities, seen: &MeasuredWalls) -> Capabilities {
    let by = "RLIMIT_NPROC, counted by the sandbox's own kernel for it alone";
    let paused = "an engine cannot end a paused container of such a runtime";
    let all = all
        .with(Feature::ProcessLimit, Support::full(by))
        .with(Feature::Pause, Support::missing(paused, "use the gvisor backend"));
    match seen.loose.contains(&LimitKind::Memory) {
        true => all,
        false => all.with(
            Feature::MemoryLimit,
            Support::partial(
                "the container's control group",
                "beyond it the whole sandbox ends, and the outcome does not name the limit",
                "use the gvisor backend, or --without memory-limit",
            ),
        ),
    }
}

fn limit_support(feature: Feature, holds: bool) -> Support {
    match holds {
        true if feature == Feature::OpenFilesLimit => Support::full("RLIMIT_NOFILE"),
        true => Support::full("the container's control group"),
        false => Support::missing(
            "a container was not held to one, as without control groups",
            format!("use an engine with control groups of its own, or --without {feature}"),
        ),
    }
}
