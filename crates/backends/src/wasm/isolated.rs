//! A sandbox whose programs each run in a worker inside native walls: a mistake in the compiler or the
//! virtual machine meets a second wall. Its files are the same as without.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use bytes::Bytes as Data;
use sha2::{Digest as _, Sha256};
use stockade_core::{
    Admitted, Backend, Bytes, Command, EffectiveLimits, Error, ErrorCode, ExitStatus, Files,
    HostPath, Limits, Network, Process, ProcessControl, Result, Sandbox, SandboxId, SandboxSpec,
    Signal, SnapshotFiles, SnapshotKind, Span, StartFailure, Stdin, Workspace,
};
use stockade_fs::{Survives, write_atomically};

use super::cache::{Cache, encode_hex};
use super::compiler_sandbox::{self, ProgramSource, Worker, WorkerWalls, build_mount};
use super::disk_quota::{self, DiskQuota};
use super::engine::EngineMode;
use super::process::{self, PresenceGuard, ProcessInside};
use super::relay::{WorkerRelay, relay_process};
use super::report::{WORKER_DIR, WorkerOrder};
use super::sandbox::ProgramHandles;
use super::sandbox_parts::{WasmSandboxParts, build_environment};
use super::{NAME, find};
use crate::linux;

/// Memory that a worker takes beside its program: for its own code, the program's, and its threads.
const WORKER_MEMORY_BYTES: u64 = 512 << 20;
/// Process limit of a worker.
const WORKER_PROCESSES: u32 = 128;
/// Disk that a worker takes beside its program, for its answers.
const WORKER_DISK_BYTES: u64 = 4 << 20;
/// The part of a disk limit that directories may take by growing. A worker counts 4 KiB for each entry, of which the
/// longest takes 264 bytes in its directory; the walls' watch counts both.
const DIRECTORY_GROWTH_DIVISOR: u64 = 8;
/// Descriptors that a worker takes beside its program.
const WORKER_OPEN_FILES: u32 = 64;
/// Processor time that a worker takes beside its program, with that of loading a large one.
const STARTUP_CPU_MILLIS: u64 = 2000;

const SIGSTOP: Signal = Signal(19);
const SIGCONT: Signal = Signal(18);

/// A sandbox with a second wall.
pub(super) struct IsolatedSandbox {
    floor: Arc<Floor>,
    programs: ProgramHandles,
}

/// What its programs share.
struct Floor {
    body: WasmSandboxParts,
    walls: Arc<WorkerWalls>,
    inner: Arc<dyn Sandbox>,
    /// Where code is kept if the backend has no cache.
    own_cache: Option<Cache>,
    disk_is_bounded: bool,
    next: AtomicU32,
    controls: Mutex<Vec<Weak<dyn ProcessControl>>>,
    /// Whether workers may be stopped.
    paused: AtomicBool,
}

impl IsolatedSandbox {
    pub(super) async fn new(
        body: WasmSandboxParts,
        admitted: &Admitted,
        walls: Arc<WorkerWalls>,
    ) -> Result<Self> {
        let private = &body.tree.private;
        prepare_private_dir(private, &body.tree.workspace().host, admitted.limits()).map_err(
            |error| {
                Error::new(ErrorCode::System, "create", "its private directory cannot be filled")
                    .backend(NAME)
                    .source(error)
            },
        )?;
        let spec = build_spec(&body, admitted, &walls.worker)?;
        let inner =
            walls.native.create(&body.id, &linux::admit_provisionally(NAME, &spec)?).await?;
        let own_cache = match body.shared.library.cache() {
            Some(_) => None,
            None => Cache::open(&private.join("cache")).ok(),
        };
        let floor = Floor {
            body,
            walls,
            inner,
            own_cache,
            disk_is_bounded: admitted.limits().disk.is_some(),
            next: AtomicU32::new(0),
            controls: Mutex::default(),
            paused: AtomicBool::new(false),
        };
        Ok(Self { floor: Arc::new(floor), programs: ProgramHandles::default() })
    }

    pub(super) async fn end_programs(&self) -> Result<()> {
        self.programs.end_all(&self.floor.body.id).await
    }
}

