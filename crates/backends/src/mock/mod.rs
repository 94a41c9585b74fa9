//! A backend without walls, in memory: scripted programs, a virtual file tree, faults on demand.
//!
//! It proves calls, not walls: everything above the backends is tested with it, nothing about
//! isolation is. Its boundary is `none`, so it is never chosen automatically.

#[cfg(feature = "factory")]
pub mod factory;
mod faults;
mod guest;
mod process;
mod sandbox;
mod script;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Error, ErrorCode, Feature, Result,
    Sandbox, SandboxId, SnapshotFiles, Support, create_and_restore,
};

pub use faults::{Fault, Faults};
pub use guest::{Guest, MockProgram};
use sandbox::MockSandbox;
pub use script::{Script, ScriptStep};
pub use tree::{Errno, MockNode, MockTree};

/// The mock's name.
pub const NAME: BackendName = BackendName::literal("mock");

/// Features that a simulation in memory cannot offer, and why.
const MISSING_FEATURES: [(Feature, &str); 13] = [
    (Feature::LocalWorkspace, "its files are in memory only"),
    (Feature::OverlayWorkspace, "its files are in memory only"),
    (Feature::ExtraMounts, "its files are in memory only"),
    (Feature::HostTrees, "its files are in memory only"),
    (Feature::WorkspacePath, "its workspace is at /workspace"),
    (Feature::DirectoryImage, "its programs are scripts"),
    (Feature::OciImage, "its programs are scripts"),
    (Feature::NamedImage, "its programs are scripts"),
    (Feature::WasmImage, "its programs are scripts"),
    (Feature::CopyOnWriteImage, "its programs are scripts"),
    (Feature::EgressAllowlist, "it has no network"),
    (Feature::FuelLimit, "its programs have no instructions"),
    (Feature::Determinism, "its programs are scripts"),
];

/// The mock backend. Clones share their sandboxes.
#[derive(Clone)]
pub struct Mock {
    programs: HashMap<String, Arc<dyn MockProgram>>,
    faults: Faults,
    capabilities: Capabilities,
    sandboxes: Arc<Mutex<BTreeMap<SandboxId, Arc<MockSandbox>>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Mock {
    fn default() -> Self {
        Self::new()
    }
}

impl Mock {
    /// A mock that knows no program and has no fault.
    pub fn new() -> Self {
        let nothing = Capabilities::none(NAME, Boundary::None);
        let all = Feature::ALL.iter().fold(nothing, |all, feature| {
            let missing = MISSING_FEATURES.iter().find(|(missing, _)| missing == feature);
            let support = missing.map_or(Support::full("simulation"), |(_, reason)| {
                Support::missing(*reason, "choose a real backend")
            });
            all.with(*feature, support)
        });
        Self {
            programs: HashMap::new(),
            faults: Faults::default(),
            capabilities: all,
            sandboxes: Arc::default(),
        }
    }

    /// Adds a program under the name that commands call it by.
    #[must_use]
    pub fn with_program(
        mut self,
        name: impl Into<String>,
        program: impl MockProgram + 'static,
    ) -> Self {
        self.programs.insert(name.into(), Arc::new(program));
        self
    }

    /// Fails where told.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Claims something else about one feature.
    #[must_use]
    pub fn with_support(self, feature: Feature, support: Support) -> Self {
        Self { capabilities: self.capabilities.with(feature, support), ..self }
    }

    /// Lets a sandbox die by itself: it is no longer alive, and waits to be destroyed.
    pub fn lose(&self, id: &SandboxId) {
        lock(&self.sandboxes).get(id).inspect(|sandbox| sandbox.mark_lost());
    }

    /// The programs that run in a sandbox, detached ones included.
    pub fn processes(&self, id: &SandboxId) -> usize {
        lock(&self.sandboxes).get(id).map_or(0, |sandbox| sandbox.count_processes())
    }
}

#[async_trait]
impl Backend for Mock {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        self.faults.create.inject_fault("create").await?;
        let sandbox =
            Arc::new(MockSandbox::new(id, admitted, self.programs.clone(), self.faults.clone()));
        let mut sandboxes = lock(&self.sandboxes);
        if sandboxes.contains_key(id) {
            let message = format!("there is a sandbox `{id}` already");
            return Err(Error::new(ErrorCode::Invalid, "create", message).backend(NAME));
        }
        sandboxes.insert(id.clone(), Arc::clone(&sandbox));
        Ok(sandbox)
    }

    async fn create_from(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        from: &SnapshotFiles,
    ) -> Result<Arc<dyn Sandbox>> {
        let made = create_and_restore(self, id, admitted, from).await?;
        let sandbox = lock(&self.sandboxes).get(id).cloned();
        if let Some(sandbox) = sandbox {
            sandbox.resume_programs(from, admitted.limits()).await?;
        }
        Ok(made)
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(lock(&self.sandboxes).keys().cloned().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.faults.destroy.inject_fault("destroy").await?;
        let sandbox = lock(&self.sandboxes).remove(id);
        if let Some(sandbox) = sandbox {
            sandbox.end_tasks().await;
        }
        Ok(())
    }
}
