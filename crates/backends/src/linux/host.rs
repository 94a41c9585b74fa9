//! Where a backend of this host builds: its launcher, its control groups, and the sandboxes that it has
//! built and not yet taken down. The same for every backend whose walls a launcher raises.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use stockade_agent::client::AgentClient;
use stockade_core::{Admitted, BackendName, EffectiveLimits, Error, ErrorCode, Result, SandboxId};
use stockade_launcher::{Launcher, Program};

use super::cgroup::{CgroupLayout, Group, Hierarchy};
use super::running::{self, BuiltWalls, LiveWalls};
use super::{embed, limits, lock, no_group, no_launcher, no_pipe};

/// How long a sandbox that another process made may take to end.
pub(crate) const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an agent may take to say its first word. Long enough for a host with far more to do than it can: one
/// that is slow is no reason to refuse.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// One of the launcher's ways to start.
type LauncherStart = fn(&Program<'_>, BorrowedFd<'_>) -> io::Result<Launcher>;

/// This host, for one backend. Its launcher is started with the first sandbox and ends with this value, and with it every
/// sandbox that it has launched.
pub(crate) struct LinuxHost {
    backend: BackendName,
    cgroup_layout: CgroupLayout,
    start: LauncherStart,
    launcher: OnceLock<Launcher>,
    starting: Mutex<()>,
    hierarchy: OnceLock<Hierarchy>,
    existing_hierarchy: OnceLock<Hierarchy>,
    running: Mutex<HashMap<SandboxId, Arc<LiveWalls>>>,
}

impl LinuxHost {
    /// Nothing on the host is touched yet.
    pub(crate) fn new(
        backend: BackendName,
        cgroup_layout: CgroupLayout,
        start: LauncherStart,
    ) -> Self {
        Self {
            backend,
            cgroup_layout,
            start,
            launcher: OnceLock::new(),
            starting: Mutex::default(),
            hierarchy: OnceLock::new(),
            existing_hierarchy: OnceLock::new(),
            running: Mutex::default(),
        }
    }

    /// Takes a launcher that was started elsewhere, if there is none yet.
    pub(crate) fn adopt_launcher(&self, launcher: Launcher) {
        let _ = self.launcher.set(launcher);
    }

    pub(crate) fn launcher(&self) -> Result<&Launcher> {
        let _one_at_a_time = lock(&self.starting);
        if let Some(launcher) = self.launcher.get() {
            return Ok(launcher);
        }
        let started = embed::start_launcher(self.start);
        let started = started.map_err(|error| no_launcher(self.backend.clone(), error))?;
        Ok(self.launcher.get_or_init(|| started))
    }

    /// Where groups of sandboxes are made.
    pub(crate) fn hierarchy(&self) -> &Hierarchy {
        let launcher = || {
            let launcher = self.cgroup_layout.started_by_launcher.then(|| self.launcher().ok());
            launcher.flatten().map(Launcher::pid)
        };
        self.hierarchy.get_or_init(|| Hierarchy::detect(self.cgroup_layout, launcher))
    }

    /// Where existing groups are looked for. Starts no launcher and asks systemd for nothing.
    pub(crate) fn existing_hierarchy(&self) -> &Hierarchy {
        let detect = || Hierarchy::detect_existing(self.cgroup_layout);
        self.hierarchy.get().unwrap_or_else(|| self.existing_hierarchy.get_or_init(detect))
    }

    /// Fails if memory was measured as limited by a control group and none can be made now: the limit would be weaker
    /// than was promised (C-02).
    pub(crate) fn check_promised_memory(&self, admitted: &Admitted) -> Result<()> {
        if !limits::is_memory_promised(admitted) || self.hierarchy().controllers().memory {
            return Ok(());
        }
        let reason = limits::explain_unavailable(self.hierarchy());
        let message =
            format!("there was a control group for its memory, and there is none now: {reason}");
        Err(Error::new(ErrorCode::WallMissing, "create", message)
            .backend(self.backend.clone())
            .remedy("try again: what this host can do is measured anew"))
    }

    /// The control group of a new sandbox, where there are any.
    pub(crate) fn create_group(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Option<Group>> {
        self.group_of(id, admitted.limits())
    }

    /// The same with limits that make room for what is not the guest's.
    pub(crate) fn group_of(
        &self,
        id: &SandboxId,
        limits: &EffectiveLimits,
    ) -> Result<Option<Group>> {
        let made = self.hierarchy().create(id, limits);
        made.map_err(|error| no_group(self.backend.clone(), error))
    }

    /// Whether the kernel itself would hold a sandbox in such a group to its memory.
    pub(crate) fn holds_memory(&self, group: Option<&Group>) -> bool {
        group.is_some() && self.hierarchy().controllers().memory
    }

    /// The two ends of a sandbox's pipe.
    pub(crate) fn open_pipe(&self) -> Result<(UnixStream, UnixStream)> {
        UnixStream::pair().map_err(|error| no_pipe(self.backend.clone(), error))
    }

    /// Notes a sandbox that stands, waits for its agent's first word, and holds it to its pace from then on.
    pub(crate) async fn open(
        &self,
        id: &SandboxId,
        built: BuiltWalls,
        admitted: &Admitted,
        pipe: UnixStream,
    ) -> Result<(Arc<LiveWalls>, AgentClient)> {
        let running = self.register_running(id, built, admitted);
        let pipe = pipe.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(pipe));
        let pipe = pipe.map_err(|error| no_pipe(self.backend.clone(), error))?;
        let client = AgentClient::connect(pipe, START_TIMEOUT).await?;
        running.apply_cpu_rate()?;
        Ok((running, client))
    }

    /// Notes a sandbox that stands. Before the guest runs anything in it, it has to be held to its pace.
    pub(crate) fn register_running(
        &self,
        id: &SandboxId,
        built: BuiltWalls,
        admitted: &Admitted,
    ) -> Arc<LiveWalls> {
        let mut running = LiveWalls::new(id.clone(), built, admitted);
        running.paced = self.hierarchy().controllers().cpu;
        running.own_processes = self.cgroup_layout.own_processes;
        let running = Arc::new(running);
        lock(&self.running).insert(id.clone(), Arc::clone(&running));
        running
    }

    /// The first process of a sandbox that was built here, as the host numbers it.
    pub(crate) fn first_process(&self, id: &SandboxId) -> Option<i32> {
        lock(&self.running).get(id).map(|running| running.pid)
    }

    /// Ends a sandbox that was built here, group and all. False if it was not.
    pub(crate) async fn end(&self, id: &SandboxId) -> Result<bool> {
        let running = lock(&self.running).get(id).cloned();
        match running {
            Some(running) => running.end().await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Removes the group of a sandbox that another process built.
    pub(crate) async fn remove_leftover_group(&self, id: &SandboxId) -> Result<()> {
        match self.existing_hierarchy().find(id) {
            Some(group) => running::remove_group(&self.backend, id, &group).await,
            None => Ok(()),
        }
    }

    /// Nothing of it is left.
    pub(crate) fn forget(&self, id: &SandboxId) {
        lock(&self.running).remove(id);
    }
}

impl Drop for LinuxHost {
    fn drop(&mut self) {
        // The launcher first: it ends what it launched and removes its groups.
        drop(self.launcher.take());
        for hierarchy in [&self.hierarchy, &self.existing_hierarchy] {
            hierarchy.get().inspect(|found| found.remove_empty_parents());
        }
    }
}
