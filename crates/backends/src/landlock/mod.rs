//! For hosts that forbid user namespaces: Landlock, a system call filter, limits and a warden, with
//! nothing installed and no root. `docs/backends/landlock.md` says what it does not protect from.
//!
//! This module decides nothing about walls: the launcher builds them and reads them back.

mod files;
mod plan;
mod private;
mod probe;
mod sandbox;

use std::collections::{BTreeSet, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Error, Result, Sandbox, SandboxId,
};
use stockade_launcher::{BARE_AGENT, Launched, Launcher};

use crate::linux::cgroup::{Group, Hierarchy, House};
use crate::linux::running::{self, Built, Running};
use crate::linux::{self, embed, find};
use private::Private;
use sandbox::LandlockSandbox;

/// The landlock backend's name.
pub const NAME: BackendName = BackendName::literal("landlock");

/// Its control groups: the warden, the agent and the keeper of an execution are not the guest's.
const HOUSE: House = House { parent: "stockade-landlock", own_processes: 3 };

/// How long the agent may take to say its first word, and a sandbox somebody else made to end.
const DEADLINE: Duration = Duration::from_secs(10);

/// The landlock backend. Its launcher is started with the first sandbox and ends with this value, and
/// with it every sandbox it has launched.
#[derive(Default)]
pub struct Landlock {
    launcher: OnceLock<Launcher>,
    starting: Mutex<()>,
    hierarchy: OnceLock<Hierarchy>,
    running: Mutex<HashMap<SandboxId, Arc<Running>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Landlock {
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
        let started = embed::launcher(Launcher::start_bare)
            .map_err(|error| linux::no_launcher(NAME, error))?;
        Ok(self.launcher.get_or_init(|| started))
    }

    async fn build(&self, id: &SandboxId, admitted: &Admitted) -> Result<LandlockSandbox> {
        let workspace = plan::workspace(admitted.spec())?;
        let private = Private::make(id, workspace.as_deref())?;
        let group = self
            .hierarchy()
            .create(id, admitted.limits())
            .map_err(|error| linux::no_group(NAME, error))?;
        let held = group.is_some() && self.hierarchy().controllers().memory;
        let mut plan = plan::plan(id, admitted, workspace, &private, held);
        plan.cgroup = group.as_ref().map(Group::plan);
        let (ours, theirs) = UnixStream::pair().map_err(no_pipe)?;
        let pending = self.launcher()?.begin_bare(&plan, theirs.into());
        let pending = pending.map_err(|error| linux::not_launched(NAME, error))?;
        let launched = linux::answer(NAME, pending).await?;
        let running = self.note(id, admitted, launched, group, &private);
        ours.set_nonblocking(true).map_err(no_pipe)?;
        let ours = tokio::net::UnixStream::from_std(ours).map_err(no_pipe)?;
        let client = AgentClient::connect(ours, DEADLINE).await?;
        Ok(LandlockSandbox::new(running, client, private))
    }

    fn note(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        launched: Launched,
        group: Option<Group>,
        private: &Private,
    ) -> Arc<Running> {
        let built = Built {
            backend: NAME,
            last: (launched.pid.cast_signed(), launched.pidfd),
            // The warden ends everybody else first, and itself after them.
            ending: Signal::TERM,
            group,
            written: vec![private.path().to_owned()],
            held: None,
        };
        let running = Arc::new(Running::new(id.clone(), built, admitted));
        lock(&self.running).insert(id.clone(), Arc::clone(&running));
        running
    }

    /// Ends what is there of a sandbox that this value did not make.
    async fn end_foreign(&self, id: &SandboxId) -> Result<()> {
        let meant = |pid| find::sandbox_of(BARE_AGENT, pid).as_ref() == Some(id);
        for (pid, _) in find::agents(BARE_AGENT).into_iter().filter(|(_, of)| of == id) {
            // With its agent a warden ends everybody, and then itself.
            let warden = find::parent(pid);
            if let Some(agent) = find::kill_if(pid, meant) {
                for pidfd in [Some(agent), warden].into_iter().flatten() {
                    let _ = tokio::time::timeout(DEADLINE, running::ended(&pidfd)).await;
                }
            }
        }
        match self.hierarchy().find(id) {
            Some(group) => running::remove(&NAME, id, &group).await,
            None => Ok(()),
        }
    }
}

impl Drop for Landlock {
    fn drop(&mut self) {
        // The launcher first: it ends what it launched and removes its groups.
        drop(self.launcher.take());
        if let Some(hierarchy) = self.hierarchy.get() {
            hierarchy.tidy();
        }
    }
}

#[async_trait]
impl Backend for Landlock {
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
        let agents = find::agents(BARE_AGENT).into_iter().map(|(_, id)| id);
        let ids: BTreeSet<_> = agents.chain(self.hierarchy().ids()).chain(private::ids()).collect();
        Ok(ids.into_iter().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let running = lock(&self.running).get(id).cloned();
        match running {
            Some(running) => running.end().await?,
            None => self.end_foreign(id).await?,
        }
        // The warden has done it, unless it was itself killed.
        private::remove(id)?;
        lock(&self.running).remove(id);
        Ok(())
    }
}

fn no_pipe(error: std::io::Error) -> Error {
    linux::no_pipe(NAME, error)
}
