//! Where a backend of this host builds: its launcher, its control groups, and the sandboxes that it has
//! built and not yet taken down. The same for every backend whose walls a launcher raises.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use stockade_agent::client::AgentClient;
use stockade_core::{Admitted, BackendName, EffectiveLimits, Error, ErrorCode, Result, SandboxId};
use stockade_launcher::{Launcher, Program};

use super::cgroup::{CgroupLayout, Controllers, Group, Hierarchy};
use super::running::{self, BuiltWalls, LiveWalls};
use super::{embed, limits, lock, no_group, no_launcher, no_pipe};

/// How long a sandbox that another process made may take to end.
pub(crate) const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an agent may take to say its first word. Long enough for a host with far more to do than it can: one
/// that is slow is no reason to refuse.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it is believed that systemd gives no control group: what was in its way may pass.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// One of the launcher's ways to start.
type LauncherStart = fn(&Program<'_>, BorrowedFd<'_>) -> io::Result<Launcher>;

/// This host, for one backend. Its launcher is started with the first sandbox and ends with this value, and with it every
/// sandbox that it has launched.
pub(crate) struct LinuxHost {
    backend: BackendName,
    cgroup_layout: CgroupLayout,
    start: LauncherStart,
    /// Started with the first sandbox, and again where it has ended.
    launcher: Mutex<Option<Arc<Launcher>>>,
    /// Held while control groups are looked for, which may take as long as systemd does.
    detecting: Mutex<()>,
    /// The last that was found. Held for a moment only.
    detected: Mutex<Option<DetectedHierarchy>>,
    existing_hierarchy: OnceLock<Arc<Hierarchy>>,
    running: Mutex<HashMap<SandboxId, Arc<LiveWalls>>>,
}

