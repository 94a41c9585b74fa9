//! WebAssembly: programs that have no kernel interface at all, in this process or in a worker inside
//! native walls. `docs/backends/wasm.md` says what that does not protect from.
//!
//! This module decides nothing about what a program may do: the machine and its host functions do.

mod account;
mod cache;
pub mod call;
mod check;
mod code;
mod compiler_sandbox;
mod deterministic;
mod disk_quota;
mod engine;
mod executor;
#[cfg(feature = "factory")]
pub mod factory;
mod files;
mod find;
mod isolated;
mod preopens;
mod preview1;
mod preview1_paths;
mod preview2;
mod preview2_paths;
mod probe;
mod process;
mod program;
mod relay;
mod report;
mod run;
mod sandbox;
mod sandbox_parts;
mod snapshot;
mod state;
mod streams;
mod threads;
mod tree;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Error, ErrorCode, Result, Sandbox, SandboxId,
};

pub use compiler_sandbox::Worker;
pub use worker::worker;

use compiler_sandbox::WorkerWalls;
use engine::{Machines, Supply};
use isolated::IsolatedSandbox;
use program::{Library, ProgramBytes};
use sandbox::WasmSandbox;
use sandbox_parts::WasmSandboxParts;
use threads::Threads;

/// The wasm backend's name.
pub const NAME: BackendName = BackendName::literal("wasm");

/// What the sandboxes of one backend share.
struct WasmShared {
    machines: Machines,
    library: Library,
    threads: Threads,
    modules: HashMap<String, ProgramBytes>,
}

/// The wasm backend.
pub struct Wasm {
    shared: Arc<WasmShared>,
    walls: Option<Arc<WorkerWalls>>,
    /// Whether programs may run in this process where there are no walls to be had.
    walls_may_lack: bool,
    sandboxes: Mutex<HashMap<SandboxId, LiveWasmSandbox>>,
}

/// A live sandbox, of either kind.
#[derive(Clone)]
enum LiveWasmSandbox {
    Here(Arc<WasmSandbox>),
    Walled(Arc<IsolatedSandbox>),
}

impl LiveWasmSandbox {
    async fn end_programs(&self) -> Result<()> {
        match self {
            Self::Here(sandbox) => sandbox.end_programs().await,
            Self::Walled(sandbox) => sandbox.end_programs().await,
        }
    }

    fn into_sandbox(self) -> Arc<dyn Sandbox> {
        match self {
            Self::Here(sandbox) => sandbox,
            Self::Walled(sandbox) => sandbox,
        }
    }
}

/// How a wasm backend is to be.
#[derive(Default)]
pub struct WasmSettings {
    cache: Option<PathBuf>,
    modules: HashMap<String, Data>,
    worker: Option<Worker>,
    walls_may_lack: bool,
}

impl WasmSettings {
    /// Keeps compiled code in this directory, shared with other processes that use it. A directory that
    /// cannot be used costs time and nothing else.
    #[must_use]
    pub fn cached(self, directory: &Path) -> Self {
        Self { cache: Some(directory.to_owned()), ..self }
    }

    /// Gives every sandbox a module by its bytes, in binary or text form, under a name that commands
    /// call it by.
    #[must_use]
    pub fn with_module(mut self, name: impl Into<String>, bytes: impl Into<Data>) -> Self {
        self.modules.insert(name.into(), bytes.into());
        self
    }

    /// Runs each program in a worker inside native walls, or refuses.
    #[must_use]
    pub fn isolated(self, worker: Worker) -> Self {
        Self { worker: Some(worker), walls_may_lack: false, ..self }
    }

    /// Likewise where native walls are to be had, and in this process where they are not; the
    /// capabilities say which.
    #[must_use]
    pub fn isolated_if_possible(self, worker: Worker) -> Self {
        Self { worker: Some(worker), walls_may_lack: true, ..self }
    }
}

impl Default for Wasm {
    fn default() -> Self {
        Self::new(WasmSettings::default())
    }
}

impl Wasm {
    /// A backend as told; by default one that runs programs in this process. Nothing is made before it
    /// is needed.
    pub fn new(settings: WasmSettings) -> Self {
        let WasmSettings { cache, modules, worker, walls_may_lack } = settings;
        let supply = if worker.is_some() { Supply::Single } else { Supply::Pool };
        let shared = WasmShared {
            machines: Machines::new(supply),
            library: Library::new(cache),
            threads: Threads::default(),
            modules: modules.into_iter().map(|(name, bytes)| (name, bytes.into())).collect(),
        };
        let walls = worker.map(WorkerWalls::new);
        Self {
            shared: Arc::new(shared),
            walls: walls.map(Arc::new),
            walls_may_lack,
            sandboxes: Mutex::default(),
        }
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, LiveWasmSandbox>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn build_sandbox(&self, id: &SandboxId, admitted: &Admitted) -> Result<LiveWasmSandbox> {
        let body = || WasmSandboxParts::new(id, admitted, Arc::clone(&self.shared));
        let Some(walls) = &self.walls else {
            return Ok(LiveWasmSandbox::Here(Arc::new(WasmSandbox::new(body()?))));
        };
        match IsolatedSandbox::new(body()?, admitted, Arc::clone(walls)).await {
            Ok(sandbox) => Ok(LiveWasmSandbox::Walled(Arc::new(sandbox))),
            // Only where the capabilities say so too.
            Err(_) if self.walls_may_lack && walls.native.probe().await.unavailable.is_some() => {
                tree::remove_private_dir(id)?;
                Ok(LiveWasmSandbox::Here(Arc::new(WasmSandbox::new(body()?))))
            }
            Err(error) => Err(error.remedy("run it in this process with --no-isolate")),
        }
    }

    async fn end_sandbox(&self, id: &SandboxId) -> Result<()> {
        let live = self.sandboxes().get(id).cloned();
        if let Some(live) = live {
            live.end_programs().await?;
        }
        // Its workers too, also those that a dead engine left.
        if let Some(walls) = &self.walls {
            walls.native.destroy(id).await?;
        }
        tree::remove_private_dir(id)
    }
}

#[async_trait]
impl Backend for Wasm {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        let walls = match &self.walls {
            Some(walls) => Some(walls.native.probe().await),
            None => None,
        };
        probe::measure_capabilities(&self.shared, walls.as_ref(), self.walls_may_lack)
    }

    fn fingerprint(&self) -> Option<String> {
        let worker = self.walls.as_ref().map(|walls| &walls.worker);
        crate::linux::host_fingerprint()
            .map(|own| format!("{own}\n{worker:?} {}", self.walls_may_lack))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        if self.sandboxes().contains_key(id) {
            let message = format!("there is a sandbox `{id}` already");
            return Err(Error::new(ErrorCode::Invalid, "create", message).backend(NAME));
        }
        match self.build_sandbox(id, admitted).await {
            Ok(live) => {
                self.sandboxes().insert(id.clone(), live.clone());
                Ok(live.into_sandbox())
            }
            Err(error) => {
                self.end_sandbox(id).await?;
                Err(error)
            }
        }
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let own = self.sandboxes().keys().cloned().collect::<Vec<_>>();
        let ids: BTreeSet<_> = tree::list_sandbox_ids().into_iter().chain(own).collect();
        Ok(ids.into_iter().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.end_sandbox(id).await?;
        self.sandboxes().remove(id);
        Ok(())
    }
}
