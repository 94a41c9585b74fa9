//! A sandbox whose programs run in this process.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Command, EffectiveLimits, Error, ErrorCode, ExitStatus, Files, Parts, Process, Result, Sandbox,
    SandboxId, Signal, SnapshotKind, StartFailure, Stdin, StreamId,
};
use wasmtime_wasi::WasiCtxBuilder;

use super::NAME;
use super::body::{Body, environment};
use super::engine::{Machine, Mode};
use super::find::{self, Start};
use super::lane::Lane;
use super::openings::{Opening, Openings};
use super::process::{self, Handle, Inside};
use super::program::Program;
use super::run::{self, Job};
use super::streams::{Inlet, Outlet};
use super::tree::Place;
use crate::linux::running::left_behind;

/// How long a program may take to end that was told to; compiling cannot be interrupted.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// Poll interval for the existence of a program's sandbox.
const SANDBOX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Largest program that is instantiated on its caller's thread.
const INLINE_PROGRAM_BYTES: usize = 1 << 20;

/// The programs of a sandbox that have not ended.
#[derive(Default)]
pub(super) struct Programs {
    running: Mutex<Vec<Handle>>,
    ended: AtomicBool,
}

impl Programs {
    fn lock(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes one that is about to start; fails where the sandbox has ended.
    pub(super) fn note(&self, id: &SandboxId, handle: Handle) -> Result<()> {
        let mut running = self.lock();
        running.retain(|handle| !handle.is_gone());
        running.push(handle);
        drop(running);
        // After it was noted: whoever ends the sandbox meanwhile finds it, or it finds the end.
        if self.ended.load(Ordering::SeqCst) {
            let message = format!("the sandbox `{id}` has ended");
            return Err(Error::new(ErrorCode::Gone, "spawn", message).backend(NAME));
        }
        Ok(())
    }

    /// Ends every program and waits until they are gone (C-30).
    pub(super) async fn end(&self, id: &SandboxId) -> Result<()> {
        self.end_within(END_DEADLINE, id).await
    }

    async fn end_within(&self, deadline: Duration, id: &SandboxId) -> Result<()> {
        self.ended.store(true, Ordering::SeqCst);
        // They stay known until they are gone: whoever asks again must not be told that nothing is left.
        let running = self.lock().clone();
        running.iter().for_each(Handle::kill);
        let all = async {
            for handle in running {
                handle.gone().await;
            }
        };
        let ended = tokio::time::timeout(deadline, all).await;
        self.lock().retain(|handle| !handle.is_gone());
        ended.map_err(|_| left_behind(&NAME, id, "a program does not end"))
    }
}

/// A sandbox in this process.
pub(super) struct WasmSandbox {
    body: Arc<Body>,
    programs: Programs,
}

impl WasmSandbox {
    pub(super) fn new(body: Body) -> Self {
        Self { body: Arc::new(body), programs: Programs::default() }
    }

    pub(super) async fn end(&self) -> Result<()> {
        self.body.account.pause(false);
        self.programs.end(&self.body.id).await
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

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (process, inside, handle) = process::pair(command.stdin != Stdin::None);
        self.programs.note(&self.body.id, handle)?;
        let lane = Lane::callers();
        let plan = Plan {
            body: Arc::clone(&self.body),
            command: command.clone(),
            limits: *limits,
            lane: Arc::clone(&lane),
        };
        let begun = self.body.shared.threads.begin(lane, Box::pin(plan.perform(inside)));
        begun.map_err(|error| {
            Error::new(ErrorCode::System, "spawn", "no thread for it").backend(NAME).source(error)
        })?;
        Ok(process)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.body.files)
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.body.snapshot(kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.body.restore(from).await
    }

    async fn pause(&self) -> Result<()> {
        self.body.account.pause(true);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.body.account.pause(false);
        Ok(())
    }
}

/// One program that is about to run.
struct Plan {
    body: Arc<Body>,
    command: Command,
    limits: EffectiveLimits,
    lane: Arc<Lane>,
}

struct Prepared {
    machine: Arc<Machine>,
    program: Arc<Program>,
    job: Job,
}

impl Plan {
    /// Finds, loads and runs the program, and says how it ended.
    async fn perform(self, inside: Inside) {
        let Inside { events, input, exit, mut killed, present } = inside;
        let streams = move |builder: &mut WasiCtxBuilder| {
            builder.stdout(Outlet::new(events.clone(), StreamId::Stdout));
            builder.stderr(Outlet::new(events, StreamId::Stderr));
            if let Some(input) = input {
                builder.stdin(Inlet::new(input));
            }
        };
        let prepared = self.prepare(Box::new(streams)).await;
        let ended = match prepared {
            Ok(Prepared { machine, program, job }) => {
                let ended = async move {
                    // Before that it cannot go on for long.
                    self.lane.alone().await;
                    tokio::select! {
                        // Nobody who could want it ended is left: then it must not go on either.
                        _ = killed.wait_for(|killed| *killed) => ExitStatus::Signalled(Signal::KILL),
                        status = taken_away(&self.body.tree.private) => status,
                    }
                };
                run::run(&machine, &program, job, ended).await
            }
            Err(failure) => ExitStatus::StartFailed(failure).into(),
        };
        // Nobody need be there to hear it.
        let _ = exit.send(ended);
        drop(present);
    }

