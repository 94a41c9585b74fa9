//! A sandbox whose programs each run in a worker inside native walls: a mistake in the compiler or the
//! virtual machine meets a second wall. Its files are the same as without.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, Bytes, Command, EffectiveLimits, EnvName, Error, ErrorCode, ExitStatus,
    Files, HostPath, Limits, Parts, Process, ProcessControl, Result, Sandbox, SandboxId,
    SandboxSpec, Signal, SnapshotKind, Span, StartFailure, Stdin, Workspace,
};

use super::body::{Body, environment};
use super::cache::Cache;
use super::engine::Mode;
use super::process::{self, Inside};
use super::relay::{Relay, relay};
use super::report::{HOME, Order};
use super::sandbox::Programs;
use super::workshop::{self, Worker, mount};
use super::{NAME, find};
use crate::linux;
use crate::native::Native;

/// What a worker takes beside its program: its own code, the program's, its threads and files.
const MEMORY: u64 = 512 << 20;
const PROCESSES: u32 = 128;
const FILES: u32 = 64;
/// Milliseconds of processor time, with those of loading a large program.
const STARTING: u64 = 2000;

const STOP: Signal = Signal(19);
const CONTINUE: Signal = Signal(18);

/// Native walls, and who works in them.
pub(super) struct Walls {
    pub native: Arc<Native>,
    pub worker: Worker,
}

/// A sandbox with a second wall.
pub(super) struct IsolatedSandbox {
    floor: Arc<Floor>,
    programs: Programs,
}

/// What its programs share.
struct Floor {
    body: Body,
    walls: Arc<Walls>,
    inner: Arc<dyn Sandbox>,
    /// Where code is kept if the backend has no cache.
    own_cache: Option<Cache>,
    next: AtomicU32,
    controls: Mutex<Vec<Weak<dyn ProcessControl>>>,
}

impl IsolatedSandbox {
    pub(super) async fn new(body: Body, admitted: &Admitted, walls: Arc<Walls>) -> Result<Self> {
        let private = &body.tree.private;
        furnish(private, body.tree.workspace().host.as_path()).map_err(|error| {
            Error::new(ErrorCode::System, "create", "its private directory cannot be furnished")
                .backend(NAME)
                .source(error)
        })?;
        let spec = spec(&body, admitted, &walls.worker)?;
        let inner = walls.native.create(&body.id, &linux::provisional(NAME, &spec)?).await?;
        let own_cache = match body.shared.library.cache() {
            Some(_) => None,
            None => Cache::open(&private.join("cache")).ok(),
        };
        let next = AtomicU32::new(0);
        let floor = Floor { body, walls, inner, own_cache, next, controls: Mutex::default() };
        Ok(Self { floor: Arc::new(floor), programs: Programs::default() })
    }

    pub(super) async fn end(&self) -> Result<()> {
        self.programs.end(&self.floor.body.id).await
    }
}

/// The directories that only walls make use of. The guest stands for whoever owns the workspace.
fn furnish(private: &Path, workspace: &Path) -> std::io::Result<()> {
    let owner = fs::metadata(workspace)?;
    for (name, mode) in [("code", 0o755), ("answers", 0o700)] {
        let path = private.join(name);
        DirBuilder::new().mode(mode).create(&path)?;
    }
    if rustix::process::geteuid().is_root() {
        for name in ["answers", "tmp"] {
            chown(private.join(name), Some(owner.uid()), Some(owner.gid()))?;
        }
    }
    Ok(())
}

/// The native sandbox that a worker runs in: the same directories, each at a place of its own.
fn spec(body: &Body, admitted: &Admitted, worker: &Worker) -> Result<SandboxSpec> {
    let (tree, limits) = (&body.tree, admitted.limits());
    let private = |name: &str| tree.private.join(name);
    let mut mounts = vec![
        worker.mount()?,
        mount(private("code"), "code", true)?,
        mount(private("answers"), "answers", false)?,
    ];
    for (number, place) in tree.places.iter().enumerate().skip(1) {
        mounts.push(mount(place.host.clone(), &place_name(number), place.read_only)?);
    }
    let workspace = HostPath::try_from(tree.workspace().host.clone())
        .map_err(|error| Error::new(ErrorCode::Invalid, "create", error.to_string()))?;
    Ok(SandboxSpec {
        workspace: Workspace::Local(workspace),
        read_only: tree.workspace().read_only,
        mounts,
        limits: Limits {
            memory: limits.memory.map(|most| Bytes(most.0.saturating_add(MEMORY))),
            processes: Some(PROCESSES),
            open_files: limits.open_files.map(|most| most.saturating_add(FILES)),
            ..*limits
        },
        without: admitted.spec().without.clone(),
        ..SandboxSpec::default()
    })
}

fn place_name(number: usize) -> String {
    format!("place{number}")
}

impl Floor {
    fn cache(&self) -> Result<&Cache, StartFailure> {
        let cache = self.body.shared.library.cache().or(self.own_cache.as_ref());
        cache.ok_or_else(|| StartFailure::NoResources("there is no place for its code".into()))
    }

    fn controls(&self) -> MutexGuard<'_, Vec<Weak<dyn ProcessControl>>> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to every worker.
    async fn signal(&self, signal: Signal) -> Result<()> {
        let live: Vec<_> = self.controls().iter().filter_map(Weak::upgrade).collect();
        for control in live {
            control.signal(signal).await?;
        }
        Ok(())
    }