/// The directories that only walls make use of. The guest acts as the owner of the workspace.
fn prepare_private_dir(
    private: &Path,
    workspace: &Path,
    limits: &EffectiveLimits,
) -> std::io::Result<()> {
    let owner = fs::metadata(workspace)?;
    for (name, mode) in [("code", 0o755), ("answers", 0o700)] {
        let path = private.join(name);
        DirBuilder::new().mode(mode).create(&path)?;
    }
    let mut given = vec![private.join("answers"), private.join("tmp")];
    if let Some(disk) = limits.disk {
        let path = private.join("answers").join(disk_quota::QUOTA_FILE_NAME);
        DiskQuota::create_file(&path, disk.0)?;
        given.push(path);
    }
    if rustix::process::geteuid().is_root() {
        given.iter().try_for_each(|path| chown(path, Some(owner.uid()), Some(owner.gid())))?;
    }
    Ok(())
}

/// The native sandbox that a worker runs in: the same directories, each at a place of its own.
fn build_spec(
    body: &WasmSandboxParts,
    admitted: &Admitted,
    worker: &Worker,
) -> Result<SandboxSpec> {
    let (tree, limits) = (&body.tree, admitted.limits());
    let private = |name: &str| tree.private.join(name);
    let mut mounts = vec![
        worker.program_mount()?,
        build_mount(private("code"), "code", true)?,
        build_mount(private("answers"), "answers", false)?,
    ];
    for (number, place) in tree.places.iter().enumerate().skip(1) {
        mounts.push(build_mount(place.host.clone(), &place_name(number), place.read_only)?);
    }
    let workspace = HostPath::try_from(tree.workspace().host.clone())
        .map_err(|error| Error::new(ErrorCode::Invalid, "create", error.to_string()))?;
    Ok(SandboxSpec {
        workspace: Workspace::Local(workspace),
        read_only: tree.workspace().read_only,
        mounts,
        limits: Limits {
            memory: limits.memory.map(|most| Bytes(most.0.saturating_add(WORKER_MEMORY_BYTES))),
            processes: Some(WORKER_PROCESSES),
            open_files: limits.open_files.map(|most| most.saturating_add(WORKER_OPEN_FILES)),
            disk: limits.disk.map(disk_of_walls),
            ..*limits
        },
        without: admitted.spec().without.clone(),
        network: Network::None,
        ..SandboxSpec::default()
    })
}

/// What the walls let a worker write that holds its program to this itself: the worker says that there is no space, where
/// the walls end it.
fn disk_of_walls(limit: Bytes) -> Bytes {
    let growth = limit.0 / DIRECTORY_GROWTH_DIVISOR;
    Bytes(limit.0.saturating_add(growth).saturating_add(WORKER_DISK_BYTES))
}

fn place_name(number: usize) -> String {
    format!("place{number}")
}

impl Floor {
    fn cache(&self) -> Result<&Cache, StartFailure> {
        let cache = self.body.shared.library.cache().or(self.own_cache.as_ref());
        cache.ok_or_else(|| {
            StartFailure::NoResources("there is no cache directory for its code".into())
        })
    }

    fn controls(&self) -> MutexGuard<'_, Vec<Weak<dyn ProcessControl>>> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to every worker.
    async fn signal_all(&self, signal: Signal) -> Result<()> {
        let live: Vec<_> = self.controls().iter().filter_map(Weak::upgrade).collect();
        for control in live {
            control.signal(signal).await?;
        }
        Ok(())
    }

    /// Has the program compiled and started, and passes on what becomes of it.
    async fn run_command(
        self: Arc<Self>,
        command: Command,
        limits: EffectiveLimits,
        inside: ProcessInside,
    ) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let mut killed = inside.killed.clone();
        let started = tokio::select! {
            biased;
            _ = killed.wait_for(|killed| *killed) => {
                let _ = inside.exit.send(ExitStatus::Signalled(Signal::KILL).into());
                return;
            }
            started = self.start_worker(number, &command, &limits, &inside.present) => started,
        };
        let (process, order) = match started {
            Ok(started) => started,
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
        let answer = self.answers_dir().join(number.to_string());
        relay_process(WorkerRelay { process, order, inside, answer }).await;
    }

    fn answers_dir(&self) -> PathBuf {
        self.body.tree.private.join("answers")
    }

