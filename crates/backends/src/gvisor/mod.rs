//! A second kernel in user space in front of the host's: an OCI bundle under `runsc`, with the agent as
//! its first process. `docs/backends/gvisor.md` says what it does not protect from.
//!
//! This module builds no wall itself: the runtime does, and which of its platforms works here is
//! measured, not assumed.

mod bundle;
mod config;
#[cfg(feature = "factory")]
pub mod factory;
mod plan;
mod platform;
mod private;
mod probe;
mod root;
mod runsc;
mod runtime_stderr;
mod spawner;
mod stopper;
mod views;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, BackendName, Capabilities, Error, ErrorCode, Result, Sandbox, SandboxId,
};
use stockade_launcher::Launcher;
use tokio::net::unix::pipe;

use private::{GvisorPrivate, PRIVATE_DIRS};
use runsc::{Runsc, RunscPlatform};
use runtime_stderr::RuntimeStderr;
use spawner::Spawner;
use stopper::Runtime;

use crate::agent_sandbox::{AgentSandbox, HostMonitor};
use crate::linux::archives::Archives;
use crate::linux::cgroup::{CgroupLayout, Group};
use crate::linux::dir_lock::DirectoryLock;
use crate::linux::freezer::Freezer;
use crate::linux::host::{LinuxHost, START_TIMEOUT, TEARDOWN_TIMEOUT};
use crate::linux::limit_monitor::Kernel;
use crate::linux::limits::{counted_inside, with_runtime};
use crate::linux::running::{self, BuiltWalls, KillMethod};
use crate::linux::{self, find, lock};
use crate::managed::{Cancellation, Managed, WallBuilder};

/// The gvisor backend's name.
pub const NAME: BackendName = BackendName::literal("gvisor");

/// The backend's control groups.
const CGROUP_LAYOUT: CgroupLayout =
    CgroupLayout { parent: "stockade-gvisor", own_processes: 0, started_by_launcher: false };

/// The gvisor backend. Its sandboxes end with this value, and with what it still has under way.
pub type Gvisor = Managed<GvisorWalls>;

/// What has the gvisor backend's walls built.
pub struct GvisorWalls {
    linux_host: Arc<LinuxHost>,
    program: Option<PathBuf>,
    spawner: OnceLock<Spawner>,
    platform: tokio::sync::Mutex<Option<RunscPlatform>>,
    /// The runtimes that were started and not yet waited for.
    children: Mutex<HashMap<SandboxId, Child>>,
}

impl Default for Gvisor {
    fn default() -> Self {
        Self::of(GvisorWalls::new(None))
    }
}

impl Gvisor {
    /// A backend that uses the `runsc` in `PATH`, and has not touched anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with this program as its runtime.
    pub fn with_program(program: &Path) -> Self {
        Self::of(GvisorWalls::new(Some(program.to_owned())))
    }
}

impl GvisorWalls {
    fn new(program: Option<PathBuf>) -> Self {
        Self {
            linux_host: Arc::new(LinuxHost::new(NAME, CGROUP_LAYOUT, Launcher::start)),
            program,
            spawner: OnceLock::new(),
            platform: tokio::sync::Mutex::default(),
            children: Mutex::default(),
        }
    }

    fn find(&self) -> Option<Runsc> {
        Runsc::find(self.program.as_deref())
    }

    fn runsc(&self) -> Result<Runsc> {
        let missing = || {
            Error::new(ErrorCode::Unavailable, "create", "runsc is not installed")
                .backend(NAME)
                .remedy("install `runsc` and put it into PATH")
        };
        self.find().ok_or_else(missing)
    }

    fn spawner(&self) -> Result<&Spawner> {
        if let Some(spawner) = self.spawner.get() {
            return Ok(spawner);
        }
        let started = Spawner::start().map_err(|error| not_started(error, String::new()))?;
        Ok(self.spawner.get_or_init(|| started))
    }

    /// The platform to build on: as remembered, or found out now.
    async fn find_platform(self: &Arc<Self>, runsc: &Runsc) -> Result<RunscPlatform> {
        let mut known = self.platform.lock().await;
        if let Some(platform) = known.or_else(|| platform::load_platform(runsc)) {
            *known = Some(platform);
            return Ok(platform);
        }
        let platform = self.choose_platform(runsc).await?;
        *known = Some(platform);
        Ok(platform)
    }

