//! The one place that names every backend.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade_backends::docker::{self, Docker, Progress};
use stockade_backends::gvisor::{self, Gvisor};
use stockade_backends::landlock::{self, Landlock};
use stockade_backends::microvm::{self, Microvm};
use stockade_backends::mock::{self, Mock, Script, Step};
use stockade_backends::native::{self, Native};
use stockade_backends::ssh::Ssh;
#[cfg(feature = "wasm")]
use stockade_backends::wasm::{self, Wasm, Worker};
use stockade_core::{Backend, BackendChoice, BackendName, Error, ErrorCode, Result, clean_foreign};
use stockade_engine::{Engine, EngineConfig};

use crate::absent::absent_error;
use crate::config::Settings;
use crate::daemon;

/// The argument by which this program knows that it is to be a worker of the wasm backend.
#[cfg(feature = "wasm")]
pub const WASM_WORKER: &str = "wasm-worker";

/// How often it is reported that an image is still on its way.
const BETWEEN_NEWS: Duration = Duration::from_secs(1);

/// Whether WebAssembly runs in workers inside native walls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Where walls are to be had.
    #[default]
    Usual,
    /// Always, or not at all.
    Demanded,
    /// In this process.
    Declined,
}

/// Every backend that builds walls, the usual one first.
pub fn build_real_backends(settings: &Settings, choice: &BackendChoice) -> Vec<Arc<dyn Backend>> {
    real_with(Native::new(), Isolation::Usual, None, settings, choice)
}

/// `cache` is where the wasm backend keeps compiled code.
fn real_with(
    native: Native,
    isolation: Isolation,
    cache: Option<&Path>,
    settings: &Settings,
    choice: &BackendChoice,
) -> Vec<Arc<dyn Backend>> {
    #[cfg(not(feature = "wasm"))]
    let _ = (isolation, cache);
    // Only a caller who has asked for machines waits until the first is made.
    let prepare = matches!(choice, BackendChoice::Named(name) if *name == microvm::NAME);
    vec![
        Arc::new(native),
        Arc::new(Docker::new(settings.docker(), progress_reporter(BETWEEN_NEWS))),
        Arc::new(Gvisor::new()),
        Arc::new(Landlock::new()),
        #[cfg(feature = "wasm")]
        Arc::new(build_wasm_backend(cache, isolation)),
        Arc::new(Ssh::new(settings.hosts())),
        Arc::new(Microvm::with_progress(
            microvm::Options { prepare, ..settings.microvm() },
            progress_reporter(Duration::ZERO),
        )),
    ]
}

/// Tells a person at a terminal how far something is, with this much time between two lines.
fn progress_reporter(interval: Duration) -> Progress {
    let last = Mutex::new(None::<Instant>);
    Arc::new(move |line| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= interval);
        if due && std::io::stderr().is_terminal() {
            *last = Some(Instant::now());
            let line: String = clean_foreign(line).chars().take(160).collect();
            let _ = writeln!(std::io::stderr(), "stockade: {line}");
        }
    })
}

/// The wasm backend, with compiled code kept below the state directory.
#[cfg(feature = "wasm")]
pub fn build_wasm_backend(state: Option<&Path>, isolation: Isolation) -> Wasm {
    let settings = wasm::Settings::default();
    let settings = match state {
        Some(state) => settings.cached(&state.join("wasm")),
        None => settings,
    };
    let worker = std::env::current_exe().ok();
    let worker = worker.map(|program| Worker { program, role: vec![WASM_WORKER.into()] });
    Wasm::new(match (worker, isolation) {
        (Some(worker), Isolation::Usual) => settings.isolated_if_possible(worker),
        (Some(worker), Isolation::Demanded) => settings.isolated(worker),
        (None, _) | (Some(_), Isolation::Declined) => settings,
    })
}

/// Backend that runs WebAssembly.
pub const WASM_BACKEND: BackendName = BackendName::literal("wasm");

/// Whether the programs of one are WebAssembly, which the kit has to know.
pub fn runs_wasm(name: &BackendName) -> bool {
    *name == WASM_BACKEND
}

/// Whether programs of this host may run there, so that its toolchains are worth looking for.
pub fn shows_trees(choice: &BackendChoice) -> bool {
    match choice {
        BackendChoice::Auto => true,
        BackendChoice::Named(name) => {
            [native::NAME, docker::NAME, gvisor::NAME, landlock::NAME].contains(name)
        }
    }
}

