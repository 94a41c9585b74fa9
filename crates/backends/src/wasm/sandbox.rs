//! A sandbox whose programs run in this process.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Command, EffectiveLimits, Error, ErrorCode, ExitStatus, Files, Process, Result, Sandbox,
    SandboxId, Signal, SnapshotFiles, SnapshotKind, StartFailure, Stdin, StreamId,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use wasmtime_wasi::WasiCtxBuilder;

use super::NAME;
use super::engine::{EngineMode, WasmMachine};
use super::executor::ProgramThread;
use super::find::{self, StartDir};
use super::preopens::{Preopen, Preopens};
use super::process::{self, PresenceGuard, ProcessInside, ProgramHandle};
use super::program::{LoadedProgram, ProgramBytes};
use super::run::{self, ProgramJob};
use super::sandbox_parts::{WasmSandboxParts, build_environment};
use super::streams::{EventOutlet, Inlet};
use super::tree::GuestPlace;
use crate::linux::running::left_behind;

/// How long a program may take to end that was told to; compiling cannot be interrupted.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// Poll interval for the existence of a program's sandbox.
const SANDBOX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Largest program that is instantiated on its caller's thread.
const INLINE_PROGRAM_BYTES: usize = 1 << 20;

/// The programs of a sandbox that have not ended.
#[derive(Default)]
pub(super) struct ProgramHandles {
    running: Mutex<Vec<ProgramHandle>>,
    ended: AtomicBool,
}

impl ProgramHandles {
    fn lock(&self) -> MutexGuard<'_, Vec<ProgramHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes one that is about to start; fails where the sandbox has ended.
    pub(super) fn add_handle(&self, id: &SandboxId, handle: ProgramHandle) -> Result<()> {
        let mut running = self.lock();
        running.retain(|handle| !handle.is_gone());
        running.push(handle);
        drop(running);
        // Checked after the handle was added: a concurrent end finds the handle, or this finds the end.
        if self.ended.load(Ordering::SeqCst) {
            let message = format!("the sandbox `{id}` has ended");
            return Err(Error::new(ErrorCode::Gone, "spawn", message).backend(NAME));
        }
        Ok(())
    }

    /// Ends every program and waits until they are gone (C-30).
    pub(super) async fn end_all(&self, id: &SandboxId) -> Result<()> {
        self.end_within(END_DEADLINE, id).await
    }

    async fn end_within(&self, deadline: Duration, id: &SandboxId) -> Result<()> {
        self.ended.store(true, Ordering::SeqCst);
        // Handles stay listed until they are gone: a second caller must not be told that nothing is left.
        let running = self.lock().clone();
        running.iter().for_each(ProgramHandle::kill_program);
        let all = async {
            for handle in running {
                handle.wait_until_gone().await;
            }
        };
        let ended = tokio::time::timeout(deadline, all).await;
        self.lock().retain(|handle| !handle.is_gone());
        ended.map_err(|_| left_behind(&NAME, id, "a program does not end"))
    }
}

/// A sandbox in this process.
pub(super) struct WasmSandbox {
    body: Arc<WasmSandboxParts>,
    programs: ProgramHandles,
}

impl WasmSandbox {
    pub(super) fn new(body: WasmSandboxParts) -> Self {
        Self { body: Arc::new(body), programs: ProgramHandles::default() }
    }

    pub(super) async fn end_programs(&self) -> Result<()> {
        self.body.account.set_paused(false);
        self.programs.end_all(&self.body.id).await
    }
}

#[async_trait]
impl Sandbox for WasmSandbox {
    fn id(&self) -> &SandboxId {
        &self.body.id
    }

    fn alive(&self) -> bool {
        !self.programs.ended.load(Ordering::SeqCst)
    }

    fn is_paused(&self) -> bool {
        self.body.account.is_paused()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (process, inside, handle) = process::create_process(command.stdin != Stdin::None);
        self.programs.add_handle(&self.body.id, handle)?;
        let thread = ProgramThread::callers();
        let plan = ProgramPlan {
            body: Arc::clone(&self.body),
            command: command.clone(),
            limits: *limits,
            thread: Arc::clone(&thread),
        };
        let begun = self.body.shared.threads.begin_course(thread, Box::pin(plan.run_plan(inside)));
        begun.map_err(|error| {
            Error::new(ErrorCode::System, "spawn", "no thread for it").backend(NAME).source(error)
        })?;
        Ok(process)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.body.files)
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.body.write_snapshot(kind, into).await
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        self.body.restore_snapshot(from).await
    }

    async fn pause(&self) -> Result<()> {
        self.body.account.set_paused(true);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.body.account.set_paused(false);
        Ok(())
    }
}