    /// Has the program compiled and started, and passes on what becomes of it.
    async fn perform(self: Arc<Self>, command: Command, limits: EffectiveLimits, inside: Inside) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let mut killed = inside.killed.clone();
        let started = tokio::select! {
            biased;
            _ = killed.wait_for(|killed| *killed) => {
                let _ = inside.exit.send(ExitStatus::Signalled(Signal::KILL).into());
                return;
            }
            started = self.start(number, &command, &limits) => started,
        };
        let process = match started {
            Ok(process) => process,
            Err(failure) => {
                let _ = inside.exit.send(ExitStatus::StartFailed(failure).into());
                return;
            }
        };
        {
            let mut controls = self.controls();
            controls.retain(|control| control.strong_count() > 0);
            controls.push(Arc::downgrade(&process.control));
        }
        let answer = self.answers().join(number.to_string());
        relay(Relay { process, inside, answer, account: Arc::clone(&self.body.account) }).await;
    }

    fn answers(&self) -> PathBuf {
        self.body.tree.private.join("answers")
    }

    async fn start(
        &self,
        number: u32,
        command: &Command,
        limits: &EffectiveLimits,
    ) -> Result<Process, StartFailure> {
        let body = &self.body;
        let (bytes, start) = {
            let start = find::start(&body.tree, command)?;
            let name = command.argv().first().cloned().unwrap_or_default();
            let at = body.tree.places.iter().position(|place| std::ptr::eq(place, start.place));
            (body.program(&start, &name)?, (at.unwrap_or(0), start.rest))
        };
        let mode = Mode::of(body.deterministic, limits.fuel);
        let digest = self.code(mode, &command.argv(), bytes).await?;
        let order = self.order(number, limits, mode, digest, start);
        let order = serde_json::to_string(&order)
            .map_err(|error| StartFailure::NoResources(error.to_string()))?;
        let args = ["run".to_owned(), order].into_iter().chain(command.argv());
        let mut outer = self.walls.worker.command(args);
        outer.env = environment(&command.env)
            .into_iter()
            .filter_map(|(name, value)| Some((name.parse::<EnvName>().ok()?, value)))
            .collect();
        outer.stdin = match command.stdin {
            Stdin::None => Stdin::None,
            Stdin::Bytes(_) | Stdin::Stream => Stdin::Stream,
        };
        // The worker holds its program to its time; the walls hold the worker to a little more.
        let cpu_time = limits.cpu_time.map(|most| Span::millis(most.as_millis() + STARTING));
        let spawned = self.inner.spawn(&outer, &Limits { cpu_time, ..*limits }).await;
        spawned.map_err(|error| StartFailure::NoResources(format!("no worker: {error}")))
    }

    /// The code of the program, in the directory that the worker sees.
    async fn code(
        &self,
        mode: Mode,
        argv: &[String],
        bytes: Vec<u8>,
    ) -> Result<String, StartFailure> {
        let lacking = |what: String| StartFailure::NoResources(what);
        let machine = self.body.shared.machines.get(mode);
        let key = machine.ok_or_else(|| lacking("no virtual machine".into()))?.key();
        let name = argv.first().map_or("", String::as_str);
        let Walls { native, worker } = self.walls.as_ref();
        let cache = self.cache()?;
        let code = workshop::code(native, worker, cache, &key, (mode, name, bytes)).await?;
        let shown = self.body.tree.private.join("code").join(&code.digest);
        if !shown.exists() {
            cache
                .share(&code.key, &code.hash, &shown)
                .and_then(|()| fs::set_permissions(&shown, fs::Permissions::from_mode(0o644)))
                .map_err(|error| lacking(format!("its code cannot be shown: {error}")))?;
        }
        Ok(code.digest)
    }

    fn order(
        &self,
        number: u32,
        limits: &EffectiveLimits,
        mode: Mode,
        code: String,
        start: (usize, String),
    ) -> Order {
        let path = |number: usize| match number {
            0 => stockade_core::WORKSPACE_ROOT.to_owned(),
            number => format!("{HOME}/{}", place_name(number)),
        };
        let places = self.body.tree.places.iter().enumerate();
        Order {
            mode: mode.into(),
            code,
            answer: number.to_string(),
            places: places.map(|(n, place)| (place.at.clone(), path(n), place.read_only)).collect(),
            start,
            memory: limits.memory.map(|most| most.0),
            disk: self.body.account.disk_left(),
            open_files: limits.open_files,
            fuel: limits.fuel,
            cpu_time: limits.cpu_time.map(Span::as_millis),
        }
    }
}

#[async_trait]
impl Sandbox for IsolatedSandbox {
    fn id(&self) -> &SandboxId {
        &self.floor.body.id
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (process, inside, handle) = process::pair(command.stdin != Stdin::None);
        self.programs.note(self.id(), handle)?;
        tokio::spawn(Arc::clone(&self.floor).perform(command.clone(), *limits, inside));
        Ok(process)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.floor.body.files)
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.floor.body.snapshot(kind, into).await
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        self.floor.body.restore(from).await
    }

    async fn pause(&self) -> Result<()> {
        self.floor.signal(STOP).await
    }

    async fn resume(&self) -> Result<()> {
        self.floor.signal(CONTINUE).await
    }
}
