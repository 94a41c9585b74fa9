//! What this host lets the gvisor backend enforce: measured by building a sandbox on each platform the
//! runtime has until one works.

use std::sync::Arc;

use stockade_core::{
    Boundary, Capabilities, Command, Error, ErrorCode, ExitStatus, Feature, ProcessEvent,
    SandboxId, SandboxSpec, Support,
};

use super::runsc::{Runsc, RunscPlatform};
use super::{GvisorWalls, NAME, platform};
use crate::linux::host::TEARDOWN_TIMEOUT;
use crate::linux::{self, limits};
use crate::managed::{Cancellation, WallBuilder, try_out};

const GVISOR_BOUNDARY: Boundary = Boundary::UserspaceKernel;
/// Forty programs, one after another.
const EVERYDAY_PROGRAMS: &str =
    "i=0; while [ $i -lt 40 ]; do ls -l / >/dev/null || exit 1; i=$((i+1)); done";
const INSTALL_REMEDY: &str =
    "install `runsc` (a package of that name on Debian) and put it into PATH";
const NATIVE_BACKEND_REMEDY: &str = "use the native backend";
const OTHER_BACKEND_REMEDY: &str = "choose a backend that has it";

/// Features that are there whenever the walls stand, each with what provides it.
const WALL_FEATURES: [(Feature, &str); 23] = [
    (Feature::FilesystemIsolation, "the Sentry's own file system, and a gofer for what is shown"),
    (Feature::ProcessIsolation, "the Sentry's own processes"),
    (Feature::NetworkIsolation, "the Sentry's own network stack with nothing but loopback"),
    (Feature::CompleteKill, "the agent inside, and the end of the Sentry"),
    (Feature::LoopbackNetwork, "the Sentry's own network stack"),
    (Feature::EgressAllowlist, "the agent's network helper and the engine's relay"),
    (Feature::HostImage, "read-only mounts of the host's system directories"),
    (Feature::DirectoryImage, "read-only mounts"),
    (Feature::LocalWorkspace, "a mount through the gofer"),
    (Feature::EphemeralWorkspace, "a sized file system in the sandbox's memory"),
    (Feature::ReadOnlyWorkspace, "a read-only mount, on the gofer's side too"),
    (Feature::ExtraMounts, "mounts through the gofer"),
    (Feature::HostTrees, "mounts through the gofer"),
    (Feature::WorkspacePath, "mounts through the gofer"),
    (Feature::ProcessLimit, "RLIMIT_NPROC, counted by the Sentry for this sandbox alone"),
    (Feature::WallTimeLimit, "the engine's timer"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::OpenFilesLimit, "RLIMIT_NOFILE, held by the Sentry"),
    (Feature::Stdin, "the agent"),
    (Feature::Terminal, "the agent, with terminals of the Sentry's own"),
    (Feature::Signals, "the agent"),
    (Feature::FileTransfer, "the agent, resolved step by step"),
    (Feature::Pause, "runsc pause"),
];

/// Features that are not offered, each with the reason and the remedy.
const MISSING_FEATURES: [(Feature, &str, &str); 8] = [
    (Feature::UserPerCommand, "one user is mapped into it", "choose the user for the sandbox"),
    (Feature::OciImage, "images are not unpacked by it", "unpack it and give the directory"),
    (
        Feature::NamedImage,
        "it has no store of images",
        "unpack it and give the directory, or use the docker backend with runsc as its runtime",
    ),
    (Feature::WasmImage, "it runs programs of the host's own kind", "use the wasm backend"),
    (
        Feature::CopyOnWriteRoot,
        "runsc puts a layer over the root alone, not over what is mounted into it",
        NATIVE_BACKEND_REMEDY,
    ),
    (
        Feature::CopyOnWriteImage,
        "runsc puts a layer over the root alone, not over what is mounted into it",
        NATIVE_BACKEND_REMEDY,
    ),
    (
        Feature::OverlayWorkspace,
        "runsc keeps the changes of an overlay to itself",
        "use the native backend, or a copy of the directory",
    ),
    (
        Feature::FullSnapshot,
        "runsc checkpoint ends the sandbox, and the pipe to its agent with it",
        OTHER_BACKEND_REMEDY,
    ),
];

pub(super) async fn measure_capabilities(gvisor: &Arc<GvisorWalls>) -> Capabilities {
    let Some(runsc) = gvisor.find() else {
        return Capabilities::unavailable(
            NAME,
            GVISOR_BOUNDARY,
            "runsc is not installed",
            INSTALL_REMEDY,
        );
    };
    match measure_working(gvisor, &runsc).await {
        Ok(measured) => measured,
        Err(error) => {
            let remedy = error.hint().unwrap_or("see docs/backends/gvisor.md").to_owned();
            Capabilities::unavailable(NAME, GVISOR_BOUNDARY, linux::describe_error(&error), remedy)
        }
    }
}

