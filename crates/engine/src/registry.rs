//! The backends an engine was given, each measured at most once in its life.

use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Backend, BackendChoice, BackendName, Boundary, Capabilities, SandboxSpec};
use tokio::sync::OnceCell;

/// A probe that takes longer than this is an answer too.
const PROBE_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Registry(Vec<Registered>);

struct Registered {
    backend: Arc<dyn Backend>,
    capabilities: OnceCell<Capabilities>,
}

impl Registry {
    pub(crate) fn new(backends: Vec<Arc<dyn Backend>>) -> Self {
        let unmeasured = |backend| Registered { backend, capabilities: OnceCell::new() };
        Self(backends.into_iter().map(unmeasured).collect())
    }

    pub(crate) fn get(&self, name: &BackendName) -> Option<&Arc<dyn Backend>> {
        self.0.iter().map(|registered| &registered.backend).find(|backend| backend.name() == *name)
    }

    pub(crate) fn names(&self) -> Vec<BackendName> {
        self.0.iter().map(|registered| registered.backend.name()).collect()
    }

    /// What one backend was measured to have.
    pub(crate) async fn capabilities(&self, name: &BackendName) -> Option<&Capabilities> {
        let registered = self.0.iter().find(|registered| registered.backend.name() == *name)?;
        Some(registered.measure().await)
    }

    /// What the backends a spec could take were measured to have. One that is named is measured alone.
    pub(crate) async fn measured(&self, spec: &SandboxSpec) -> Vec<Capabilities> {
        let wanted = |registered: &&Registered| match &spec.backend {
            BackendChoice::Auto => true,
            BackendChoice::Named(name) => registered.backend.name() == *name,
        };
        let mut measured = Vec::new();
        for registered in self.0.iter().filter(wanted) {
            measured.push(registered.measure().await.clone());
        }
        measured
    }
}

impl Registered {
    async fn measure(&self) -> &Capabilities {
        let probe = || async {
            let probed = tokio::time::timeout(PROBE_DEADLINE, self.backend.probe()).await;
            probed.unwrap_or_else(|_| {
                let reason = format!("measuring it took longer than {PROBE_DEADLINE:?}");
                let remedy = "see why it hangs, or choose another backend";
                Capabilities::unavailable(self.backend.name(), Boundary::None, reason, remedy)
            })
        };
        self.capabilities.get_or_init(probe).await
    }
}