    async fn forget_platform(&self, runsc: &Runsc) {
        *self.platform.lock().await = None;
        platform::forget_platform(runsc);
    }

    async fn build_sandbox(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        platform: RunscPlatform,
    ) -> Result<AgentSandbox> {
        let runsc = self.runsc()?;
        let mut plan = plan::build_plan(admitted, runsc.rootless)?;
        let private = GvisorPrivate::make(id)?;
        let views = views::stage_views(&private, &mut plan)?;
        let root::BundleRoot { path: root, held } = root::prepare_root(&private, &plan)?;
        let limits = with_runtime(admitted.limits());
        let group = self.linux_host.group_of(id, admitted, &limits).await?;
        let rlimits = counted_inside(admitted.limits());
        config::write_config(private.path(), &root, id, &plan, &rlimits).map_err(not_described)?;
        let cgroup = group.as_ref().map(Group::plan);
        let command = runsc.run(platform, &private, id);
        let child = self.spawner()?.spawn(command, cgroup, views).await;
        let child = child.map_err(|error| not_started(error, String::new()))?;
        let streams = self.register_running(id, child, (group, held), admitted)?;
        let (running, client) = connect_agent(streams).await?;
        running.apply_cpu_rate()?;
        Ok(AgentSandbox::new(id, client, plan.user)
            .with_monitor(HostMonitor::new(&running, Kernel::Apart))
            .with_archives(Archives::new(NAME, admitted))
            .with_freezer(Freezer::new(NAME, Runtime { runsc, private, id: id.clone() })))
    }

    /// Notes a runtime that was started, and takes its streams.
    fn register_running(
        &self,
        id: &SandboxId,
        mut child: Child,
        (group, held): (Option<Group>, Option<DirectoryLock>),
        admitted: &Admitted,
    ) -> Result<RuntimeStreams> {
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id().cast_signed();
        let watched = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
        lock(&self.children).insert(id.clone(), child);
        let lost = || std::io::Error::other("it has no standard streams");
        let (Some(Ok(pidfd)), (Some(stdin), Some(stdout), Some(stderr))) = (watched, streams)
        else {
            return Err(not_started(lost(), String::new()));
        };
        let built = BuiltWalls {
            backend: NAME,
            last: (pid, pidfd),
            // Its helpers take a parent-death signal, but each only when the one before is gone.
            ending: KillMethod::All(Signal::KILL),
            group,
            written: Vec::new(),
            held,
        };
        let running = self.linux_host.register_running(id, built, admitted);
        Ok(RuntimeStreams {
            running,
            stdin: stdin.into(),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    /// Ends every process of a sandbox that is found by its arguments: all there are, where no control
    /// group holds them.
    async fn end_processes(&self, id: &SandboxId) -> Result<()> {
        let meant = |pid: i32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                line.split(|byte| *byte == 0).any(|part| private::is_state_argument(part, id))
            })
        };
        for pid in find::list_pids().filter(|pid| meant(*pid)) {
            if let Some(pidfd) = find::kill_if(pid, meant) {
                let _ =
                    tokio::time::timeout(TEARDOWN_TIMEOUT, running::wait_for_exit(&pidfd)).await;
            }
        }
        if find::list_pids().any(meant) {
            return Err(running::left_behind(&NAME, id, "a process of the runtime does not end"));
        }
        let closed = tokio::time::timeout(TEARDOWN_TIMEOUT, control_socket_closed(id)).await;
        closed.map_err(|_| running::left_behind(&NAME, id, "the runtime's socket stays open"))
    }
}

/// How often to look whether the runtime's control socket is closed.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until the control socket of a sandbox's runtime is closed. A process loses its arguments before its
/// descriptors when it dies, so that one which is no longer found by its arguments may still be dying.
async fn control_socket_closed(id: &SandboxId) {
    // By its name, or by its path in the sandbox's own directory, as newer ones have it.
    let is_open = || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        sockets
            .lines()
            .filter_map(|line| line.split(' ').next_back())
            .any(|it| it.contains(id.as_str()))
    };
    while is_open() {
        tokio::time::sleep(SOCKET_POLL_INTERVAL).await;
    }
}