    async fn start_worker(
        &self,
        number: u32,
        command: &Command,
        limits: &EffectiveLimits,
        present: &PresenceGuard,
    ) -> Result<(Process, Data), StartFailure> {
        let body = &self.body;
        let (given, start) = {
            let start = find::resolve_start_dir(&body.tree, command)?;
            start.open_dir(command)?;
            let name = command.argv().first().cloned().unwrap_or_default();
            let at = body.tree.places.iter().position(|place| std::ptr::eq(place, start.place));
            (body.read_program(&start, &name)?, (at.unwrap_or(0), start.rest))
        };
        let mode = EngineMode::of(body.deterministic, limits.fuel);
        let argv = command.argv();
        let name = argv.first().map_or("", String::as_str);
        let source = ProgramSource { mode, name, given, present: present.clone() };
        let code = self.prepare_code(number, source).await?;
        let env = build_environment(&command.env);
        let order =
            WorkerOrder { argv, env, ..self.build_order(number, limits, mode, code, start) };
        let order =
            order.encode_frame().map_err(|error| StartFailure::NoResources(error.to_string()))?;
        // Its own environment stays empty: what the program is given means nothing to it.
        let mut outer = self.walls.worker.build_command(["run".to_owned()]);
        outer.stdin = Stdin::Stream;
        // The worker holds its program to its time; the walls hold the worker to a little more.
        let cpu_time =
            limits.cpu_time.map(|most| Span::millis(most.as_millis() + STARTUP_CPU_MILLIS));
        let spawned = self.inner.spawn(&outer, &Limits { cpu_time, ..*limits }).await;
        match spawned {
            Ok(process) => Ok((process, order.into())),
            Err(error) => Err(StartFailure::NoResources(format!("no worker: {error}"))),
        }
    }

    /// The code of the program, by its digest in the directory that the worker sees.
    async fn prepare_code(
        &self,
        number: u32,
        source: ProgramSource<'_>,
    ) -> Result<String, StartFailure> {
        let lacking = |what: String| StartFailure::NoResources(what);
        let machine = self.body.shared.machines.get_or_create(source.mode);
        let key = machine.ok_or_else(|| lacking("no virtual machine".into()))?.cache_key();
        let code =
            compiler_sandbox::load_or_compile(&self.walls, self.cache()?, &key, source).await?;
        let digest = encode_hex(&Sha256::digest(&code));
        self.publish_code(number, &digest, &code)
            .map_err(|error| lacking(format!("its code cannot be shown: {error}")))?;
        Ok(digest)
    }

    /// Whole or not at all: others may be starting the same program.
    fn publish_code(&self, number: u32, digest: &str, code: &[u8]) -> std::io::Result<()> {
        let directory = self.body.tree.private.join("code");
        let shown = directory.join(digest);
        if shown.exists() {
            return Ok(());
        }
        let draft = format!("draft{number}");
        write_atomically(&shown, &draft, code, 0o644, Survives::Process)
    }

    fn build_order(
        &self,
        number: u32,
        limits: &EffectiveLimits,
        mode: EngineMode,
        code: String,
        start: (usize, String),
    ) -> WorkerOrder {
        let path = |number: usize| match number {
            0 => stockade_core::WORKSPACE_ROOT.to_owned(),
            number => format!("{WORKER_DIR}/{}", place_name(number)),
        };
        let places = self.body.tree.places.iter().enumerate();
        WorkerOrder {
            argv: Vec::new(),
            env: Vec::new(),
            mode: mode.into(),
            code,
            answer: number.to_string(),
            places: places.map(|(n, place)| (place.at.clone(), path(n), place.read_only)).collect(),
            start,
            memory: limits.memory.map(|most| most.0),
            disk: self.disk_is_bounded,
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

    fn alive(&self) -> bool {
        self.floor.inner.alive()
    }

    fn is_paused(&self) -> bool {
        self.floor.paused.load(Ordering::SeqCst)
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (process, inside, handle) = process::create_process(command.stdin != Stdin::None);
        self.programs.add_handle(self.id(), handle)?;
        tokio::spawn(Arc::clone(&self.floor).run_command(command.clone(), *limits, inside));
        Ok(process)
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.floor.body.files)
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.floor.body.write_snapshot(kind, into).await
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        self.floor.body.restore_snapshot(from).await
    }

    async fn pause(&self) -> Result<()> {
        // Before the first stops: this may be dropped half-way.
        self.floor.paused.store(true, Ordering::SeqCst);
        self.floor.signal_all(SIGSTOP).await
    }

    async fn resume(&self) -> Result<()> {
        self.floor.signal_all(SIGCONT).await?;
        self.floor.paused.store(false, Ordering::SeqCst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::account::DIR_ENTRY_BYTES;
    use super::*;

    #[test]
    fn walls_leave_room_for_directories_of_as_many_files_as_the_limit_allows() {
        const LONGEST_ENTRY_BYTES: u64 = 264;
        for limit in [Bytes::mib(1), Bytes::mib(64), Bytes::mib(1024)] {
            let entries = limit.0 / DIR_ENTRY_BYTES;
            let taken = entries * (DIR_ENTRY_BYTES + LONGEST_ENTRY_BYTES);
            assert!(disk_of_walls(limit).0 > taken, "{limit}");
        }
    }
}
