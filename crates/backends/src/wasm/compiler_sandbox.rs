//! Compiling inside native walls: a throw-away sandbox with nothing in it but the compiler, which gets a
//! module and answers with code. The code is kept under this user's key, apart from what was compiled
//! in a process of the user's own, and only ever given to workers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes as Data;
use stockade_core::{
    Backend, Bytes, Command, Error, ErrorCode, ExitStatus, HostPath, Limits, Mount, Network,
    Process, ProcessControl, ProcessEvent, ProcessEvents, Result, Sandbox, SandboxId, SandboxSpec,
    Span, StartFailure, Stdin, StreamId,
};
use tokio::sync::{Semaphore, oneshot};

use super::cache::Cache;
use super::check::UnfitProgram;
use super::engine::EngineMode;
use super::process::PresenceGuard;
use super::program::ProgramBytes;
use super::report::{WORKER_DIR, WorkerMode};
use super::{NAME, find, worker};
use crate::linux;
use crate::native::Native;

/// Memory limit of one compilation.
const COMPILE_MEMORY_LIMIT: Bytes = Bytes(4 << 30);
/// Processor time limit of one compilation.
const COMPILE_CPU_LIMIT: Span = Span::secs(240);
/// Wall-clock timeout of one compilation: for one that hangs. What a busy machine takes is no reason to end it,
/// since its processor time is limited.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Compilers at once, where there are that many processors.
const MAX_COMPILERS: usize = 4;
/// Most code that is read from a compiler.
const MAX_CODE_BYTES: usize = 500 << 20;
/// Most bytes of a compiler's diagnostics that are kept.
const MAX_DIAGNOSTIC_BYTES: usize = 4096;

/// A program that takes the worker's part: itself, and the arguments by which it knows.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The executable.
    pub program: PathBuf,
    /// Its first arguments; those of [`super::worker`] follow.
    pub role: Vec<String>,
}

impl Worker {
    /// The command that makes it do something.
    pub(super) fn build_command(&self, args: impl IntoIterator<Item = String>) -> Command {
        let program = format!("{WORKER_DIR}/worker");
        Command::program([program].into_iter().chain(self.role.iter().cloned()).chain(args))
    }

    /// The executable where the command expects it.
    pub(super) fn program_mount(&self) -> Result<Mount> {
        build_mount(self.program.clone(), "worker", true)
    }
}

/// Something of the host in the worker's own directory.
pub(super) fn build_mount(source: PathBuf, name: &str, read_only: bool) -> Result<Mount> {
    let wrong = |message: String| Error::new(ErrorCode::Invalid, "create", message).backend(NAME);
    let source = HostPath::try_from(source).map_err(|error| wrong(error.to_string()))?;
    let target =
        format!("{WORKER_DIR}/{name}").parse().map_err(|error| wrong(format!("{error}")))?;
    Ok(Mount { source, target, read_only })
}

/// Native walls, and who works in them.
pub(super) struct WorkerWalls {
    pub native: Arc<Native>,
    pub worker: Worker,
    /// One for each compiler that may work at once.
    compilers: Arc<Semaphore>,
}

impl WorkerWalls {
    pub(super) fn new(worker: Worker) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let compilers = Arc::new(Semaphore::new(cores.min(MAX_COMPILERS)));
        Self { native: Arc::new(Native::new()), worker, compilers }
    }
}

/// What is to be compiled.
pub(super) struct ProgramSource<'a> {
    pub mode: EngineMode,
    pub name: &'a str,
    pub given: ProgramBytes,
    /// Held until nothing of its compiler is left.
    pub present: PresenceGuard,
}

/// The code of a module, from the cache or the compiler.
pub(super) async fn load_or_compile(
    walls: &Arc<WorkerWalls>,
    cache: &Cache,
    machine: &str,
    source: ProgramSource<'_>,
) -> Result<Vec<u8>, StartFailure> {
    let ProgramSource { mode, name, given: ProgramBytes { bytes, hash }, present } = source;
    let key = format!("walled-{machine}");
    if let Some(code) = cache.load_entry(&key, &hash) {
        return Ok(code.into_bytes());
    }
    let failed = |error: Error| StartFailure::NoResources(format!("cannot be compiled: {error}"));
    let code = compile_program(walls, mode, bytes, present).await.map_err(failed)?;
    let code = code.map_err(|unfit| find::to_start_failure(name, &unfit))?;
    let kept = cache.store_entry(&key, &hash, &code);
    kept.map_err(|error| StartFailure::NoResources(format!("its code cannot be kept: {error}")))?;
    Ok(code)
}

fn compiler_gone() -> Error {
    Error::new(ErrorCode::System, "compile", "the compiler is gone").backend(NAME)
}

