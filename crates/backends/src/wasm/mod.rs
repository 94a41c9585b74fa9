//! WebAssembly: programs that have no kernel interface at all, in this process or in a worker inside
//! native walls. `docs/backends/wasm.md` says what that does not protect from.
//!
//! This module decides nothing about what a program may do: the machine and its host functions do.

mod account;
mod cache;
mod check;
mod code;
mod engine;
mod files;
mod find;
mod fixed;
mod preview1;
mod preview2;
mod probe;
mod process;
mod program;
mod run;
mod sandbox;
mod snapshot;
mod state;
mod streams;
mod threads;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Error, ErrorCode, Result, Sandbox, SandboxId,
};

use cache::Cache;
use engine::{Machines, Supply};
use program::Library;
use sandbox::WasmSandbox;
use threads::Threads;

/// The wasm backend's name.
pub const NAME: BackendName = BackendName::literal("wasm");

/// What the sandboxes of one backend share.
struct Shared {
    machines: Machines,
    library: Library,
    threads: Threads,
    modules: HashMap<String, Data>,
}

/// The wasm backend.
pub struct Wasm {
    shared: Arc<Shared>,
    sandboxes: Mutex<HashMap<SandboxId, Arc<WasmSandbox>>>,
}

/// How a wasm backend is to be.
#[derive(Default)]
pub struct Settings {
    cache: Option<Cache>,
    modules: HashMap<String, Data>,
}

impl Settings {
    /// Keeps compiled code in this directory, shared with whoever else uses it. A directory that cannot
    /// be used costs time and nothing else.
    #[must_use]
    pub fn cached(self, directory: &Path) -> Self {
        Self { cache: Cache::open(directory).ok(), ..self }
    }

    /// Gives every sandbox a module by its bytes, in binary or text form, under a name that commands
    /// call it by.
    #[must_use]
    pub fn with_module(mut self, name: impl Into<String>, bytes: impl Into<Data>) -> Self {
        self.modules.insert(name.into(), bytes.into());
        self
    }
}

impl Default for Wasm {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Wasm {
    /// A backend that runs programs in this process. Nothing is made before it is needed.
    pub fn new(settings: Settings) -> Self {
        let Settings { cache, modules } = settings;
        let shared = Shared {
            machines: Machines::new(Supply::Pool),
            library: Library::new(cache),
            threads: Threads::default(),
            modules,
        };
        Self { shared: Arc::new(shared), sandboxes: Mutex::default() }
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<WasmSandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Wasm {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        probe::measure(&self.shared)
    }

    fn fingerprint(&self) -> Option<String> {
        crate::linux::fingerprint()
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        if self.sandboxes().contains_key(id) {
            let message = format!("there is a sandbox `{id}` already");
            return Err(Error::new(ErrorCode::Invalid, "create", message).backend(NAME));
        }
        match WasmSandbox::new(id, admitted, Arc::clone(&self.shared)) {
            Ok(sandbox) => {
                let sandbox = Arc::new(sandbox);
                self.sandboxes().insert(id.clone(), Arc::clone(&sandbox));
                Ok(sandbox)
            }
            Err(error) => {
                tree::remove(id)?;
                Err(error)
            }
        }
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let own = self.sandboxes().keys().cloned().collect::<Vec<_>>();
        let ids: BTreeSet<_> = tree::ids().into_iter().chain(own).collect();
        Ok(ids.into_iter().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let sandbox = self.sandboxes().get(id).cloned();
        if let Some(sandbox) = sandbox {
            sandbox.end().await?;
        }
        tree::remove(id)?;
        self.sandboxes().remove(id);
        Ok(())
    }
}
