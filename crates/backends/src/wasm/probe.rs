//! What this backend enforces here: measured by running a program.

use bytes::Bytes as Data;
use stockade_core::{Boundary, Capabilities, Feature, Support};

use super::engine::EngineMode;
use super::{NAME, WasmShared};

const WASM_BOUNDARY: Boundary = Boundary::Bytecode;

/// Features that depend on the virtual machine alone.
const VM_FEATURES: [(Feature, &str); 21] = [
    (Feature::FilesystemIsolation, "no interface but WASI, with the directories it was given"),
    (Feature::ProcessIsolation, "no interface to processes"),
    (Feature::NetworkIsolation, "no interface to sockets that is not refused"),
    (Feature::CompleteKill, "a program is one thread, and ends with its instance"),
    (Feature::WasmImage, "wasmtime"),
    (Feature::LocalWorkspace, "a directory that is opened for it"),
    (Feature::EphemeralWorkspace, "a private directory"),
    (Feature::ReadOnlyWorkspace, "a directory that is opened for it to read only"),
    (Feature::ExtraMounts, "directories that are opened for it"),
    (Feature::CpuTimeLimit, "the thread's clock, at every interruption"),
    (Feature::WallTimeLimit, "the engine's timer, and interruptions"),
    (Feature::MemoryLimit, "the virtual machine, whenever memory or a table grows"),
    (Feature::DiskLimit, "counting every byte before it is written"),
    (Feature::OpenFilesLimit, "counting"),
    (Feature::OutputLimit, "the engine's count"),
    (Feature::FuelLimit, "counting instructions"),
    (Feature::Determinism, "clocks, randomness and numbers of its own"),
    (Feature::Stdin, "a queue"),
    (Feature::FileTransfer, "this process, resolved by openat2"),
    (Feature::Pause, "the next interruption"),
    (Feature::FilesSnapshot, "copies of its directories"),
];

/// Features that differ where programs run in workers: the declared difference between the two.
const WORKER_FEATURES: [(Feature, &str); 5] = [
    (Feature::FilesystemIsolation, "no interface but WASI, inside native walls"),
    (Feature::ProcessIsolation, "no interface to processes, inside native walls"),
    (Feature::NetworkIsolation, "no interface to sockets, inside native walls"),
    (Feature::CompleteKill, "the end of the worker's process"),
    (Feature::Pause, "stopping the workers"),
];

/// Features that this backend does not offer, and what to use instead.
const MISSING_FEATURES: [(Feature, &str, &str); 15] = [
    (
        Feature::HostImage,
        "the host's programs are not WebAssembly",
        "name a module with --image wasm:PATH; or, to run modules of the workspace, give it up with \
         --without host-image",
    ),
    (Feature::LoopbackNetwork, "it offers no sockets", "choose a backend that has it"),
    (Feature::EgressAllowlist, "it offers no sockets", "use --net none"),
    (Feature::DirectoryImage, "the program is its whole root", "name a module"),
    (Feature::OciImage, "the program is its whole root", "name a module"),
    (
        Feature::NamedImage,
        "modules of a registry are the engine's to provide",
        "give the engine a provider of images, or name a module with --image wasm:PATH",
    ),
    (Feature::HostTrees, "the host's programs are not WebAssembly", "leave --toolchain out"),
    (Feature::WorkspacePath, "its workspace is at /workspace", "leave --workspace-at out"),
    (Feature::OverlayWorkspace, "it mounts nothing", "choose a backend that has it"),
    (Feature::CopyOnWriteRoot, "it has no root", "use the workspace, or /tmp"),
    (Feature::CopyOnWriteImage, "it has no root", "use the workspace, or /tmp"),
    (Feature::ChosenUser, "WebAssembly knows no users", "choose a backend that has it"),
    (Feature::UserPerCommand, "WebAssembly knows no users", "choose a backend that has it"),
    (Feature::Terminal, "WASI knows no terminals", "choose a backend that has it"),
    (Feature::Signals, "WebAssembly knows no signals", "cancel it instead"),
];

/// The smallest program there is.
const EMPTY_PROGRAM: &[u8] = b"(module (func (export \"_start\")))";

/// What is there, given what was measured of the walls around the workers, if there are to be any.
pub(super) fn measure_capabilities(
    shared: &WasmShared,
    walls: Option<&Capabilities>,
    walls_may_lack: bool,
) -> Capabilities {
    let missing = walls.and_then(|walls| walls.unavailable.as_ref());
    if let Some((reason, remedy)) = missing.filter(|_| !walls_may_lack) {
        let reason = format!("no walls for its workers: {reason}");
        return Capabilities::unavailable(NAME, WASM_BOUNDARY, reason, remedy);
    }
    let walled = walls.is_some() && missing.is_none();
    let machine = shared.machines.get_or_create(EngineMode::Plain);
    let loads = machine.is_some_and(|machine| {
        shared.library.load_program(&machine, Data::from_static(EMPTY_PROGRAM).into()).is_ok()
    });
    if !loads {
        let reason = "no code can be compiled for this processor, or memory made executable";
        let remedy = "use a machine that lets programs make memory executable";
        return Capabilities::unavailable(NAME, WASM_BOUNDARY, reason, remedy);
    }
    let mut all = Capabilities::none(NAME, WASM_BOUNDARY);
    for (feature, by) in VM_FEATURES {
        all = all.with(feature, Support::full(by));
    }
    if walled {
        for (feature, by) in WORKER_FEATURES {
            all = all.with(feature, Support::full(by));
        }
    }
    for (feature, reason, remedy) in MISSING_FEATURES {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    all.with(Feature::ProcessLimit, process_limit_support())
        .with(Feature::CpuRateLimit, cpu_rate())
        .with(Feature::FullSnapshot, full_snapshot())
}

fn process_limit_support() -> Support {
    Support::partial(
        "a program is one thread and can start no other",
        "commands that are started from outside are not counted",
        "start fewer at once, or keep it as far as it goes with --without process-limit",
    )
}

fn cpu_rate() -> Support {
    Support::missing(
        "a program has its thread to itself",
        "limit its CPU time, or choose another backend",
    )
}

fn full_snapshot() -> Support {
    Support::partial(
        "capturing an instance between two calls",
        "a program that runs cannot be captured",
        "use the call interface, whose instances can be",
    )
}