#[derive(Clone)]
struct DetectedHierarchy {
    found: Arc<Hierarchy>,
    /// The process id of the launcher that a scope is for.
    launcher: Option<u32>,
    at: Instant,
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
            launcher: Mutex::default(),
            detecting: Mutex::default(),
            detected: Mutex::default(),
            existing_hierarchy: OnceLock::new(),
            running: Mutex::default(),
        }
    }

    /// Takes a launcher that was started elsewhere, if there is none yet.
    pub(crate) fn adopt_launcher(&self, launcher: Launcher) {
        lock(&self.launcher).get_or_insert_with(|| Arc::new(launcher));
    }

    /// The launcher, started if there is none or it has ended.
    pub(crate) fn launcher(&self) -> Result<Arc<Launcher>> {
        let mut known = lock(&self.launcher);
        if let Some(launcher) = known.as_ref().filter(|launcher| launcher.is_alive()) {
            return Ok(Arc::clone(launcher));
        }
        let started = embed::start_launcher(self.start);
        let started = started.map_err(|error| no_launcher(self.backend.clone(), error))?;
        let launcher = Arc::new(started);
        *known = Some(Arc::clone(&launcher));
        Ok(launcher)
    }

    /// Whether the launcher with this process id is the one that launches, and runs.
    fn is_current_launcher(&self, pid: u32) -> bool {
        let launcher = lock(&self.launcher);
        launcher.as_ref().is_some_and(|launcher| launcher.pid() == pid && launcher.is_alive())
    }

    /// Where groups of sandboxes are made. May wait for systemd's answer.
    pub(crate) fn hierarchy(&self) -> Arc<Hierarchy> {
        if let Some(found) = self.current_hierarchy() {
            return found;
        }
        let _one_at_a_time = lock(&self.detecting);
        // Another thread may have looked meanwhile.
        self.current_hierarchy().unwrap_or_else(|| self.detect_hierarchy())
    }

    fn detect_hierarchy(&self) -> Arc<Hierarchy> {
        if let Some(former) = self.last_hierarchy() {
            former.remove_empty_parents();
        }
        let mut asked = None;
        let launcher = || {
            let launcher = self.cgroup_layout.started_by_launcher.then(|| self.launcher().ok());
            asked = launcher.flatten().map(|launcher| launcher.pid());
            asked
        };
        let found = Arc::new(Hierarchy::detect(self.cgroup_layout, launcher));
        let known = Arc::clone(&found);
        let detected = DetectedHierarchy { found: known, launcher: asked, at: Instant::now() };
        *lock(&self.detected) = Some(detected);
        found
    }

    /// What was found out, while it holds: a scope of systemd's ends with its launcher or on its user's word.
    fn current_hierarchy(&self) -> Option<Arc<Hierarchy>> {
        let DetectedHierarchy { found, launcher, at } = lock(&self.detected).clone()?;
        let holds = match found.scope() {
            Some(scope) => {
                scope.is_dir() && launcher.is_some_and(|pid| self.is_current_launcher(pid))
            }
            None => !self.may_ask_systemd(&found) || at.elapsed() < RETRY_INTERVAL,
        };
        holds.then_some(found)
    }

    /// The last that was found, whether or not it holds.
    fn last_hierarchy(&self) -> Option<Arc<Hierarchy>> {
        lock(&self.detected).as_ref().map(|detected| Arc::clone(&detected.found))
    }

    /// Which limits were held by groups when they were last looked for.
    pub(crate) fn controllers(&self) -> Controllers {
        self.last_hierarchy().map_or_else(Controllers::default, |found| found.controllers())
    }

    /// Whether systemd is asked for a group where there is none.
    fn may_ask_systemd(&self, found: &Hierarchy) -> bool {
        let none = matches!(found, Hierarchy::None { .. });
        none && self.cgroup_layout.started_by_launcher && !rustix::process::geteuid().is_root()
    }

    /// Finds out about control groups, on a thread of its own where systemd may be asked: nothing else waits for it.
    pub(crate) async fn settle_hierarchy(self: &Arc<Self>) -> Arc<Hierarchy> {
        if let Some(found) = self.current_hierarchy() {
            return found;
        }
        if rustix::process::geteuid().is_root() {
            return self.hierarchy();
        }
        let host = Arc::clone(self);
        let settled = tokio::task::spawn_blocking(move || host.hierarchy()).await;
        settled.unwrap_or_else(|_| {
            Arc::new(Hierarchy::None { reason: "looking for one was broken off".to_owned() })
        })
    }

    /// Where existing groups are looked for. Starts no launcher and asks systemd for nothing.
    pub(crate) fn existing_hierarchy(&self) -> Arc<Hierarchy> {
        let detect = || Arc::new(Hierarchy::detect_existing(self.cgroup_layout));
        self.last_hierarchy()
            .unwrap_or_else(|| Arc::clone(self.existing_hierarchy.get_or_init(detect)))
    }

    /// Fails if a limit was measured as held by a control group and none can be made for it now: it would be weaker
    /// than was promised (C-02).
    fn check_promised_limits(&self, admitted: &Admitted, hierarchy: &Hierarchy) -> Result<()> {
        let Some(limit) = limits::find_broken_promise(admitted, hierarchy.controllers()) else {
            return Ok(());
        };
        let reason = limits::explain_unavailable(hierarchy);
        let message = format!(
            "there was a control group for its limit of {limit}, and there is none now: {reason}"
        );
        Err(Error::new(ErrorCode::WallMissing, "create", message)
            .backend(self.backend.clone())
            .remedy("try again in a minute, or measure anew with `stockade detect`"))
    }

    /// The control group of a new sandbox, where there are any.
    pub(crate) async fn create_group(
        self: &Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Option<Group>> {
        self.group_of(id, admitted, admitted.limits()).await
    }

    /// The same with limits that make room for what is not the guest's.
    pub(crate) async fn group_of(
        self: &Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        limits: &EffectiveLimits,
    ) -> Result<Option<Group>> {
        let hierarchy = self.settle_hierarchy().await;
        self.check_promised_limits(admitted, &hierarchy)?;
        let made = hierarchy.create(id, limits);
        made.map_err(|error| no_group(self.backend.clone(), error))
    }

    /// Whether the kernel itself would hold a sandbox in such a group to its memory.
    pub(crate) fn holds_memory(&self, group: Option<&Group>) -> bool {
        group.is_some() && self.controllers().memory
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
        running.paced = self.controllers().cpu;
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
        drop(lock(&self.launcher).take());
        let hierarchies = lock(&self.detected).take().map(|detected| detected.found).into_iter();
        for hierarchy in hierarchies.chain(self.existing_hierarchy.take()) {
            hierarchy.remove_empty_parents();
        }
    }
}