/// Has a module compiled. If the caller gives up, its compiler is ended, by a task of its own, so that
/// nothing is left (C-32).
async fn compile_program(
    walls: &Arc<WorkerWalls>,
    mode: EngineMode,
    bytes: Data,
    present: PresenceGuard,
) -> Result<Result<Vec<u8>, UnfitProgram>> {
    let turn = Arc::clone(&walls.compilers).acquire_owned().await.map_err(|_| compiler_gone())?;
    let walls = Arc::clone(walls);
    let (wanted, forsaken) = oneshot::channel::<()>();
    let compiling = tokio::spawn(async move {
        let id = linux::trial_id();
        let compiled = tokio::select! {
            biased;
            _ = forsaken => Err(compiler_gone()),
            compiled = compile_in_walls(&walls, &id, mode, bytes) => compiled,
        };
        let destroyed = walls.native.destroy(&id).await;
        drop((turn, present));
        destroyed.and(compiled)
    });
    let compiled = compiling.await.map_err(|_| compiler_gone());
    drop(wanted);
    compiled?
}

async fn compile_in_walls(
    walls: &WorkerWalls,
    id: &SandboxId,
    mode: EngineMode,
    bytes: Data,
) -> Result<Result<Vec<u8>, UnfitProgram>> {
    let spec = SandboxSpec {
        mounts: vec![walls.worker.program_mount()?],
        limits: Limits { memory: Some(COMPILE_MEMORY_LIMIT), ..Limits::default() },
        network: Network::None,
        ..SandboxSpec::default()
    };
    let sandbox = walls.native.create(id, &linux::admit_provisionally(NAME, &spec)?).await?;
    request_compilation(sandbox.as_ref(), &walls.worker, mode, bytes).await
}

async fn request_compilation(
    sandbox: &dyn Sandbox,
    worker: &Worker,
    mode: EngineMode,
    bytes: Data,
) -> Result<Result<Vec<u8>, UnfitProgram>> {
    let way = serde_json::to_value(WorkerMode::from(mode)).ok();
    let way = way.as_ref().and_then(|way| way.as_str()).unwrap_or_default().to_owned();
    let mut command = worker.build_command(["compile".into(), way]);
    command.stdin = Stdin::Stream;
    let limits = Limits { cpu_time: Some(COMPILE_CPU_LIMIT), ..Limits::defaults() };
    let Process { mut events, control } = sandbox.spawn(&command, &limits).await?;
    let answer = tokio::time::timeout(COMPILE_TIMEOUT, async {
        tokio::join!(feed_stdin(control.as_ref(), bytes), collect_output(events.as_mut())).1
    });
    let Ok((status, said)) = answer.await else {
        return Ok(Err(UnfitProgram::TooMuch("takes too long to compile".into())));
    };
    let complaint =
        || String::from_utf8_lossy(&said[..said.len().min(MAX_DIAGNOSTIC_BYTES)]).into_owned();
    match status {
        ExitStatus::Exited(0) if said.len() <= MAX_CODE_BYTES => Ok(Ok(said)),
        ExitStatus::Exited(worker::EXIT_MALFORMED) => Ok(Err(UnfitProgram::Malformed(complaint()))),
        ExitStatus::Exited(worker::EXIT_TOO_MUCH) => Ok(Err(UnfitProgram::TooMuch(complaint()))),
        ExitStatus::LimitExceeded(limit) => {
            Ok(Err(UnfitProgram::TooMuch(format!("takes more {limit} to compile than it may"))))
        }
        status @ (ExitStatus::Exited(_)
        | ExitStatus::Signalled(_)
        | ExitStatus::StartFailed(_)
        | ExitStatus::Lost(_)) => {
            let message = format!("the compiler ended unexpectedly: {status:?}");
            Err(Error::new(ErrorCode::System, "compile", message).backend(NAME))
        }
    }
}

async fn feed_stdin(control: &dyn ProcessControl, bytes: Data) {
    // One that does not read everything says why.
    let _ = control.write_stdin(bytes).await;
    let _ = control.close_stdin().await;
}

async fn collect_output(events: &mut dyn ProcessEvents) -> (ExitStatus, Vec<u8>) {
    let mut said = Vec::new();
    loop {
        match events.next().await {
            Some(ProcessEvent::Output(StreamId::Stdout, data)) if said.len() <= MAX_CODE_BYTES => {
                said.extend_from_slice(&data);
            }
            Some(ProcessEvent::Output(..)) => {}
            Some(ProcessEvent::Exit(exit)) => return (exit.status, said),
            None => return (ExitStatus::Lost("no exit".into()), said),
        }
    }
}
