//! Containers of an engine that is already there: Docker's, or Podman's behind the same interface.
//! `docs/backends/docker.md` says what that does not protect from.
//!
//! The engine builds the walls; this module asks for all of them, reads them back, puts the agent
//! inside and attaches to it. It never runs a container's own entry point.

mod agent;
mod container;
mod images;
mod list;
mod plan;
mod probe;
mod sandbox;
mod socket;
mod tree;
mod walls;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Error, ErrorCode, Result, Sandbox,
    SandboxId,
};
use tokio::sync::{OnceCell, OwnedMutexGuard};

use crate::linux::archives::Archives;
use crate::linux::cgroup::throwaway;
use crate::linux::running::Running;
use crate::linux::{self, hold};
use container::Container;
use images::Image;
use sandbox::DockerSandbox;
use socket::Engine;

pub use socket::Options;

/// The docker backend's name.
pub const NAME: BackendName = BackendName::literal("docker");

/// What is said while an image is on its way.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// The docker backend. Connects when it is first asked for something.
pub struct Docker {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    engine: OnceCell<Engine>,
    /// Held by whoever is building or removing the sandbox of this id.
    turns: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>,
    running: Mutex<HashMap<SandboxId, Arc<Running>>>,
    progress: Progress,
}

impl Default for Docker {
    fn default() -> Self {
        Self::new(Options::default(), Arc::new(|_| {}))
    }
}

impl Docker {
    /// A backend that has not touched anything yet. `progress` is told how far the fetching of an
    /// image is.
    pub fn new(options: Options, progress: Progress) -> Self {
        let inner = Inner {
            options,
            engine: OnceCell::new(),
            turns: Mutex::default(),
            running: Mutex::default(),
            progress,
        };
        Self { inner: Arc::new(inner) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// The engine behind the socket. One that could not be reached is tried again the next time.
    async fn engine(&self) -> Result<&Engine> {
        self.engine.get_or_try_init(|| self.connect()).await
    }

    /// Connects, and removes what was made only to see whether it can be, by engines that are dead:
    /// no lease tells of it.
    async fn connect(&self) -> Result<Engine> {
        let engine = Engine::connect(&self.options).await?;
        for id in list::sandboxes(&engine.socket).await? {
            if throwaway::is_forsaken(id.as_str()) {
                container::remove(&engine.api, &id).await?;
            }
        }
        Ok(engine)
    }

    fn running(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Running>>> {
        lock(&self.running)
    }

    async fn turn(&self, id: &SandboxId) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(lock(&self.turns).entry(id.clone()).or_default());
        turn.lock_owned().await
    }

    async fn build(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        image: &Image,
    ) -> Result<DockerSandbox> {
        let engine = self.engine().await?;
        let held = hold::take(&NAME, admitted.spec())?;
        let body = plan::body(id, admitted, engine, image)?;
        let container = Container::create(&engine.api, id, body).await?;
        let (pipe, started) = container.start().await?;
        let running = started.running(id, admitted, held, &engine.api);
        self.running().insert(id.clone(), Arc::clone(&running));
        walls::read_back(running.pid, engine)?;
        let client = pipe.connect().await?;
        let user = plan::user(admitted.spec(), engine)?;
        let archives = Archives::new(NAME, admitted);
        Ok(DockerSandbox { running, client, user, container, archives })
    }

    async fn remove(&self, id: &SandboxId) -> Result<()> {
        container::remove(&self.engine().await?.api, id).await?;
        let running = self.running().get(id).cloned();
        if let Some(running) = running {
            container::ended(&running).await?;
            running.let_go();
        }
        container::attended_no_more(id).await?;
        self.running().remove(id);
        lock(&self.turns).remove(id);
        Ok(())
    }
}

#[async_trait]
impl Backend for Docker {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        probe::measure(self).await
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("{}\n{}", linux::fingerprint()?, self.inner.options.fingerprint()?))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        let engine = self.inner.engine().await?;
        let image = images::ready(engine, admitted, &self.inner.progress).await?;
        let turn = self.inner.turn(id).await;
        let (inner, id, admitted) = (Arc::clone(&self.inner), id.clone(), admitted.clone());
        // In a task of its own: an engine goes on with a request that nobody waits for any more, and
        // whoever destroys must not come before it is done (C-32).
        let building = tokio::spawn(async move {
            let _turn = turn;
            match inner.build(&id, &admitted, &image).await {
                Ok(sandbox) => Ok(Arc::new(sandbox) as Arc<dyn Sandbox>),
                Err(error) => {
                    // What is left is found by its label once the engine can be reached again.
                    let _ = inner.remove(&id).await;
                    Err(error)
                }
            }
        });
        building.await.unwrap_or_else(|error| {
            let message = "building the container went wrong";
            Err(Error::new(ErrorCode::System, "create", message).backend(NAME).source(error))
        })
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        match self.inner.engine().await {
            Ok(engine) => list::sandboxes(&engine.socket).await,
            // Nothing can be there where there is no engine.
            Err(error) if error.code() == ErrorCode::Unavailable => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let _turn = self.inner.turn(id).await;
        self.inner.remove(id).await
    }
}

/// The boundary of containers that this runtime makes.
fn boundary(options: &Options) -> Boundary {
    match options.runtime.as_deref() {
        Some(runtime) if runtime.contains("runsc") => Boundary::UserspaceKernel,
        Some(_) | None => Boundary::SharedKernel,
    }
}

/// The engine refused, or went away.
fn failed(what: &'static str, error: &bollard::errors::Error) -> Error {
    socket::told(what, error)
}
