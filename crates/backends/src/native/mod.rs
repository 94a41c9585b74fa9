//! The default that works on any Linux machine with nothing installed and no root: namespaces,
//! a root of its own, seccomp, Landlock, control groups. `docs/backends/native.md` walks the list.
//!
//! This module decides nothing about walls: the launcher builds them and reads them back.

#[cfg(feature = "factory")]
pub mod factory;
mod plan;
mod probe;
#[cfg(feature = "peer")]
mod walls;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use rustix::process::Signal;
use stockade_core::{Admitted, BackendName, Capabilities, Error, Result, Sandbox, SandboxId};
pub use stockade_launcher::release_idle_memory;
use stockade_launcher::{LaunchError, LaunchPlan, Launched, Launcher};

#[cfg(feature = "peer")]
pub use walls::{LimitedExecution, Walls};

use crate::agent_sandbox::{AgentSandbox, HostMonitor};
use crate::linux::archives::Archives;
use crate::linux::cgroup::{CgroupLayout, Group};
use crate::linux::freezer::Freezer;
use crate::linux::host::{LinuxHost, TEARDOWN_TIMEOUT};
use crate::linux::limit_monitor::Kernel;
use crate::linux::running::{self, BuiltWalls, KillMethod};
use crate::linux::{self, OWN_PROCESSES, dir_lock, embed, find};
use crate::managed::{Cancellation, Managed, WallBuilder};

/// The native backend's name.
pub const NAME: BackendName = BackendName::literal("native");

/// Process name (`argv[0]`) of its agents.
const AGENT_NAME: &str = "stockade-agent";

/// Its control groups: the agent and the keeper of an execution are not the guest's.
const CGROUP_LAYOUT: CgroupLayout =
    CgroupLayout { parent: "stockade", own_processes: OWN_PROCESSES, started_by_launcher: true };

/// The native backend. Its launcher is started with the first sandbox and ends with this value, and
/// with it every sandbox it has launched.
pub type Native = Managed<NativeWalls>;

/// What builds the native backend's walls.
pub struct NativeWalls {
    linux_host: Arc<LinuxHost>,
    own: OnceLock<Own>,
    /// What of the host's devices its sandboxes are trusted with beyond those that all have.
    devices: &'static [&'static str],
}

/// What its sandboxes are told that this machine is called, where the kernel's own answer would be that of
/// another machine too.
#[derive(Debug, Clone)]
pub struct Own {
    /// The host name.
    pub hostname: String,
    /// A file that says what `/etc/machine-id` is to say, where the image has one.
    pub machine_id: PathBuf,
    /// A file that says what the kernel would say of its start.
    pub boot_id: PathBuf,
}

impl Default for Native {
    fn default() -> Self {
        Self::of(NativeWalls::trusted_with(&[]))
    }
}

impl Native {
    /// A backend that has not touched anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend for programs that are trusted with these devices of the host's, by their names in `/dev`.
    pub(crate) fn trusted_with(devices: &'static [&'static str]) -> Self {
        Self::of(NativeWalls::trusted_with(devices))
    }

    /// Whether the kernel holds its sandboxes to a rate of the processor here.
    pub(crate) fn holds_cpu_rate(&self) -> bool {
        self.builder().linux_host.hierarchy().controllers().cpu
    }

    /// The first process of one of its sandboxes, as the host numbers it.
    pub(crate) fn first_process(&self, id: &SandboxId) -> Option<i32> {
        self.builder().linux_host.first_process(id)
    }

    /// A backend for one sandbox, whose launcher gets ready from now on, while this process does
    /// something else. Only in a process that has a single thread yet; elsewhere it is as any other.
    pub fn ahead() -> Self {
        let native = Self::new();
        if let Ok(launcher) = embed::copy_as_launcher() {
            native.builder().linux_host.adopt_launcher(launcher);
        }
        native
    }

    /// Has every sandbox from now on be told this of its machine.
    pub fn call_machine(&self, own: Own) {
        let _ = self.builder().own.set(own);
    }
}

impl NativeWalls {
    fn trusted_with(devices: &'static [&'static str]) -> Self {
        let linux_host = Arc::new(LinuxHost::new(NAME, CGROUP_LAYOUT, Launcher::start));
        Self { linux_host, own: OnceLock::new(), devices }
    }

    /// Has the walls built and waits for the proof.
    async fn launch_agent(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        group: Option<&Group>,
        pipe: OwnedFd,
    ) -> Result<Launched> {
        let mut plan = plan::build_plan(id, admitted, self.linux_host.holds_memory(group))?;
        plan.cgroup = group.map(Group::plan);
        plan.devices = self.devices.iter().map(|device| (*device).to_owned()).collect();
        if let Some(own) = self.own.get() {
            plan::call_machine(&mut plan, own);
        }
        self.send_plan(&plan, pipe).await
    }

    async fn send_plan(&self, plan: &LaunchPlan, pipe: OwnedFd) -> Result<Launched> {
        let pending = self.linux_host.launcher()?.begin(plan, pipe).map_err(not_launched)?;
        linux::finish_launch(NAME, pending).await
    }

    /// The walls of a sandbox, and this side's end of its pipe.
    async fn build_walls(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<(BuiltWalls, UnixStream)> {
        let held = dir_lock::hold_layers(&NAME, admitted.spec())?;
        let group = self.linux_host.create_group(id, admitted).await?;
        let (ours, theirs) = self.linux_host.open_pipe()?;
        let launched = self.launch_agent(id, admitted, group.as_ref(), theirs.into()).await?;
        let git = plan::written_git_parts(admitted.spec());
        let git = git.map(|mount| mount.source.as_path().to_owned());
        let built = BuiltWalls {
            backend: NAME,
            last: (launched.pid.cast_signed(), launched.pidfd),
            ending: KillMethod::Signal(Signal::KILL),
            group,
            written: running::list_outermost(git),
            held,
        };
        Ok((built, ours))
    }

    async fn build_sandbox(&self, id: &SandboxId, admitted: &Admitted) -> Result<AgentSandbox> {
        let (built, ours) = self.build_walls(id, admitted).await?;
        let (running, client) = self.linux_host.open(id, built, admitted, ours).await?;
        Ok(AgentSandbox::new(id, client, plan::sandbox_user(admitted.spec()))
            .with_monitor(HostMonitor::new(&running, Kernel::Shared))
            .with_archives(Archives::new(NAME, admitted))
            .with_freezer(Freezer::new(NAME, running)))
    }

    /// Ends what is there of a sandbox that this value did not make.
    async fn end_foreign(&self, id: &SandboxId) -> Result<()> {
        self.linux_host.existing_hierarchy().find(id).iter().for_each(running::thaw_group);
        let agents = find::find_agents(AGENT_NAME).into_iter().filter(|(_, of)| of == id);
        for (pid, _) in agents {
            if let Some(pidfd) =
                find::kill_if(pid, |pid| find::sandbox_of(AGENT_NAME, pid).as_ref() == Some(id))
            {
                let _ =
                    tokio::time::timeout(TEARDOWN_TIMEOUT, running::wait_for_exit(&pidfd)).await;
            }
        }
        self.linux_host.remove_leftover_group(id).await
    }
}

#[async_trait]
impl WallBuilder for NativeWalls {
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
        self.linux_host.forget(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let agents = find::find_agents(AGENT_NAME).into_iter().map(|(_, id)| id);
        Ok(agents.chain(self.linux_host.existing_hierarchy().ids()).collect())
    }
}

fn not_launched(error: LaunchError) -> Error {
    linux::not_launched(NAME, error)
}