    async fn prepare(
        &self,
        streams: Box<dyn FnOnce(&mut WasiCtxBuilder) + Send>,
    ) -> Result<Prepared, StartFailure> {
        let body = &self.body;
        let start = find::start(&body.tree, &self.command)?;
        let openings = self.openings(&start)?;
        let argv = self.command.argv();
        let name = argv.first().map_or("", String::as_str);
        let (machine, program) = match self.at_hand(name) {
            Some(found) => found,
            None => {
                self.lane.alone().await;
                self.load(&start, name)?
            }
        };
        let job = Job {
            env: environment(&self.command.env),
            argv,
            openings,
            limits: self.limits,
            account: Arc::clone(&body.account),
            lane: Arc::clone(&self.lane),
            streams,
        };
        Ok(Prepared { machine, program, job })
    }

    fn mode(&self) -> Mode {
        Mode::of(self.body.deterministic, self.limits.fuel)
    }

    /// A program that begins at once: known, small, and a module. A component's calls say nothing
    /// about how long they take.
    fn at_hand(&self, name: &str) -> Option<(Arc<Machine>, Arc<Program>)> {
        let shared = &self.body.shared;
        let known = shared.modules.get(name).filter(|_| !name.contains('/'))?;
        if known.bytes.len() > INLINE_PROGRAM_BYTES {
            return None;
        }
        let program = shared.library.recall(self.mode(), &known.hash)?;
        let machine = shared.machines.get(self.mode())?;
        matches!(*program, Program::Core(_)).then_some((machine, program))
    }

    fn load(
        &self,
        start: &Start<'_>,
        name: &str,
    ) -> Result<(Arc<Machine>, Arc<Program>), StartFailure> {
        let shared = &self.body.shared;
        let bytes = self.body.program(start, name)?;
        let unsuited = || StartFailure::NoResources("this machine cannot run WebAssembly".into());
        let machine = shared.machines.get(self.mode()).ok_or_else(unsuited)?;
        let program = shared.library.load(&machine, bytes);
        let program = program.map_err(|unfit| find::refused(name, &unfit))?;
        Ok((machine, program))
    }

    /// The directories it is given: opened once for all that start where most do.
    fn openings(&self, start: &Start<'_>) -> Result<Openings, StartFailure> {
        let usual = start.is_usual(&self.body.tree).then_some(&self.body.usual);
        if let Some(openings) = usual.and_then(OnceLock::get) {
            return Ok(openings.clone());
        }
        let openings = Openings::of(&self.opened(start)?)
            .map_err(|error| StartFailure::NoResources(run::short(&error)))?;
        Ok(match usual {
            Some(usual) => usual.get_or_init(|| openings).clone(),
            None => openings,
        })
    }

    fn opened(&self, start: &Start<'_>) -> Result<Vec<Opening>, StartFailure> {
        let opening = |place: &Place| Opening {
            dir: Arc::clone(&place.dir),
            at: place.at.clone(),
            read_only: place.read_only,
        };
        let dir = Arc::new(start.open(&self.command)?);
        let mut openings: Vec<_> = self.body.tree.places.iter().map(opening).collect();
        // Last: of two that fit a relative path alike, programs take the one they saw later.
        openings.push(Opening { dir, at: ".".into(), read_only: start.place.read_only });
        Ok(openings)
    }
}

/// Waits until somebody who has no handle takes the sandbox away, which they do by its files.
async fn taken_away(private: &Path) -> ExitStatus {
    loop {
        tokio::time::sleep(SANDBOX_POLL_INTERVAL).await;
        if !private.exists() {
            return ExitStatus::Lost("its sandbox was taken away".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_does_not_end_is_told_of_each_time() {
        let programs = Programs::default();
        let id: SandboxId = "stuck".parse().unwrap();
        let (_process, inside, handle) = process::pair(false);
        programs.note(&id, handle).unwrap();
        for _ in 0..2 {
            let error = programs.end_within(Duration::from_millis(1), &id).await.unwrap_err();
            assert!(error.to_string().contains("does not end"), "{error}");
        }
        drop(inside);
        programs.end_within(Duration::from_secs(20), &id).await.unwrap();
    }
}
