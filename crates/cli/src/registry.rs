//! The backends as the command line has them: where progress is shown, which program is a worker, and
//! what its errors call a flag. Which backends there are is in the library's registry.

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use stockade::backend::{BuildContext, Progress, WorkerProgram};
use stockade::images::Images;
use stockade::registry;
use stockade_backends::native::{self, Native};
#[cfg(feature = "wasm")]
use stockade_backends::wasm::{self, Wasm};
use stockade_core::{Backend, BackendChoice, BackendName, Error, ErrorCode, Result, clean_foreign};
use stockade_engine::{Engine, EngineConfig, HistoryBounds};

use crate::absent::absent_error;
use crate::config::Settings;
use crate::daemon;
use crate::terminal::pull_bar::PullBar;

pub use stockade::backend::Isolation;

/// The argument by which this program knows that it is to be a worker of the wasm backend.
#[cfg(feature = "wasm")]
pub const WASM_WORKER: &str = "wasm-worker";

const BACKEND_FLAG: &str = "--backend";

/// Every backend that builds walls, the usual one first.
#[cfg(feature = "tck")]
pub fn build_real_backends(
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Vec<Arc<dyn Backend>>> {
    let mut built = build_backends(settings, choice)?;
    built.retain(|backend| {
        registry::find_factory(&backend.name()).is_some_and(|factory| !factory.only_by_name)
    });
    Ok(built)
}

/// Every backend there is. The mock is there only for who names it: it has no walls.
pub fn build_backends(
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Vec<Arc<dyn Backend>>> {
    build_with(settings, choice, &build_context(Isolation::Usual))
}

fn build_with(
    settings: &Settings,
    choice: &BackendChoice,
    context: &BuildContext,
) -> Result<Vec<Arc<dyn Backend>>> {
    registry::build_backends(settings, choice, context).map_err(|error| match choice {
        BackendChoice::Named(name) => name_flag(name, error),
        BackendChoice::Auto => error,
    })
}

fn build_context(isolation: Isolation) -> BuildContext {
    #[cfg(feature = "wasm")]
    let worker = std::env::current_exe().ok();
    #[cfg(feature = "wasm")]
    let worker = worker.map(|program| WorkerProgram { program, role: vec![WASM_WORKER.into()] });
    #[cfg(not(feature = "wasm"))]
    let worker = None::<WorkerProgram>;
    BuildContext { isolation, worker, progress: progress_reporter(), ..BuildContext::default() }
}

/// Tells a person at a terminal how far something is.
fn progress_reporter() -> Progress {
    Arc::new(|line| {
        if std::io::stderr().is_terminal() {
            let line: String = clean_foreign(line).chars().take(160).collect();
            let _ = writeln!(std::io::stderr(), "stockade: {line}");
        }
    })
}

/// The wasm backend, running programs in this process and keeping no compiled code.
#[cfg(feature = "wasm")]
pub fn build_wasm_backend() -> Wasm {
    Wasm::new(wasm::WasmSettings::default())
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
            registry::find_factory(name).is_some_and(|factory| factory.shows_host)
        }
    }
}

/// Whether the sandboxes of one have namespaces of their own, which the kit has to know.
#[cfg(feature = "tck")]
pub fn has_namespaces(name: &BackendName) -> bool {
    registry::find_factory(name).is_none_or(|factory| factory.namespaces)
}

/// How long a whole `stockade run -- true` took on one two-core machine, once everything was prepared. An
/// order of magnitude and not measured on this host; `-` where there is no figure yet.
pub fn typical_start(name: &BackendName) -> &'static str {
    registry::find_factory(name).and_then(|factory| factory.typical_start).unwrap_or("-")
}

/// One of them by name.
#[cfg(feature = "tck")]
pub fn find_backend(settings: &Settings, name: &BackendName) -> Result<Arc<dyn Backend>> {
    let all = build_real_backends(settings, &BackendChoice::Named(name.clone()))?;
    let named = all.iter().find(|backend| backend.name() == *name).cloned();
    named.ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|backend| backend.name().to_string()).collect();
        Error::new(ErrorCode::NotFound, BACKEND_FLAG, format!("there is no backend `{name}`"))
            .remedy(format!("choose one of: auto, {}", known.join(", ")))
    })
}

/// An engine with every backend there is. What dead ones left is gone when it is open.
pub async fn engine(settings: &Settings, choice: &BackendChoice) -> Result<Engine> {
    open_engine(settings.engine()?, None, Isolation::Usual, settings, choice).await
}

/// The same with a native backend that is at hand.
pub async fn engine_with(
    native: Native,
    isolation: Isolation,
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Engine> {
    open_engine(settings.engine()?, Some(native), isolation, settings, choice).await
}

/// An engine of a sandbox that outlives the command, with a native backend that is at hand: what runs in it is read later.
pub async fn persistent_engine(
    native: Native,
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Engine> {
    let config = EngineConfig { keep_output: true, ..settings.engine()? };
    open_engine(config, Some(native), Isolation::Usual, settings, choice).await
}

/// An engine of the daemon: many executions are remembered, so each keeps little in memory; all of it is on disk.
pub async fn serving_engine(settings: &Settings, choice: &BackendChoice) -> Result<Engine> {
    const SERVED_HISTORY: HistoryBounds = HistoryBounds { events: 4096, bytes: 1 << 20 };
    let config = EngineConfig { keep_output: true, history: SERVED_HISTORY, ..settings.engine()? };
    open_engine(config, None, Isolation::Usual, settings, choice).await
}

async fn open_engine(
    config: EngineConfig,
    at_hand: Option<Native>,
    isolation: Isolation,
    settings: &Settings,
    choice: &BackendChoice,
) -> Result<Engine> {
    let state = settings.state_dir()?;
    let context = BuildContext { state_dir: Some(state.clone()), ..build_context(isolation) };
    let mut backends = build_with(settings, choice, &context)?;
    if let Some(at_hand) = at_hand
        && let Some(native) = backends.iter_mut().find(|backend| backend.name() == native::NAME)
    {
        *native = Arc::new(at_hand);
    }
    let images = Some(Images::new(settings)?.provider(Arc::new(PullBar::default())));
    let engine = Engine::open(EngineConfig { images, ..config }, backends).await?;
    daemon::sweep_sockets(&state);
    Ok(engine)
}

/// The error about a backend that was named, as the command line says it.
fn name_flag(name: &BackendName, error: Error) -> Error {
    if error.code() == ErrorCode::Unavailable && *name == WASM_BACKEND {
        return absent_error(BACKEND_FLAG, "WebAssembly backend");
    }
    if error.code() != ErrorCode::NotFound {
        return error;
    }
    let told = Error::new(error.code(), BACKEND_FLAG, error.message());
    match backend_hint(name.as_str()).or(error.hint()) {
        Some(remedy) => told.remedy(remedy),
        None => told,
    }
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
