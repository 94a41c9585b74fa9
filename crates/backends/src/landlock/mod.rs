//! For hosts that forbid user namespaces: Landlock, a system call filter, limits and a warden, with
//! nothing installed and no root. `docs/backends/landlock.md` says what it does not protect from.
//!
//! This module decides nothing about walls: the launcher builds them and reads them back.

mod commands;
#[cfg(feature = "factory")]
pub mod factory;
mod plan;
mod private;
mod probe;

use std::sync::Arc;

use async_trait::async_trait;
use rustix::process::Signal;
use stockade_core::{Admitted, BackendName, Capabilities, Result, Sandbox, SandboxId};
use stockade_launcher::{BARE_AGENT, Launcher};

use crate::agent_sandbox::{AgentSandbox, HostMonitor, MappedFiles};
use crate::linux::cgroup::{CgroupLayout, Group};
use crate::linux::host::{LinuxHost, TEARDOWN_TIMEOUT};
use crate::linux::limit_monitor::Kernel;
use crate::linux::running::{self, BuiltWalls, KillMethod};
use crate::linux::{self, find};
use crate::managed::{Cancellation, Managed, WallBuilder};
use private::{LandlockPrivate, PRIVATE_DIRS};

/// The landlock backend's name.
pub const NAME: BackendName = BackendName::literal("landlock");

/// The backend's control groups: the warden, the agent and the keeper of an execution are not the
/// guest's.
const CGROUP_LAYOUT: CgroupLayout =
    CgroupLayout { parent: "stockade-landlock", own_processes: 3, started_by_launcher: true };

/// The landlock backend. Its launcher is started with the first sandbox and ends with this value, and
/// with it every sandbox it has launched.
pub type Landlock = Managed<LandlockWalls>;

/// What builds the landlock backend's walls.
pub struct LandlockWalls {
    linux_host: Arc<LinuxHost>,
}

impl Default for Landlock {
    fn default() -> Self {
        Self::of(LandlockWalls {
            linux_host: Arc::new(LinuxHost::new(NAME, CGROUP_LAYOUT, Launcher::start_bare)),
        })
    }
}

impl Landlock {
    /// A backend that has not touched anything yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl LandlockWalls {
    async fn build_sandbox(&self, id: &SandboxId, admitted: &Admitted) -> Result<AgentSandbox> {
        let workspace = plan::resolve_workspace(admitted.spec())?;
        let private = LandlockPrivate::make(id)?;
        let group = self.linux_host.create_group(id, admitted).await?;
        let held = self.linux_host.holds_memory(group.as_ref());
        let mut plan = plan::build_plan(id, admitted, workspace, &private, held);
        plan.cgroup = group.as_ref().map(Group::plan);
        let (ours, theirs) = self.linux_host.open_pipe()?;
        let pending = self.linux_host.launcher()?.begin_bare(&plan, theirs.into());
        let pending = pending.map_err(|error| linux::not_launched(NAME, error))?;
        let launched = linux::finish_launch(NAME, pending).await?;
        let built = BuiltWalls {
            backend: NAME,
            last: (launched.pid.cast_signed(), launched.pidfd),
            // The warden ends everybody else first, and itself after them.
            ending: KillMethod::Signal(Signal::TERM),
            group,
            written: vec![private.path().to_owned()],
            held: None,
        };
        let (running, client) = self.linux_host.open(id, built, admitted, ours).await?;
        let (client, user) = (Arc::new(client), linux::DEFAULT_USER);
        Ok(AgentSandbox::new(id, Arc::clone(&client), user)
            .with_command_rule(move |command| Ok(commands::settle_command(command, &private)))
            .with_files(MappedFiles::new(&client, |path| Ok(commands::from_workspace(path))))
            .with_monitor(HostMonitor::new(&running, Kernel::Shared)))
    }

    /// Ends what is there of a sandbox that this value did not make.
    async fn end_foreign(&self, id: &SandboxId) -> Result<()> {
        let meant = |pid| find::sandbox_of(BARE_AGENT, pid).as_ref() == Some(id);
        for (pid, _) in find::find_agents(BARE_AGENT).into_iter().filter(|(_, of)| of == id) {
            // With its agent a warden ends everybody, and then itself.
            let warden = find::open_parent(pid);
            if let Some(agent) = find::kill_if(pid, meant) {
                for pidfd in [Some(agent), warden].into_iter().flatten() {
                    let _ = tokio::time::timeout(TEARDOWN_TIMEOUT, running::wait_for_exit(&pidfd))
                        .await;
                }
            }
        }
        self.linux_host.remove_leftover_group(id).await
    }
}

#[async_trait]
impl WallBuilder for LandlockWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        probe::measure_capabilities(&self).await
    }

    fn fingerprint(&self) -> Option<String> {
        linux::host_fingerprint()
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        _: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(self.build_sandbox(id, admitted).await?))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        if !self.linux_host.end(id).await? {
            self.end_foreign(id).await?;
        }
        // The warden has done it, unless it was itself killed.
        PRIVATE_DIRS.remove(id)?;
        self.linux_host.forget(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let agents = find::find_agents(BARE_AGENT).into_iter().map(|(_, id)| id);
        Ok(agents
            .chain(self.linux_host.existing_hierarchy().ids())
            .chain(PRIVATE_DIRS.list())
            .collect())
    }

    fn leftovers(&self) -> Vec<SandboxId> {
        PRIVATE_DIRS.list()
    }
}
