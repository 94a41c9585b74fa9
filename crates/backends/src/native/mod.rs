//! The default that works on any Linux machine with nothing installed and no root: namespaces,
//! a root of its own, seccomp, Landlock, control groups. `docs/backends/native.md` walks the list.
//!
//! This module decides nothing about walls: the launcher builds them and reads them back.

mod plan;
mod probe;
mod sandbox;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Error, Result, Sandbox, SandboxId,
};
use stockade_launcher::{LaunchError, LaunchPlan, Launched, Launcher};

use sandbox::NativeSandbox;

use crate::linux::cgroup::{Group, Hierarchy, House};
use crate::linux::running::{self, Built, Running};
use crate::linux::{self, embed, find, hold};

/// The native backend's name.
pub const NAME: BackendName = BackendName::literal("native");

/// The name its agents run under.
const AGENT: &str = "stockade-agent";

/// Its control groups: the agent and the keeper of an execution are not the guest's.
const HOUSE: House = House { parent: "stockade", own_processes: plan::OWN_PROCESSES };

/// How long the agent may take to say its first word.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);

/// The native backend. Its launcher is started with the first sandbox and ends with this value, and
/// with it every sandbox it has launched.
#[derive(Default)]
pub struct Native {
    launcher: OnceLock<Launcher>,
    starting: Mutex<()>,
    hierarchy: OnceLock<Hierarchy>,
    running: Mutex<HashMap<SandboxId, Arc<Running>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Native {
    /// A backend that has not touched anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn hierarchy(&self) -> &Hierarchy {
        self.hierarchy.get_or_init(|| Hierarchy::detect(HOUSE))
    }

    fn launcher(&self) -> Result<&Launcher> {
        let _one_at_a_time = lock(&self.starting);
        if let Some(launcher) = self.launcher.get() {
            return Ok(launcher);
        }
        let started =
            embed::launcher(Launcher::start).map_err(|error| linux::no_launcher(NAME, error))?;
        Ok(self.launcher.get_or_init(|| started))
    }

    /// Has the walls built and waits for the proof.
    async fn launch(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        group: Option<&Group>,
        pipe: OwnedFd,
    ) -> Result<Launched> {
        let held = group.is_some() && self.hierarchy().controllers().memory;
        let mut plan = plan::plan(id, admitted, held)?;
        plan.cgroup = group.map(Group::plan);
        self.raise(&plan, pipe).await
    }

    async fn raise(&self, plan: &LaunchPlan, pipe: OwnedFd) -> Result<Launched> {
        let pending = self.launcher()?.begin(plan, pipe).map_err(not_launched)?;
        linux::answer(NAME, pending).await
    }

    async fn build(&self, id: &SandboxId, admitted: &Admitted) -> Result<NativeSandbox> {
        let held = hold::take(&NAME, admitted.spec())?;
        let group = self
            .hierarchy()
            .create(id, admitted.limits())
            .map_err(|error| linux::no_group(NAME, error))?;
        let (ours, theirs) = UnixStream::pair().map_err(no_pipe)?;
        let launched = self.launch(id, admitted, group.as_ref(), theirs.into()).await?;
        let built = Built {
            backend: NAME,
            last: (launched.pid.cast_signed(), launched.pidfd),
            ending: Signal::KILL,
            group,
            written: Vec::new(),
            held,
        };
        let running = Arc::new(Running::new(id.clone(), built, admitted));
        lock(&self.running).insert(id.clone(), Arc::clone(&running));
        ours.set_nonblocking(true).map_err(no_pipe)?;
        let ours = tokio::net::UnixStream::from_std(ours).map_err(no_pipe)?;
        let client = AgentClient::connect(ours, HELLO_DEADLINE).await?;
        Ok(NativeSandbox { running, client, user: plan::user(admitted.spec()) })
    }

    /// Ends what is there of a sandbox that this value did not make.
    async fn end_foreign(&self, id: &SandboxId) -> Result<()> {
        let agents = find::agents(AGENT).into_iter().filter(|(_, of)| of == id);
        for (pid, _) in agents {
            if let Some(pidfd) =
                find::kill_if(pid, |pid| find::sandbox_of(AGENT, pid).as_ref() == Some(id))
            {
                let _ = tokio::time::timeout(HELLO_DEADLINE, running::ended(&pidfd)).await;
            }
        }
        match self.hierarchy().find(id) {
            Some(group) => running::remove(&NAME, id, &group).await,
            None => Ok(()),
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // The launcher first: it ends what it launched and removes its groups.
        drop(self.launcher.take());
        if let Some(hierarchy) = self.hierarchy.get() {
            hierarchy.tidy();
        }
    }
}

#[async_trait]
impl Backend for Native {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        probe::measure(self).await
    }

    fn fingerprint(&self) -> Option<String> {
        linux::fingerprint()
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        match self.build(id, admitted).await {
            Ok(sandbox) => Ok(Arc::new(sandbox)),
            Err(error) => {
                self.destroy(id).await?;
                Err(error)
            }
        }
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let agents = find::agents(AGENT).into_iter().map(|(_, id)| id);
        let ids: BTreeSet<_> = agents.chain(self.hierarchy().ids()).collect();
        Ok(ids.into_iter().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let running = lock(&self.running).get(id).cloned();
        match running {
            Some(running) => {
                running.end().await?;
                lock(&self.running).remove(id);
                Ok(())
            }
            None => self.end_foreign(id).await,
        }
    }
}

fn no_pipe(error: std::io::Error) -> Error {
    linux::no_pipe(NAME, error)
}

fn not_launched(error: LaunchError) -> Error {
    linux::not_launched(NAME, error)
}