/// Whether the sandboxes of one have namespaces of their own, which the kit has to know.
#[cfg(feature = "tck")]
pub fn has_namespaces(name: &BackendName) -> bool {
    *name != stockade_backends::landlock::NAME
}

/// How long a whole `stockade run -- true` took on one two-core machine, once everything was prepared. An
/// order of magnitude and not measured on this host; `-` where there is no figure yet.
pub fn typical_start(name: &BackendName) -> &'static str {
    match name.as_str() {
        "native" => "10 ms",
        "ssh" => "0.15 s",
        "docker" => "0.4 s",
        "microvm" => "0.7 s",
        _ => "-",
    }
}

/// One of them by name.
#[cfg(feature = "tck")]
pub fn find_backend(settings: &Settings, name: &BackendName) -> Result<Arc<dyn Backend>> {
    let all = build_real_backends(settings, &BackendChoice::Named(name.clone()));
    let named = all.iter().find(|backend| backend.name() == *name).cloned();
    named.ok_or_else(|| unknown_backend_error(name, &all))
}

/// An engine with every backend there is. What dead ones left is gone when it is open.
pub async fn engine(settings: &Settings, choice: &BackendChoice) -> Result<Engine> {
    engine_with(Native::new(), Isolation::Usual, settings, choice).await
}

/// The same with a native backend that is at hand.
pub async fn engine_with(
    native: Native,
    isolation: Isolation,
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Engine> {
    open_engine(settings.engine()?, native, isolation, settings, choice).await
}

/// An engine of a sandbox that outlives the command: what runs in it is read later.
pub async fn lasting_engine(settings: &Settings, choice: &BackendChoice) -> Result<Engine> {
    let config = EngineConfig { keep_output: true, ..settings.engine()? };
    open_engine(config, Native::new(), Isolation::Usual, settings, choice).await
}

async fn open_engine(
    config: EngineConfig,
    native: Native,
    isolation: Isolation,
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Engine> {
    let state = settings.state_dir()?;
    let backends =
        complete_backends(real_with(native, isolation, Some(&state), settings, choice), choice)?;
    let engine = Engine::open(config, backends).await?;
    daemon::sweep_sockets(&state);
    Ok(engine)
}

/// Every backend there is. The mock is there only for who names it: it has no walls.
pub fn build_backends(
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Vec<Arc<dyn Backend>>> {
    complete_backends(build_real_backends(settings, choice), choice)
}

fn complete_backends(
    mut backends: Vec<Arc<dyn Backend>>,
    choice: &BackendChoice,
) -> Result<Vec<Arc<dyn Backend>>> {
    if matches!(choice, BackendChoice::Named(name) if *name == mock::NAME) {
        backends.push(Arc::new(build_mock()));
    }
    if let BackendChoice::Named(name) = choice
        && !backends.iter().any(|backend| backend.name() == *name)
    {
        return Err(unknown_backend_error(name, &backends));
    }
    Ok(backends)
}

fn unknown_backend_error(name: &BackendName, known: &[Arc<dyn Backend>]) -> Error {
    if *name == WASM_BACKEND {
        return absent_error("--backend", "WebAssembly backend");
    }
    let known: Vec<_> = known.iter().map(|backend| backend.name().to_string()).collect();
    let remedy = backend_hint(name.as_str())
        .map_or_else(|| format!("choose one of: auto, {}", known.join(", ")), str::to_owned);
    Error::new(ErrorCode::NotFound, "--backend", format!("there is no backend `{name}`"))
        .remedy(remedy)
}

/// What to say instead of the name of a program that a backend uses.
fn backend_hint(name: &str) -> Option<&'static str> {
    Some(match name {
        "firecracker" => {
            "use --backend microvm, with a table [microvm.firecracker] in the configuration: see \
             docs/backends/firecracker.md"
        }
        "qemu" | "kvm" | "vm" => "use --backend microvm, which runs QEMU",
        "podman" => "use --backend docker, which takes Podman's socket too",
        "runsc" => "use --backend gvisor",
        "bwrap" | "bubblewrap" | "namespaces" => "use --backend native",
        _ => return None,
    })
}

fn build_mock() -> Mock {
    Mock::new()
        .with_program("true", Script::default())
        .with_program("cat", Script(vec![Step::Echo]))
        .with_program("sleep", Script(vec![Step::Sleep(Duration::MAX / 4)]))
}
