//! The backends an engine was given, each measured at most once in its life.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_core::{
    Backend, BackendChoice, BackendName, Boundary, Capabilities, ImageForm, ImageProvider,
    SandboxSpec,
};
use tokio::sync::OnceCell;

use crate::capability_cache::CapabilityCache;
use crate::images::{
    find_provided_form, lacks_archives, with_imported_archives, with_provided_images,
    without_provided_modules,
};

/// A probe that takes longer than this is an answer too.
const PROBE_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Registry {
    backends: Vec<Registered>,
    kept: CapabilityCache,
    /// Who provides images by name to backends that have none.
    images: Option<Arc<dyn ImageProvider>>,
}

struct Registered {
    backend: Arc<dyn Backend>,
    measured: OnceCell<MeasuredBackend>,
}

struct MeasuredBackend {
    capabilities: Capabilities,
    /// The form of images by name that are among them only because they are provided.
    provided_form: Option<ImageForm>,
    /// Whether archives of images are among them only because they are imported.
    imports: bool,
}

impl MeasuredBackend {
    /// What a spec may count on, by whether it names this backend: most images are no modules, so none is taken for one
    /// by itself.
    fn capabilities_for(&self, named: bool) -> Capabilities {
        match self.provided_form {
            Some(ImageForm::Module) if !named => {
                without_provided_modules(self.capabilities.clone())
            }
            Some(ImageForm::Root | ImageForm::Module) | None => self.capabilities.clone(),
        }
    }
}

impl Registry {
    pub(crate) fn new(
        backends: Vec<Arc<dyn Backend>>,
        kept: CapabilityCache,
        images: Option<Arc<dyn ImageProvider>>,
    ) -> Self {
        let unmeasured = |backend| Registered { backend, measured: OnceCell::new() };
        Self { backends: backends.into_iter().map(unmeasured).collect(), kept, images }
    }

    /// A wall that was measured is not there any more: the next engine looks again.
    pub(crate) fn distrust_measurement(&self, backend: &dyn Backend) {
        self.kept.remove_measurement(backend);
    }

    /// What each backend has, measured now: cached measurements are removed first.
    pub(crate) async fn measure_anew(&self) -> Vec<Capabilities> {
        self.backends
            .iter()
            .for_each(|registered| self.kept.remove_measurement(registered.backend.as_ref()));
        let mut measured = Vec::new();
        for registered in &self.backends {
            measured.push(self.measure(registered, false).await.capabilities.clone());
        }
        measured
    }

    async fn measure<'r>(&'r self, registered: &'r Registered, named: bool) -> &'r MeasuredBackend {
        registered.measure(&self.kept, self.images.as_deref(), named).await
    }

    pub(crate) fn get(&self, name: &BackendName) -> Option<&Arc<dyn Backend>> {
        self.backends
            .iter()
            .map(|registered| &registered.backend)
            .find(|backend| backend.name() == *name)
    }

    pub(crate) fn names(&self) -> Vec<BackendName> {
        self.backends.iter().map(|registered| registered.backend.name()).collect()
    }

    /// What one backend was measured to have.
    pub(crate) async fn capabilities(&self, name: &BackendName) -> Option<&Capabilities> {
        let registered =
            self.backends.iter().find(|registered| registered.backend.name() == *name)?;
        Some(&self.measure(registered, true).await.capabilities)
    }

    /// The form of images by name that a backend has only because they are provided.
    pub(crate) async fn provided_form(&self, name: &BackendName) -> Option<ImageForm> {
        let registered = self.backends.iter().find(|known| known.backend.name() == *name)?;
        self.measure(registered, true).await.provided_form
    }

    /// Whether a backend has archives of images only because they are imported.
    pub(crate) async fn imports_archives(&self, name: &BackendName) -> bool {
        let registered = self.backends.iter().find(|known| known.backend.name() == *name);
        match registered {
            Some(registered) => self.measure(registered, true).await.imports,
            None => false,
        }
    }

    /// What the backends a spec could take were measured to have. One that is named is measured alone,
    /// and one that is to be had only by its name is measured only then.
    pub(crate) async fn measured(&self, spec: &SandboxSpec) -> Vec<Capabilities> {
        let wanted = |registered: &&Registered| match &spec.backend {
            BackendChoice::Auto => true,
            BackendChoice::Named(name) => registered.backend.name() == *name,
        };
        let named = spec.backend != BackendChoice::Auto;
        let mut measured = Vec::new();
        for registered in self.backends.iter().filter(wanted) {
            if let Some(reason) = registered.backend.only_by_name().filter(|_| !named) {
                measured.push(build_unmeasured_capabilities(registered.backend.name(), reason));
                continue;
            }
            measured.push(self.measure(registered, named).await.capabilities_for(named));
        }
        measured
    }
}

/// The capabilities of a backend that was not measured.
fn build_unmeasured_capabilities(backend: BackendName, reason: String) -> Capabilities {
    let mut said = Capabilities::none(backend, Boundary::None);
    said.only_by_name = Some(reason);
    said
}

impl Registered {
    async fn measure(
        &self,
        kept: &CapabilityCache,
        images: Option<&dyn ImageProvider>,
        named: bool,
    ) -> &MeasuredBackend {
        let measure = || async {
            // What is kept on disk is the backend's own: other engines may have no provider.
            let own = self.read_or_probe(kept, named).await;
            let form = images.and(find_provided_form(&own));
            let mechanism = form.and_then(|form| images?.mechanism(form));
            let archives = images.filter(|_| lacks_archives(&own));
            let archives = archives.and_then(ImageProvider::import_mechanism);
            let provided_form = form.filter(|_| mechanism.is_some());
            let imports = archives.is_some();
            let mut capabilities = own;
            if let Some(mechanism) = mechanism {
                capabilities = with_provided_images(capabilities, &mechanism);
            }
            if let Some(mechanism) = archives {
                capabilities = with_imported_archives(capabilities, &mechanism);
            }
            MeasuredBackend { capabilities, provided_form, imports }
        };
        self.measured.get_or_init(measure).await
    }

    async fn read_or_probe(&self, kept: &CapabilityCache, named: bool) -> Capabilities {
        match kept.read_measurement(self.backend.as_ref()) {
            // Who names a backend wants to know how it is now.
            Some(known) if !(named && known.unavailable.is_some()) => return known,
            Some(_) | None => {}
        }
        let begun = Instant::now();
        let measured = self.probe().await;
        kept.keep(self.backend.as_ref(), &measured, begun.elapsed());
        measured
    }

    async fn probe(&self) -> Capabilities {
        let probed = tokio::time::timeout(PROBE_DEADLINE, self.backend.probe()).await;
        probed.unwrap_or_else(|_| {
            let reason = format!("measuring it took longer than {PROBE_DEADLINE:?}");
            let remedy = "see why it hangs, or choose another backend";
            Capabilities::unavailable(self.backend.name(), Boundary::None, reason, remedy)
        })
    }
}
