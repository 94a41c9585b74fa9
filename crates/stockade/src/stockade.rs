//! One engine with its backends, open for as many sandboxes as are wanted.

use std::path::PathBuf;
use std::sync::Arc;

use stockade_backends::factory::{BuildContext, WorkerProgram};
use stockade_core::{Backend, Capabilities, Command, Result, SandboxSpec};
use stockade_engine::{Engine, EngineConfig, Output};

use crate::builder::SandboxBuilder;
use crate::config::Settings;
use crate::images::{Images, PullProgress};
use crate::registry;

/// An open engine with its backends. Clones are the same engine.
///
/// [`crate::run`] and [`crate::Sandbox::builder`] open one for each call. A program that builds more than one sandbox
/// opens it once: a backend is measured only the first time, and quotas hold over all of them.
#[derive(Clone)]
pub struct Stockade {
    engine: Engine,
    usual: SandboxSpec,
}

/// What an engine is opened with.
#[must_use = "nothing is opened before `open`"]
pub struct StockadeBuilder {
    settings: Option<Settings>,
    state_dir: Option<PathBuf>,
    backends: Vec<Arc<dyn Backend>>,
    builtin: bool,
    context: BuildContext,
    pulls: Arc<dyn PullProgress>,
}

impl Stockade {
    /// Opens an engine with what is configured for the command `stockade`: its backends, limits and quotas, and its
    /// state directory. What dead engines left there is removed first.
    pub async fn open() -> Result<Self> {
        Self::builder().open().await
    }

    /// Opens one in another way.
    pub fn builder() -> StockadeBuilder {
        StockadeBuilder {
            settings: None,
            state_dir: None,
            backends: Vec::new(),
            builtin: true,
            context: BuildContext::default(),
            pulls: Arc::new(()),
        }
    }

    /// Describes a sandbox of this engine. It has what is configured until it is told otherwise.
    pub fn sandbox(&self) -> SandboxBuilder {
        SandboxBuilder::new(Some(self.clone()), self.usual.clone())
    }

    /// Runs a line of shell in a sandbox of its own, and returns what it wrote once nothing of the sandbox is left.
    pub async fn run(&self, line: impl Into<String>) -> Result<Output> {
        self.run_command(self.usual.clone(), Command::shell(line)).await
    }

    /// Runs one command in a sandbox of its own, both described in full.
    pub async fn run_command(&self, spec: SandboxSpec, command: Command) -> Result<Output> {
        let (execution, events) = self.engine.run_followed(spec, command).await?;
        let output = events.output().await;
        execution.close().await?;
        Ok(output)
    }

    /// What each backend can enforce on this host, measured now.
    pub async fn detect(&self) -> Vec<Capabilities> {
        self.engine.detect().await
    }

    /// The spec that sandboxes have until they are told otherwise.
    pub fn usual_spec(&self) -> &SandboxSpec {
        &self.usual
    }

    /// The engine itself: audit journal, leases, pools, selection.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Ends every sandbox of this engine, and returns when nothing of them is left. Idempotent.
    pub async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}

impl StockadeBuilder {
    /// Takes these settings instead of those of the host. `Settings::default()` is: nothing is configured.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings: Some(settings), ..self }
    }

    /// Keeps journal, leases and snapshots in this directory. Absolute; made if it is not there.
    pub fn state_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { state_dir: Some(dir.into()), ..self }
    }

    /// Adds a backend, in place of the one of the same name if this build has it. One whose boundary makes no
    /// security claim is taken only by its name.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backends.push(backend);
        self
    }

    /// Uses no backend but those that are added.
    pub fn only_added_backends(self) -> Self {
        Self { builtin: false, ..self }
    }

    /// Tells of what takes long: an image that is fetched, a machine that is prepared.
    pub fn on_progress(mut self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.context.progress = Arc::new(tell);
        self
    }

    /// Tells of images that are pulled, layer by layer.
    pub fn on_pull(self, progress: Arc<dyn PullProgress>) -> Self {
        Self { pulls: progress, ..self }
    }

    /// The program in which WebAssembly runs inside native walls, where those are to be had. It calls the backend's
    /// `worker` when it is started with the arguments that are named here. Without one, WebAssembly runs in this process.
    pub fn worker(mut self, worker: WorkerProgram) -> Self {
        self.context.worker = Some(worker);
        self
    }

    /// Opens the engine. No backend is measured before it is needed.
    pub async fn open(self) -> Result<Stockade> {
        let settings = match self.settings {
            Some(settings) => settings,
            None => Settings::load(None, &|_| {})?,
        };
        let settings = match self.state_dir {
            Some(dir) => settings.with_state_dir(dir),
            None => settings,
        };
        let images = Some(Images::new(&settings)?.provider(self.pulls));
        let config = EngineConfig { images, ..settings.engine()? };
        let usual = settings.spec();
        let state_dir = Some(config.state_dir.clone());
        let context = BuildContext { state_dir, ..self.context };
        let mut backends = self.backends;
        if self.builtin {
            let added: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
            let mut builtin = registry::build_backends(&settings, &usual.backend, &context)?;
            builtin.retain(|backend| !added.contains(&backend.name()));
            backends.extend(builtin);
        }
        Ok(Stockade { engine: Engine::open(config, backends).await?, usual })
    }
}