/// A runtime that was started, and its standard streams.
struct RuntimeStreams {
    running: Arc<running::LiveWalls>,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Waits for the agent's first word.
async fn connect_agent(streams: RuntimeStreams) -> Result<(Arc<running::LiveWalls>, AgentClient)> {
    let no_pipe = |error| linux::no_pipe(NAME, error);
    let words = RuntimeStderr::listen(streams.stderr).map_err(no_pipe)?;
    let reader = pipe::Receiver::from_owned_fd(streams.stdout).map_err(no_pipe)?;
    let writer = pipe::Sender::from_owned_fd(streams.stdin).map_err(no_pipe)?;
    match AgentClient::connect_halves(reader, writer, START_TIMEOUT).await {
        Ok(client) => Ok((streams.running, client)),
        Err(_) if streams.running.oom_kills() > 0 => Err(too_little_memory(&streams.running)),
        Err(error) => {
            streams.running.kill();
            let said = words.last().await;
            Err(not_started(std::io::Error::other(error.message().to_owned()), said))
        }
    }
}

#[async_trait]
impl WallBuilder for GvisorWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        probe::measure_capabilities(&self).await
    }

    fn fingerprint(&self) -> Option<String> {
        platform::platform_fingerprint(&self.find()?)
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        let platform = self.find_platform(&self.runsc()?).await?;
        // The runtime goes on starting what it was given.
        cancellation.forbid();
        Ok(Arc::new(self.build_sandbox(id, admitted, platform).await?))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        if !self.linux_host.end(id).await? {
            self.linux_host.remove_leftover_group(id).await?;
        }
        // A group that could be removed is proof that no process was left in it.
        if self.linux_host.existing_hierarchy().find(id).is_none() {
            self.end_processes(id).await?;
        }
        if let Some(mut child) = lock(&self.children).remove(id) {
            // It has ended: this only buries it.
            let _ = child.wait();
        }
        PRIVATE_DIRS.remove(id)?;
        self.linux_host.forget(id);
        Ok(())
    }

    async fn clear_unfinished(&self, id: &SandboxId, why: &Error) -> Result<()> {
        self.take_down(id).await?;
        if let (ErrorCode::WallMissing, Some(runsc)) = (why.code(), self.find()) {
            self.forget_platform(&runsc).await;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(PRIVATE_DIRS
            .list()
            .into_iter()
            .chain(self.linux_host.existing_hierarchy().ids())
            .collect())
    }

    fn leftovers(&self) -> Vec<SandboxId> {
        PRIVATE_DIRS.list()
    }
}

fn not_described(error: oci_spec::OciSpecError) -> Error {
    let message = "the sandbox cannot be described to runsc";
    Error::new(ErrorCode::System, "create", message).backend(NAME).source(error)
}

/// The walls are not at fault: the same sandbox starts with more memory.
fn too_little_memory(running: &running::LiveWalls) -> Error {
    let limit = running.limits.memory.map_or_else(String::new, |memory| format!(" of {memory}"));
    let message = format!("runsc itself needs more than the memory limit{limit}");
    Error::new(ErrorCode::TooLarge, "create", message)
        .backend(NAME)
        .remedy("give the sandbox more memory (`--mem`), or choose another backend")
}

fn not_started(error: std::io::Error, said: String) -> Error {
    let message = match said.is_empty() {
        true => "runsc did not start the sandbox".to_owned(),
        false => format!("runsc did not start the sandbox: {said}"),
    };
    Error::new(ErrorCode::WallMissing, "create", message)
        .backend(NAME)
        .remedy("see docs/backends/gvisor.md, or choose another backend")
        .source(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_the_runtimes_control_socket() {
        let dir = tempfile::tempdir().unwrap();
        let id: SandboxId = stockade_fs::fresh_id().unwrap();
        let socket = UnixListener::bind(dir.path().join(format!("runsc-{id}.sock"))).unwrap();
        let closed = control_socket_closed(&id);
        tokio::pin!(closed);
        let patience = 100 * SOCKET_POLL_INTERVAL;
        assert!(tokio::time::timeout(patience, &mut closed).await.is_err());
        drop(socket);
        closed.await;
        // Those of other sandboxes are none of its business.
        let _other = UnixListener::bind(dir.path().join("runsc-other.sock")).unwrap();
        control_socket_closed(&id).await;
    }
}
