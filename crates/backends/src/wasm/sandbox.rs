//! A sandbox whose programs run in this process: its files, its account, and the programs themselves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Admitted, Command, EffectiveLimits, Error, ErrorCode, ExitStatus, Feature, Files, Image,
    Process, Result, Sandbox, SandboxId, SnapshotId, SnapshotKind, StartFailure, Stdin, StreamId,
};
use wasmtime_wasi::WasiCtxBuilder;

use super::account::Account;
use super::engine::Mode;
use super::files::TreeFiles;
use super::find::{self, Start};
use super::process::{self, Handle, Inside};
use super::run::{self, Job, Opening};
use super::streams::{Inlet, Outlet};
use super::tree::{TEMPORARY, Tree};
use super::{NAME, Shared, snapshot};
use crate::linux::running::left_behind;

/// How long a program may take to end that was told to; compiling cannot be interrupted.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// Variables that every program finds.
const DEFAULTS: [(&str, &str); 3] = [("PATH", "/bin"), ("HOME", TEMPORARY), ("TMPDIR", TEMPORARY)];

/// A sandbox in this process.
pub(super) struct WasmSandbox {
    id: SandboxId,
    deterministic: bool,
    image: Image,
    tree: Arc<Tree>,
    files: TreeFiles,
    account: Arc<Account>,
    shared: Arc<Shared>,
    running: Mutex<Vec<Handle>>,
    ended: AtomicBool,
}