async fn measure_working(
    gvisor: &Arc<GvisorWalls>,
    runsc: &Runsc,
) -> stockade_core::Result<Capabilities> {
    let platform = find_working_platform(gvisor, runsc).await?;
    let mut measured = describe_features(gvisor, runsc, platform);
    measured.only_by_name = match try_everyday_programs(gvisor).await {
        // A host without them says nothing about the runtime.
        Ok(ExitStatus::Exited(0) | ExitStatus::StartFailed(_)) => None,
        Ok(ExitStatus::Lost(_)) => return Err(runtime_breaks_down(platform)),
        Ok(ExitStatus::Exited(_) | ExitStatus::Signalled(_) | ExitStatus::LimitExceeded(_))
        | Err(_) => Some("`ls` fails in it; a newer runsc may do better".into()),
    };
    Ok(measured)
}

/// Runs everyday programs in a throw-away sandbox, one after another: older runtimes refuse system calls that
/// today's C library makes, and one that was built with a newer Go than it was written for breaks down once in
/// a dozen programs.
async fn try_everyday_programs(gvisor: &Arc<GvisorWalls>) -> stockade_core::Result<ExitStatus> {
    try_out(gvisor, |gvisor, id| async move {
        let status = tokio::time::timeout(TEARDOWN_TIMEOUT, run_everyday_programs(gvisor, &id));
        status.await.unwrap_or_else(|_| Ok(ExitStatus::Exited(1)))
    })
    .await
}

async fn run_everyday_programs(
    gvisor: Arc<GvisorWalls>,
    id: &SandboxId,
) -> stockade_core::Result<ExitStatus> {
    let admitted = linux::admit_provisionally(NAME, &SandboxSpec::default())?;
    let sandbox = gvisor.build(id, &admitted, &Cancellation::default()).await?;
    let programs = Command::program(["sh", "-c", EVERYDAY_PROGRAMS]);
    let mut process = sandbox.spawn(&programs, admitted.limits()).await?;
    loop {
        match process.events.next().await {
            Some(ProcessEvent::Exit(exit)) => return Ok(exit.status),
            Some(ProcessEvent::Output(..)) => {}
            None => return Ok(ExitStatus::Lost("it ended without an exit status".into())),
        }
    }
}

fn runtime_breaks_down(platform: RunscPlatform) -> Error {
    let message = format!(
        "runsc breaks down while programs run in it, on the {} platform, which is the first that starts here",
        platform.name()
    );
    Error::new(ErrorCode::Unavailable, "detect", message)
        .backend(NAME)
        .remedy("install another version of runsc, such as the project's own release")
}

/// The platform that was found before, if it still works, or the first that does.
async fn find_working_platform(
    gvisor: &Arc<GvisorWalls>,
    runsc: &Runsc,
) -> stockade_core::Result<RunscPlatform> {
    if let Some(platform) = platform::load_platform(runsc)
        && gvisor.try_platform(platform).await.is_ok()
    {
        return Ok(platform);
    }
    gvisor.forget_platform(runsc).await;
    gvisor.find_platform(runsc).await
}

/// The walls stand: what else is there depends on the user and on the control groups.
fn describe_features(gvisor: &GvisorWalls, runsc: &Runsc, platform: RunscPlatform) -> Capabilities {
    let mut all = Capabilities::none(NAME, GVISOR_BOUNDARY)
        .with(Feature::ChosenUser, chosen_user(runsc))
        .with(Feature::FilesSnapshot, Support::full("archives made and unpacked by the agent"));
    for (feature, by) in WALL_FEATURES {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in MISSING_FEATURES {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    let by_sentry = all.support(Feature::ProcessLimit);
    let hierarchy = &gvisor.linux_host.hierarchy();
    for (feature, support) in
        limits::measure_limits(hierarchy, by_sentry.clone(), limits::disk_by_counting())
    {
        all = all.with(feature, support);
    }
    let walls = format!("the Sentry's own file system on the {} platform", platform.name());
    all.with(Feature::ProcessLimit, by_sentry)
        .with(Feature::FilesystemIsolation, Support::full(walls))
}

fn chosen_user(runsc: &Runsc) -> Support {
    match runsc.rootless {
        false => Support::full("user namespace"),
        true => Support::missing(
            "without root, runsc has one user to give, which is root by number inside",
            "run it as root, or use the native backend",
        ),
    }
}
