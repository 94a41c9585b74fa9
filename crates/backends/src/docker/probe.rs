//! What the engine behind the socket lets this backend enforce: measured by having it build a
//! sandbox, and looking at that from outside.

use stockade_core::{Backend, Capabilities, Error, Feature, SandboxSpec, Support};

use super::socket::Engine;
use super::{Docker, NAME, boundary};
use crate::linux::{self, limits};

/// What stands or falls with the walls themselves.
const WALLS: [(Feature, &str); 22] = [
    (Feature::FilesSnapshot, "archives made and unpacked by the agent"),
    (Feature::FilesystemIsolation, "the container's mounts, with a read-only root"),
    (Feature::ProcessIsolation, "the container's process namespace"),
    (Feature::NetworkIsolation, "the engine's network `none`"),
    (Feature::CompleteKill, "the end of the container"),
    (Feature::LoopbackNetwork, "the container's network namespace"),
    (Feature::HostImage, "read-only mounts of the host's system directories"),
    (Feature::DirectoryImage, "an image made of it"),
    (Feature::OciImage, "the engine's loading of archives"),
    (Feature::NamedImage, "the engine's own images"),
    (Feature::LocalWorkspace, "mount"),
    (Feature::EphemeralWorkspace, "a sized file system in memory"),
    (Feature::ReadOnlyWorkspace, "read-only mount"),
    (Feature::ExtraMounts, "mount"),
    (Feature::ChosenUser, "the container's user"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::OpenFilesLimit, "RLIMIT_NOFILE"),
    (Feature::Stdin, "the agent"),
    (Feature::Terminal, "the agent, with terminals of the container's own"),
    (Feature::Signals, "the agent"),
    (Feature::FileTransfer, "the agent, resolved by openat2"),
];

const OTHER: &str = "choose a backend that has it";

/// What it does not offer, and what does.
const ABSENT: [(Feature, &str, &str); 6] = [
    (
        Feature::CopyOnWriteRoot,
        "an image's files belong to its own users, and the host's are mounted read-only",
        "use the native backend, or an image that has all that is needed",
    ),
    (
        Feature::OverlayWorkspace,
        "engines mount no overlay for others",
        "work on a copy, which is what is done where no overlay can be had",
    ),
    (
        Feature::UserPerCommand,
        "it keeps no capability to change users",
        "choose the user for the sandbox",
    ),
    (Feature::EgressAllowlist, "it opens no network yet", "use --net none or loopback"),
    (
        Feature::WasmImage,
        "it runs programs of the host's own kind",
        "use a backend for WebAssembly",
    ),
    (Feature::FullSnapshot, "it cannot capture memory", OTHER),
];

pub(super) async fn measure(docker: &Docker) -> Capabilities {
    let boundary = boundary(&docker.inner.options);
    match trial(docker).await {
        Ok(measured) => measured,
        Err(error) => {
            let remedy = error.hint().unwrap_or("see docs/backends/docker.md").to_owned();
            Capabilities::unavailable(NAME, boundary, linux::reason(&error), remedy)
        }
    }
}

/// Builds a sandbox, reads its walls and limits back, and takes it down.
async fn trial(docker: &Docker) -> Result<Capabilities, Error> {
    let engine = docker.inner.engine().await?;
    let id = linux::trial_id();
    let admitted = linux::provisional(NAME, &SandboxSpec::default())?;
    let created = docker.create(&id, &admitted).await.map(drop);
    let group = docker.inner.running().get(&id).map(|running| running.group.is_some());
    docker.destroy(&id).await?;
    created?;
    Ok(stands(docker, engine, group.unwrap_or(false)))
}

fn stands(docker: &Docker, engine: &Engine, counted: bool) -> Capabilities {
    let mut all = Capabilities::none(NAME, boundary(&docker.inner.options))
        .with(Feature::Pause, Support::full("the engine's freezer"));
    for (feature, by) in WALLS {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in ABSENT {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    for (feature, holds) in [
        (Feature::MemoryLimit, engine.limits.memory && counted),
        (Feature::ProcessLimit, engine.limits.processes),
        (Feature::CpuRateLimit, engine.limits.cpu),
        (Feature::CpuTimeLimit, counted),
    ] {
        all = all.with(feature, limit(feature, holds));
    }
    all.with(Feature::DiskLimit, limits::disk_by_counting())
}

fn limit(feature: Feature, holds: bool) -> Support {
    match holds {
        true => Support::full("the container's control group"),
        false => Support::missing(
            "the engine sets no such limit, as without control groups",
            format!("use an engine with control groups of its own, or --without {feature}"),
        ),
    }
}
