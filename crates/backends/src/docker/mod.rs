//! Containers of an engine that is already there: Docker's, or Podman's behind the same interface.
//! `docs/backends/docker.md` says what that does not protect from.
//!
//! The engine builds the walls; this module asks for all of them, reads them back, puts the agent
//! inside and attaches to it. It never runs a container's own entry point.

mod agent;
mod archive;
mod container;
#[cfg(feature = "factory")]
pub mod factory;
mod helpers;
mod images;
#[cfg(test)]
mod import_tests;
mod inert;
mod list;
mod plan;
mod probe;
mod socket;
mod tree;
mod walls;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::HostConfig;
use stockade_core::{
    Admitted, BackendName, Boundary, Capabilities, Error, ErrorCode, ImageName, LimitKind,
    PullPolicy, ResolvedImage, Result, Sandbox, SandboxId,
};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::agent_sandbox::{AgentSandbox, HostMonitor};
use crate::linux::archives::Archives;
use crate::linux::cgroup::throwaway;
use crate::linux::freezer::Freezer;
use crate::linux::limit_monitor::Kernel;
use crate::linux::running::LiveWalls;
use crate::linux::{self, dir_lock, lock};
use crate::managed::{Cancellation, Managed, WallBuilder};
use container::{Container, RemovalCaller};
use images::DockerImage;
use socket::EngineHandle;

pub use socket::DockerOptions;

/// The docker backend's name.
pub const NAME: BackendName = BackendName::literal("docker");

/// How long sweeping up what dead engines left may delay a new connection.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(15);

/// The longest gap between two reaped containers that belong to one series.
const REAP_SERIES_GAP: Duration = Duration::from_millis(500);

/// How long an engine may take to build a container, also after the caller has given up.
const BUILD_TIMEOUT: Duration = Duration::from_secs(100);

/// How many images are remembered as looked through.
const MAX_CHECKED: usize = 256;

/// What is said while an image is on its way.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// The docker backend. Connects when it is first asked for something.
pub type Docker = Managed<DockerWalls>;

/// What has the docker backend's walls built.
pub struct DockerWalls {
    options: DockerOptions,
    /// When the engine asks a registry for an image.
    pull: PullPolicy,
    engine: OnceCell<EngineHandle>,
    running: Mutex<HashMap<SandboxId, Arc<LiveWalls>>>,
    /// The sandboxes that were asked for here, and what the engine calls the containers that it made.
    asked: Mutex<HashMap<SandboxId, Option<String>>>,
    /// Start of the current series of reaps, and time of the last one: makers of all reaped died before.
    reaping: Mutex<Option<(Instant, Instant)>>,
    /// The images whose links were looked up, each with where things are mounted.
    checked: Mutex<BTreeSet<(String, BTreeSet<String>)>>,
    progress: Progress,
}

/// What was seen of a container from outside.
#[derive(Debug, Clone)]
struct MeasuredWalls {
    boundary: Boundary,
    /// The limits that were asked for and that nothing holds it to.
    loose: Vec<LimitKind>,
    /// Whether a container has but one user.
    one_user: bool,
}

/// Purpose of a build: a caller's sandbox, whose walls were promised, or a trial of what can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Use,
    Trial,
}

impl Default for Docker {
    fn default() -> Self {
        Self::new(DockerOptions::default(), Arc::new(|_| {}))
    }
}

impl Docker {
    /// A backend that has not touched anything yet. `progress` is told how far the fetching of an
    /// image is.
    pub fn new(options: DockerOptions, progress: Progress) -> Self {
        Self::pulling(options, PullPolicy::default(), progress)
    }

    /// The same, where the engine asks registries for images by this policy.
    pub fn pulling(options: DockerOptions, pull: PullPolicy, progress: Progress) -> Self {
        Self::of(DockerWalls {
            options,
            pull,
            engine: OnceCell::new(),
            running: Mutex::default(),
            asked: Mutex::default(),
            reaping: Mutex::default(),
            checked: Mutex::default(),
            progress,
        })
    }
}