impl WasmSandbox {
    pub(super) fn new(id: &SandboxId, admitted: &Admitted, shared: Arc<Shared>) -> Result<Self> {
        let spec = admitted.spec();
        let tree = Arc::new(Tree::make(id, spec)?);
        Ok(Self {
            id: id.clone(),
            deterministic: spec.deterministic,
            image: spec.image.clone(),
            files: TreeFiles(Arc::clone(&tree)),
            tree,
            account: Arc::new(Account::new(admitted.limits())),
            shared,
            running: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    fn running(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every program and waits until they are gone (C-30).
    pub(super) async fn end(&self) -> Result<()> {
        self.ended.store(true, Ordering::SeqCst);
        let running = std::mem::take(&mut *self.running());
        running.iter().for_each(Handle::kill);
        self.account.pause(false);
        for handle in running {
            let ended = tokio::time::timeout(END_DEADLINE, handle.gone()).await;
            ended.map_err(|_| left_behind(&NAME, &self.id, "a program does not end"))?;
        }
        Ok(())
    }

    fn note(&self, handle: Handle) {
        let mut running = self.running();
        running.retain(|handle| !handle.is_gone());
        running.push(handle);
    }

    fn plan(&self, command: &Command, limits: &EffectiveLimits) -> Plan {
        Plan {
            command: command.clone(),
            limits: *limits,
            mode: Mode::of(self.deterministic, limits.fuel),
            image: self.image.clone(),
            tree: Arc::clone(&self.tree),
            account: Arc::clone(&self.account),
            shared: Arc::clone(&self.shared),
        }
    }
}

#[async_trait]
impl Sandbox for WasmSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (process, inside, handle) = process::pair(command.stdin != Stdin::None);
        self.note(handle);
        // After it was noted: whoever ends the sandbox meanwhile finds it, or it finds the end.
        if self.ended.load(Ordering::SeqCst) {
            let message = format!("the sandbox `{}` has ended", self.id);
            return Err(Error::new(ErrorCode::Gone, "spawn", message).backend(NAME));
        }
        let plan = self.plan(command, limits);
        let started = self.shared.threads.run(move |runtime| {
            runtime.block_on(plan.perform(inside));
        });
        started.map_err(|error| {
            Error::new(ErrorCode::System, "spawn", "no thread for it").backend(NAME).source(error)
        })?;
        Ok(process)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }

    async fn snapshot(&self, kind: SnapshotKind) -> Result<SnapshotId> {
        match kind {
            SnapshotKind::Files => snapshot::take(&self.id, &self.tree),
            SnapshotKind::Full => Err(Error::unsupported("snapshot", Feature::FullSnapshot)),
        }
    }

    async fn restore(&self, snapshot: &SnapshotId) -> Result<()> {
        snapshot::bring_back(&self.tree, snapshot)
    }

    async fn pause(&self) -> Result<()> {
        self.account.pause(true);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.account.pause(false);
        Ok(())
    }
}

/// What one program needs to run, away from the sandbox.
struct Plan {
    command: Command,
    limits: EffectiveLimits,
    mode: Mode,
    image: Image,
    tree: Arc<Tree>,
    account: Arc<Account>,
    shared: Arc<Shared>,
}

impl Plan {
    /// Finds, loads and runs the program, and says how it ended.
    async fn perform(self, inside: Inside) {
        let Inside { events, input, exit, killed, present } = inside;
        let streams = move |builder: &mut WasiCtxBuilder| {
            builder.stdout(Outlet::new(events.clone(), StreamId::Stdout));
            builder.stderr(Outlet::new(events, StreamId::Stderr));
            if let Some(input) = input {
                builder.stdin(Inlet::new(input));
            }
        };
        let ended = match self.prepare(Box::new(streams)) {
            Ok(Prepared { machine, program, job }) => {
                let mut killed = killed;
                let killed = async move {
                    // Nobody who could want it ended is left: then it must not go on either.
                    let _ = killed.wait_for(|killed| *killed).await;
                };
                run::run(&machine, &program, job, killed).await
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
        let start = find::start(&self.tree, &self.command)?;
        let argv = self.command.argv();
        let name = argv.first().map_or("", String::as_str);
        let bytes = self.bytes(&start, name)?;
        let unsuited = || StartFailure::NoResources("this machine cannot run WebAssembly".into());
        let machine = self.shared.machines.get(self.mode).ok_or_else(unsuited)?;
        let program = self.shared.library.load(&machine, bytes);
        let program = program.map_err(|unfit| find::refused(name, &unfit))?;
        let openings = self.openings(start).map_err(|error| {
            StartFailure::NoResources(format!("its directories cannot be opened: {error}"))
        })?;
        let job = Job {
            env: environment(&self.command.env),
            argv,
            openings,
            limits: self.limits,
            account: Arc::clone(&self.account),
            streams,
        };
        Ok(Prepared { machine, program, job })
    }

    /// A name without a directory is the image's, or one that was given to the backend; any other
    /// is a path of the sandbox.
    fn bytes(&self, start: &Start<'_>, name: &str) -> Result<Vec<u8>, StartFailure> {
        if name.contains('/') {
            return find::program(&self.tree, start, name);
        }
        if let Some(bytes) = self.shared.modules.get(name) {
            return Ok(bytes.to_vec());
        }
        match &self.image {
            Image::Wasm(path) if is_called(path.as_path(), name) => {
                find::on_host(path.as_path(), name)
            }
            Image::Wasm(_) | Image::Host | Image::Directory(_) | Image::Oci(_) => {
                Err(StartFailure::NotFound(format!("there is no `{name}`")))
            }
        }
    }

    fn openings(&self, start: Start<'_>) -> std::io::Result<Vec<Opening>> {
        let mut openings = Vec::new();
        for place in &self.tree.places {
            let dir = place.dir.try_clone()?;
            openings.push(Opening { dir, at: place.at.clone(), read_only: place.read_only });
        }
        // Last: of two that fit a relative path alike, programs take the one they saw later.
        openings.push(Opening { dir: start.dir, at: ".".into(), read_only: start.place.read_only });
        Ok(openings)
    }
}

struct Prepared {
    machine: Arc<super::engine::Machine>,
    program: Arc<super::program::Program>,
    job: Job,
}

/// Whether a file is meant by this name, with its extension or without.
fn is_called(path: &std::path::Path, name: &str) -> bool {
    [path.file_name(), path.file_stem()].into_iter().flatten().any(|own| own == name)
}

fn environment(given: &BTreeMap<stockade_core::EnvName, String>) -> Vec<(String, String)> {
    let unset = |(name, _): &(&str, &str)| !given.keys().any(|known| known.as_str() == *name);
    let defaults = DEFAULTS.into_iter().filter(unset);
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    defaults.chain(given.iter().map(|(name, value)| (name.to_string(), value.clone()))).collect()
}