/// One program that is about to run.
struct ProgramPlan {
    body: Arc<WasmSandboxParts>,
    command: Command,
    limits: EffectiveLimits,
    thread: Arc<ProgramThread>,
}

struct PreparedProgram {
    machine: Arc<WasmMachine>,
    program: Arc<LoadedProgram>,
    job: ProgramJob,
}

impl ProgramPlan {
    /// Finds, loads and runs the program, and says how it ended.
    async fn run_plan(self, inside: ProcessInside) {
        let ProcessInside { events, input, exit, mut killed, present } = inside;
        let streams = move |builder: &mut WasiCtxBuilder| {
            builder.stdout(EventOutlet::new(events.clone(), StreamId::Stdout));
            builder.stderr(EventOutlet::new(events, StreamId::Stderr));
            if let Some(input) = input {
                builder.stdin(Inlet::new(input));
            }
        };
        let prepared = tokio::select! {
            biased;
            prepared = self.prepare_job(Box::new(streams), &present) => Some(prepared),
            _ = killed.wait_for(|killed| *killed) => None,
        };
        let ended = match prepared {
            Some(Ok(PreparedProgram { machine, program, job })) => {
                let ended = async move {
                    // Before that it cannot go on for long.
                    self.thread.wait_for_own_thread().await;
                    tokio::select! {
                        // An error means that no handle is left to end it: then it must not go on either.
                        _ = killed.wait_for(|killed| *killed) => ExitStatus::Signalled(Signal::KILL),
                        status = wait_until_removed(&self.body.tree.private) => status,
                    }
                };
                run::run_program(&machine, &program, job, ended).await
            }
            Some(Err(failure)) => ExitStatus::StartFailed(failure).into(),
            None => ExitStatus::Signalled(Signal::KILL).into(),
        };
        // A send error means that no caller waits for it.
        let _ = exit.send(ended);
        drop(present);
    }

    async fn prepare_job(
        &self,
        streams: Box<dyn FnOnce(&mut WasiCtxBuilder) + Send>,
        present: &PresenceGuard,
    ) -> Result<PreparedProgram, StartFailure> {
        let body = &self.body;
        let start = find::resolve_start_dir(&body.tree, &self.command)?;
        let preopens = self.build_preopens(&start)?;
        let argv = self.command.argv();
        let name = argv.first().map_or("", String::as_str);
        let (machine, program) = match self.find_warm_program(name) {
            Some(found) => found,
            None => {
                self.thread.wait_for_own_thread().await;
                self.load_program(&start, name, present).await?
            }
        };
        let job = ProgramJob {
            env: build_environment(&self.command.env),
            argv,
            preopens,
            limits: self.limits,
            account: Arc::clone(&body.account),
            thread: Arc::clone(&self.thread),
            streams,
        };
        Ok(PreparedProgram { machine, program, job })
    }

    fn mode(&self) -> EngineMode {
        EngineMode::of(self.body.deterministic, self.limits.fuel)
    }

    /// A program that begins at once: known, small, and a module. A component's calls say nothing
    /// about how long they take.
    fn find_warm_program(&self, name: &str) -> Option<(Arc<WasmMachine>, Arc<LoadedProgram>)> {
        let shared = &self.body.shared;
        let known = shared.modules.get(name).filter(|_| !name.contains('/'))?;
        if known.bytes.len() > INLINE_PROGRAM_BYTES {
            return None;
        }
        let program = shared.library.recall_program(self.mode(), &known.hash)?;
        let machine = shared.machines.get_or_create(self.mode())?;
        matches!(*program, LoadedProgram::Core(_)).then_some((machine, program))
    }

    async fn load_program(
        &self,
        start: &StartDir<'_>,
        name: &str,
        present: &PresenceGuard,
    ) -> Result<(Arc<WasmMachine>, Arc<LoadedProgram>), StartFailure> {
        let shared = &self.body.shared;
        let bytes = self.body.read_program(start, name)?;
        let unsuited = || StartFailure::NoResources("this machine cannot run WebAssembly".into());
        let machine = shared.machines.get_or_create(self.mode()).ok_or_else(unsuited)?;
        let program = match shared.library.recall_program(self.mode(), &bytes.hash) {
            Some(program) => program,
            None => self.compile_apart(&machine, bytes, name, present).await?,
        };
        Ok((machine, program))
    }