impl DockerWalls {
    /// The engine behind the socket. One that could not be reached is tried again the next time.
    async fn get_engine(&self) -> Result<&EngineHandle> {
        self.engine.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<EngineHandle> {
        let engine = EngineHandle::connect(&self.options).await?;
        // A failed sweep is no error: the next connect tries again.
        let _ = tokio::time::timeout(SWEEP_TIMEOUT, remove_forsaken_containers(&engine)).await;
        Ok(engine)
    }

    fn lock_running(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<LiveWalls>>> {
        lock(&self.running)
    }

    async fn build_sandbox(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        image: &DockerImage,
        purpose: Purpose,
    ) -> Result<(AgentSandbox, MeasuredWalls)> {
        let engine = self.get_engine().await?;
        let held = dir_lock::hold_layers(&NAME, admitted.spec())?;
        let body = plan::build_create_body(id, admitted, engine, image)?;
        self.check_image(engine, image, body.host_config.as_ref()).await?;
        let container = Container::create(&engine.api, id, body).await?;
        lock(&self.asked).insert(id.clone(), Some(container.hash.clone()));
        inert::check_no_volume(&container).await?;
        let (pipe, started) = container.start().await?;
        let running = started.into_running(id, admitted, held, &engine.api);
        self.lock_running().insert(id.clone(), Arc::clone(&running));
        // Its first process is what it will be only once the agent has spoken.
        let client = pipe.connect().await?;
        let first = walls::identify_first_process(
            running.pid,
            id,
            &container.hash,
            &agent::ensure_host_agent()?,
        )?;
        let boundary = walls::read_back(first, running.pid, engine, &client).await?;
        let loose = walls::find_loose_limits(running.pid, running.group.as_ref(), admitted);
        if purpose == Purpose::Use {
            walls::keep_the_promise(admitted, boundary, &loose)?;
        }
        let user = plan::choose_user(admitted.spec(), engine)?;
        let shared = boundary == Boundary::SharedKernel;
        let kernel = if shared { Kernel::Shared } else { Kernel::Apart };
        let sandbox = AgentSandbox::new(id, client, user)
            .with_monitor(HostMonitor::new(&running, kernel))
            .with_archives(Archives::new(NAME, admitted))
            .with_freezer(Freezer::new(NAME, container));
        let one_user = shared && walls::has_one_user(running.pid);
        Ok((sandbox, MeasuredWalls { boundary, loose, one_user }))
    }

    /// Looks an image's links up, once for the same mounts: an image does not change.
    async fn check_image(
        &self,
        engine: &EngineHandle,
        image: &DockerImage,
        host: Option<&HostConfig>,
    ) -> Result<()> {
        let targets = host.map(inert::list_mount_targets).unwrap_or_default();
        let key = (image.id.clone(), targets);
        if image.own || lock(&self.checked).contains(&key) {
            return Ok(());
        }
        inert::check_links(engine, image, &key.1).await?;
        let mut checked = lock(&self.checked);
        if checked.len() >= MAX_CHECKED {
            checked.clear();
        }
        checked.insert(key);
        Ok(())
    }

    async fn build_for(
        &self,
        purpose: Purpose,
        id: &SandboxId,
        admitted: &Admitted,
        cancellation: &Cancellation,
    ) -> Result<(AgentSandbox, MeasuredWalls)> {
        lock(&self.asked).insert(id.clone(), None);
        let (engine, pull) = (self.get_engine().await?, images::policy_for_build(self.pull));
        let image = images::ensure_image(engine, admitted, pull, &self.progress).await?;
        // An engine goes on with a request whose caller has given up.
        cancellation.forbid();
        let build = self.build_sandbox(id, admitted, &image, purpose);
        let built = tokio::time::timeout(BUILD_TIMEOUT, build).await;
        built.unwrap_or_else(|_| Err(too_slow()))
    }

    /// Start of the current series of reaps, so that the grace period passes once for all of them.
    fn reaping_since(&self) -> Instant {
        let (mut reaping, now) = (lock(&self.reaping), Instant::now());
        let since = reaping
            .filter(|(_, last)| now - *last < REAP_SERIES_GAP)
            .map_or(now, |(since, _)| since);
        *reaping = Some((since, now));
        since
    }

    async fn remove(&self, id: &SandboxId, asker: RemovalCaller) -> Result<()> {
        let engine = self.get_engine().await?;
        container::destroy_container(&engine.api, id, asker).await?;
        let running = self.lock_running().get(id).cloned();
        if let Some(running) = running {
            container::wait_for_container_exit(&running).await?;
            running.let_go();
        }
        let hash = lock(&self.asked).get(id).cloned().flatten();
        container::attended_no_more(engine.uid, id, hash.as_deref()).await?;
        self.lock_running().remove(id);
        Ok(())
    }
}

#[async_trait]
impl WallBuilder for DockerWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        probe::measure_capabilities(&self).await
    }

    fn fingerprint(&self) -> Option<String> {
        // First the engine's: where there is none, nothing of the host has to be read.
        let engine = self.options.fingerprint()?;
        Some(format!("{}\n{engine}", linux::host_fingerprint()?))
    }

    async fn resolve_image(&self, name: &ImageName) -> Result<Option<ResolvedImage>> {
        let api = &self.get_engine().await?.api;
        images::resolve_named_image(api, name, self.pull, &self.progress).await.map(Some)
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        let (sandbox, _) = self.build_for(Purpose::Use, id, admitted, cancellation).await?;
        Ok(Arc::new(sandbox))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        if lock(&self.asked).contains_key(id) {
            self.remove(id, RemovalCaller::Here).await?;
            lock(&self.asked).remove(id);
            return Ok(());
        }
        let removed = self.remove(id, RemovalCaller::DeadSince(self.reaping_since())).await;
        self.reaping_since();
        removed
    }

    async fn clear_unfinished(&self, id: &SandboxId, _: &Error) -> Result<()> {
        // What is left is found by its label once the engine can be reached again.
        let _ = self.remove(id, RemovalCaller::Here).await;
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        match self.get_engine().await {
            Ok(engine) => list::list_sandboxes(&engine.socket).await,
            // Nothing can be there where there is no engine.
            Err(error) if error.code() == ErrorCode::Unavailable => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Removes what was made only to see whether it can be, by engines that are dead: no lease tells of it.
async fn remove_forsaken_containers(engine: &EngineHandle) -> Result<()> {
    for id in list::list_sandboxes(&engine.socket).await? {
        if throwaway::is_forsaken(id.as_str()) {
            let _ = container::destroy_container(&engine.api, &id, RemovalCaller::Here).await;
        }
    }
    Ok(())
}

fn too_slow() -> Error {
    Error::new(ErrorCode::TooSlow, "create", "the engine does not build the container in time")
        .backend(NAME)
        .remedy("see why the engine hangs")
}

/// The engine refused, or went away.
fn engine_failed(what: &'static str, error: &bollard::errors::Error) -> Error {
    socket::convert_api_error(what, error)
}
