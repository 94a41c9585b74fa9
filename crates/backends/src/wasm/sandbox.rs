//! A sandbox whose programs run in this process.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use super::process::{self, Handle, Inside};
use super::program::Program;
use super::run::{self, Job, Opening};
use super::streams::{Inlet, Outlet};
use crate::linux::running::left_behind;

/// How long a program may take to end that was told to; compiling cannot be interrupted.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// How often a program's sandbox is looked for.
const LOOK: Duration = Duration::from_millis(250);

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
        self.ended.store(true, Ordering::SeqCst);
        let running = std::mem::take(&mut *self.lock());
        running.iter().for_each(Handle::kill);
        for handle in running {
            let ended = tokio::time::timeout(END_DEADLINE, handle.gone()).await;
            ended.map_err(|_| left_behind(&NAME, id, "a program does not end"))?;
        }
        Ok(())
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

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (process, inside, handle) = process::pair(command.stdin != Stdin::None);
        self.programs.note(&self.body.id, handle)?;
        let plan = Plan { body: Arc::clone(&self.body), command: command.clone(), limits: *limits };
        let started = self.body.shared.threads.run(move |runtime| {
            runtime.block_on(plan.perform(inside));
        });
        started.map_err(|error| {
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
        let prepared = self.prepare(Box::new(streams));
        let ended = match prepared {
            Ok(Prepared { machine, program, job }) => {
                let ended = async move {
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

    fn prepare(
        &self,
        streams: Box<dyn FnOnce(&mut WasiCtxBuilder) + Send>,
    ) -> Result<Prepared, StartFailure> {
        let body = &self.body;
        let start = find::start(&body.tree, &self.command)?;
        let argv = self.command.argv();
        let name = argv.first().map_or("", String::as_str);
        let bytes = body.program(&start, name)?;
        let unsuited = || StartFailure::NoResources("this machine cannot run WebAssembly".into());
        let mode = Mode::of(body.deterministic, self.limits.fuel);
        let machine = body.shared.machines.get(mode).ok_or_else(unsuited)?;
        let program = body.shared.library.load(&machine, bytes);
        let program = program.map_err(|unfit| find::refused(name, &unfit))?;
        let openings = self.openings(start).map_err(|error| {
            StartFailure::NoResources(format!("its directories cannot be opened: {error}"))
        })?;
        let job = Job {
            env: environment(&self.command.env),
            argv,
            openings,
            limits: self.limits,
            account: Arc::clone(&body.account),
            streams,
        };
        Ok(Prepared { machine, program, job })
    }

    fn openings(&self, start: Start<'_>) -> std::io::Result<Vec<Opening>> {
        let mut openings = Vec::new();
        for place in &self.body.tree.places {
            let dir = place.dir.try_clone()?;
            openings.push(Opening { dir, at: place.at.clone(), read_only: place.read_only });
        }
        // Last: of two that fit a relative path alike, programs take the one they saw later.
        openings.push(Opening { dir: start.dir, at: ".".into(), read_only: start.place.read_only });
        Ok(openings)
    }
}

/// Waits until somebody who has no handle takes the sandbox away, which they do by its files.
async fn taken_away(private: &Path) -> ExitStatus {
    loop {
        tokio::time::sleep(LOOK).await;
        if !private.exists() {
            return ExitStatus::Lost("its sandbox was taken away".into());
        }
    }
}