    /// Compiles on another thread, since the compiler cannot be interrupted: a program that is killed meanwhile
    /// reports its exit at once. `present` is held until the compiler returns, so that destroying waits for it.
    async fn compile_apart(
        &self,
        machine: &Arc<WasmMachine>,
        bytes: ProgramBytes,
        name: &str,
        present: &PresenceGuard,
    ) -> Result<Arc<LoadedProgram>, StartFailure> {
        let (done, compiled) = oneshot::channel();
        let (machine, present) = (Arc::clone(machine), present.clone());
        let body = Arc::clone(&self.body);
        let compile = move |_: &Runtime| {
            // A send error means that it was ended meanwhile.
            let _ = done.send(body.shared.library.load_program(&machine, bytes));
            drop(present);
        };
        let lacking = |why: String| StartFailure::NoResources(why);
        self.body.shared.threads.run_task(compile).map_err(|error| lacking(error.to_string()))?;
        let program = compiled.await.map_err(|_| lacking("the compiler panicked".into()))?;
        program.map_err(|unfit| find::to_start_failure(name, &unfit))
    }

    /// The directories it is given: opened once for all that start where most do.
    fn build_preopens(&self, start: &StartDir<'_>) -> Result<Preopens, StartFailure> {
        let usual = start.is_usual(&self.body.tree).then_some(&self.body.usual);
        if let Some(preopens) = usual.and_then(OnceLock::get) {
            return Ok(preopens.clone());
        }
        let preopens = Preopens::of(&self.open_dirs(start)?)
            .map_err(|error| StartFailure::NoResources(run::shorten_error(&error)))?;
        Ok(match usual {
            Some(usual) => usual.get_or_init(|| preopens).clone(),
            None => preopens,
        })
    }

    fn open_dirs(&self, start: &StartDir<'_>) -> Result<Vec<Preopen>, StartFailure> {
        let preopen = |place: &GuestPlace| Preopen {
            dir: Arc::clone(&place.dir),
            at: place.at.clone(),
            read_only: place.read_only,
        };
        let dir = Arc::new(start.open_dir(&self.command)?);
        let mut preopens: Vec<_> = self.body.tree.places.iter().map(preopen).collect();
        // Last: of two that fit a relative path alike, programs take the one they saw later.
        preopens.push(Preopen { dir, at: ".".into(), read_only: start.place.read_only });
        Ok(preopens)
    }
}

/// Waits until a process that has no handle removes the sandbox, which it does by its files.
async fn wait_until_removed(private: &Path) -> ExitStatus {
    loop {
        tokio::time::sleep(SANDBOX_POLL_INTERVAL).await;
        if !private.exists() {
            return ExitStatus::Lost("its sandbox was removed".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use stockade_core::{Backend as _, HostPath, ProcessEvent, SandboxSpec, Workspace};

    use super::*;
    use crate::linux::admit_provisionally;
    use crate::wasm::Wasm;

    #[tokio::test]
    async fn a_program_that_is_ended_while_it_is_compiled_is_reported_at_once() {
        let work = tempfile::tempdir().unwrap();
        std::fs::write(work.path().join("a.wasm"), "(module (func (export \"_start\")))").unwrap();
        let workspace = Workspace::Local(HostPath::try_from(work.path().to_owned()).unwrap());
        let spec = SandboxSpec { workspace, ..SandboxSpec::default() };
        let wasm = Wasm::default();
        let shared = Arc::clone(&wasm.shared);
        let (go_on, held) = mpsc::channel::<()>();
        let (holding, holds) = mpsc::channel();
        let holder = std::thread::spawn(move || {
            shared.library.hold_loading(|| {
                holding.send(()).unwrap();
                // An error means that the test is over.
                let _ = held.recv();
            });
        });
        holds.recv().unwrap();
        let id: SandboxId = "compiled".parse().unwrap();
        let admitted = admit_provisionally(NAME, &spec).unwrap();
        let sandbox = wasm.create(&id, &admitted).await.unwrap();
        let command = Command::program(["./a.wasm"]);
        let Process { mut events, control } =
            sandbox.spawn(&command, &EffectiveLimits::default()).await.unwrap();
        control.kill().await.unwrap();
        let Some(ProcessEvent::Exit(exit)) = events.next().await else { panic!("no exit") };
        assert_eq!(exit.status, ExitStatus::Signalled(Signal::KILL));
        drop(go_on);
        holder.join().unwrap();
        wasm.destroy(&id).await.unwrap();
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_told_of_each_time() {
        let programs = ProgramHandles::default();
        let id: SandboxId = "stuck".parse().unwrap();
        let (_process, inside, handle) = process::create_process(false);
        programs.add_handle(&id, handle).unwrap();
        for _ in 0..2 {
            let error = programs.end_within(Duration::from_millis(1), &id).await.unwrap_err();
            assert!(error.to_string().contains("does not end"), "{error}");
        }
        drop(inside);
        programs.end_within(Duration::from_secs(20), &id).await.unwrap();
    }
}
