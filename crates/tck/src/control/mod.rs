//! A backend without any walls: plain processes of the host, which nonetheless declares every feature.
//! Every case about walls has to fail on it; if one does not, the case proves nothing.
//!
//! Never for use. It is in no registry and its boundary is `none`.

mod files;
mod network;
mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Command, EffectiveLimits, Error,
    ErrorCode, Feature, Files, ImageName, Process, Result, Sandbox, SandboxId, Support, Workspace,
};
use tempfile::TempDir;

use crate::{HostObserver, Observer, Subject};
use files::PlainFiles;
use process::Children;

const NAME: BackendName = BackendName::literal("control");

/// Cases not about isolation that a plain process cannot pass either, and why.
pub const EXCUSED_CASES: &[(&str, &str)] = &[
    ("a program is given a terminal of the size asked for", "it gives no terminal"),
    ("a program sees its terminal's new size", "it gives no terminal"),
    ("a snapshot of the files brings them back as they were", "it takes no snapshot"),
    ("a snapshot says nothing that is secret", "it takes no snapshot"),
    ("a full snapshot brings files back while the program goes on", "it takes no snapshot"),
    ("a sandbox made from a snapshot has its files and shares none", "it takes no snapshot"),
    ("copies of a live sandbox are different machines", "it takes no snapshot"),
    ("a snapshot in which a byte was changed is not brought back", "it takes no snapshot"),
    ("a snapshot names no path, mount or given-up feature of its host", "it takes no snapshot"),
    ("an image that is not to be had fails by its name", "it has no images"),
    ("a WebAssembly module of the host is the program", "it runs programs of the host's own kind"),
    ("a workspace appears at the path that was chosen, and at its usual one", "it mounts nothing"),
    ("nothing is left of a sandbox whose mount does not exist", "it mounts nothing"),
    ("a host of the list is reached by name and by proxy", "it has neither name server nor proxy"),
    ("a connection carries requests for its own host only", "it has neither name server nor proxy"),
    ("nothing is left after the engine's process was killed", "its processes outlive their engine"),
];

/// The control as a subject.
#[derive(Clone, Default)]
pub struct Control {
    backend: Arc<Plain>,
    engine: Option<PathBuf>,
}

impl Control {
    /// With a program that takes the name of a subject and plays an engine process for it.
    #[must_use]
    pub fn with_engine_process(self, program: PathBuf) -> Self {
        Self { engine: Some(program), ..self }
    }
}

impl Subject for Control {
    fn name(&self) -> String {
        "control".into()
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(HostObserver::default())
    }

    fn named_image(&self) -> Option<ImageName> {
        "anything".parse().ok()
    }

    fn engine_process(&self) -> Option<std::process::Command> {
        let mut process = std::process::Command::new(self.engine.as_ref()?);
        process.arg("control");
        Some(process)
    }
}

#[derive(Default)]
struct Plain {
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<ControlSandbox>>>,
}

impl Plain {
    fn sandboxes(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<ControlSandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Plain {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        let nothing = Capabilities::none(NAME, Boundary::None);
        Feature::ALL
            .iter()
            .fold(nothing, |all, feature| all.with(*feature, Support::full("mere assertion")))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        let sandbox = Arc::new(ControlSandbox::new(id, admitted)?);
        self.sandboxes().insert(id.clone(), Arc::clone(&sandbox));
        Ok(sandbox)
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(self.sandboxes().keys().cloned().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let sandbox = self.sandboxes().remove(id);
        match sandbox {
            Some(sandbox) => sandbox.children.kill_all().await,
            None => Ok(()),
        }
    }
}

/// A directory and a list of children: all that there is.
struct ControlSandbox {
    id: SandboxId,
    files: PlainFiles,
    children: Children,
    paused: AtomicBool,
    _own: Option<TempDir>,
}

impl ControlSandbox {
    fn new(id: &SandboxId, admitted: &Admitted) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorCode::Invalid, "create", "the workspace cannot be used").source(error)
        };
        let (root, own) = match &admitted.spec().workspace {
            Workspace::Local(path) => (path.as_path().canonicalize().map_err(failed)?, None),
            Workspace::Overlay(layers) => {
                (layers.lower.as_path().canonicalize().map_err(failed)?, None)
            }
            Workspace::Ephemeral => {
                let own = tempfile::tempdir().map_err(failed)?;
                (own.path().to_owned(), Some(own))
            }
        };
        let files = PlainFiles::new(root);
        let (children, paused) = (Children::default(), AtomicBool::new(false));
        Ok(Self { id: id.clone(), files, children, paused, _own: own })
    }
}

#[async_trait]
impl Sandbox for ControlSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    async fn spawn(&self, command: &Command, _limits: &EffectiveLimits) -> Result<Process> {
        let dir = command.dir.as_ref().map_or(".", |dir| dir.as_str());
        self.children.spawn(command, &self.files.resolve_str(dir)).await
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(&self.files)
    }

    async fn open_network(&self) -> Result<Process> {
        Ok(network::idle_helper())
    }

    async fn pause(&self) -> Result<()> {
        self.children.signal_all(rustix::process::Signal::STOP);
        self.paused.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.children.signal_all(rustix::process::Signal::CONT);
        self.paused.store(false, Ordering::SeqCst);
        Ok(())
    }
}
