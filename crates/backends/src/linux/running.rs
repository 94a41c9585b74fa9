//! One live sandbox as the host sees it: its first process, its group, what it uses, and its end.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal as Kill, pidfd_open, pidfd_send_signal};
use stockade_core::{
    Admitted, BackendName, EffectiveLimits, Enforcement, Error, ErrorCode, Feature, LimitKind,
    Network, Result, SandboxId, SandboxSpec, Span, Workspace,
};

use super::cgroup::Group;
use super::dir_lock::DirectoryLock;
use super::executions::Executions;
use super::ready::wait_until_readable;
use super::{lock, no_group, process_usage, unreachable};

/// How long the kernel may take to end everything that was killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(crate) struct LiveWalls {
    pub id: SandboxId,
    /// Its init process by the host's number: when that has exited, nothing in the sandbox is left.
    pub pid: i32,
    pub pidfd: OwnedFd,
    ending: KillMethod,
    pub backend: BackendName,
    pub group: Option<Group>,
    pub limits: EffectiveLimits,
    /// Whether its group is what holds it to its rate of the processor.
    pub paced: bool,
    /// The host directories that are written to.
    pub written: Vec<PathBuf>,
    /// How many of its processes are not the guest's; none, where the guest's are not processes of the host.
    pub own_processes: u64,
    /// Whether nothing but the watch holds it to its number of processes.
    pub counts_processes: bool,
    /// The executions that run in it.
    pub executions: Executions,
    /// How often one was ended for what it wrote to disk: what others find then is not theirs.
    pub disk_breaches: AtomicU64,
    /// How many are being ended for a limit just now.
    pub ending_for_limit: AtomicU64,
    /// The limit for which all of it was ended.
    ended_for: OnceLock<LimitKind>,
    /// How many processes had been killed for want of memory when an execution was last judged.
    oom_kills_judged: AtomicU64,
    /// Attempts to reach other hosts that an execution was told of. Absent where some can be reached.
    network_attempts: Option<AtomicU64>,
    /// Whether it was ever stopped: what stands still does not end.
    frozen: AtomicBool,
    /// Whether all of it was told to end: from then on it is not stopped.
    killed: AtomicBool,
    /// Lock on what no other sandbox may change until this one has ended, such as its workspace's layers.
    held: Mutex<Option<DirectoryLock>>,
}

/// How everything in a sandbox is ended at once.
pub(crate) enum KillMethod {
    /// By this signal to its last process.
    Signal(Kill),
    /// By this signal to its last process, and by killing everything else in its group.
    All(Kill),
    /// By a request to the container engine that runs it.
    Asked(Box<dyn Fn() + Send + Sync>),
}

/// What a backend says about a sandbox that it has just built.
pub(crate) struct BuiltWalls {
    pub backend: BackendName,
    /// Its init process: when that has exited, nothing in the sandbox is left.
    pub last: (i32, OwnedFd),
    /// How it is ended.
    pub ending: KillMethod,
    pub group: Option<Group>,
    /// The host directories that are written to, the workspace aside.
    pub written: Vec<PathBuf>,
    /// Lock on what no other sandbox may change meanwhile, such as the layers of a copy-on-write workspace.
    pub held: Option<DirectoryLock>,
}

impl LiveWalls {
    pub(crate) fn new(id: SandboxId, built: BuiltWalls, admitted: &Admitted) -> Self {
        let BuiltWalls { backend, last: (pid, pidfd), ending, group, mut written, held } = built;
        written.extend(written_of_host(admitted.spec()));
        Self {
            id,
            pid,
            pidfd,
            ending,
            backend,
            group,
            limits: *admitted.limits(),
            paced: false,
            written,
            own_processes: 0,
            counts_processes: is_watched(admitted, LimitKind::Processes),
            executions: Executions::default(),
            disk_breaches: AtomicU64::new(0),
            ending_for_limit: AtomicU64::new(0),
            ended_for: OnceLock::new(),
            oom_kills_judged: AtomicU64::new(0),
            network_attempts: has_no_network(admitted.spec()).then(AtomicU64::default),
            frozen: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            held: Mutex::new(held),
        }
    }

    /// Holds it to its rate of the processor from now on. Idempotent.
    pub(crate) fn apply_cpu_rate(&self) -> Result<()> {
        let rate = self.limits.cpu_rate.filter(|_| self.paced);
        let (Some(rate), Some(group)) = (rate, &self.group) else { return Ok(()) };
        group.set_cpu_rate(rate).map_err(|error| no_group(self.backend.clone(), error))
    }

    /// Processor time used so far by everything in it.
    pub(crate) fn cpu_time(&self) -> Span {
        let counted = self.group.as_ref().and_then(Group::cpu_time);
        counted.unwrap_or_else(|| process_usage::tally_process_tree(self.pid).cpu.into())
    }

    /// How many processes in it the kernel has killed for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::oom_kills)
    }

    /// The same, when an execution is judged by it.
    pub(crate) fn judge_oom_kills(&self) -> u64 {
        let kills = self.oom_kills();
        self.oom_kills_judged.fetch_max(kills, Ordering::SeqCst);
        kills
    }

    /// Whether the kernel has killed something for want of memory since an execution was last judged by
    /// that. A sandbox that is gone then is gone because of it.
    pub(crate) fn has_unjudged_oom_kill(&self) -> bool {
        self.oom_kills() > self.oom_kills_judged.load(Ordering::SeqCst)
    }

    /// How many processes the kernel has refused it for want of room in its group.
    pub(crate) fn refused_processes(&self) -> u64 {
        self.group.as_ref().and_then(Group::refused_processes).unwrap_or(0)
    }

    /// Whether something in it has tried to reach another host since an execution was last told so, and there is
    /// no way to any.
    pub(crate) fn has_tried_the_network(&self) -> bool {
        let Some(told) = &self.network_attempts else { return false };
        let attempts = unreachable::count_attempts(self.pid);
        attempts > told.fetch_max(attempts, Ordering::SeqCst)
    }

    /// Kills everything in it because ending one execution was not enough for this limit.
    pub(crate) fn kill_for(&self, limit: LimitKind) {
        // Later ones are consequences of the first.
        let _ = self.ended_for.set(limit);
        self.kill();
    }

    /// The limit for which all of it was ended, if one was.
    pub(crate) fn ended_for(&self) -> Option<LimitKind> {
        self.ended_for.get().copied()
    }

    /// Kills everything in it at once.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        match &self.ending {
            KillMethod::Signal(signal) => {
                // It may have ended already.
                let _ = pidfd_send_signal(&self.pidfd, *signal);
            }
            KillMethod::All(signal) => {
                let _ = pidfd_send_signal(&self.pidfd, *signal);
                self.group.iter().for_each(|group| drop(kill_all(group)));
            }
            KillMethod::Asked(ask) => {
                // The signal works at once where this user may send it; the container engine may be slow.
                let _ = pidfd_send_signal(&self.pidfd, Kill::KILL);
                ask();
            }
        }
        if self.frozen.load(Ordering::SeqCst) {
            self.group.iter().for_each(thaw_group);
        }
    }

    /// Stops everything in it where it is, or lets it go on. Returns when it is so.
    pub(crate) async fn freeze(&self, stop: bool) -> Result<()> {
        let operation = if stop { "pause" } else { "resume" };
        let failed = |what: &str| {
            Error::new(ErrorCode::System, operation, what).backend(self.backend.clone())
        };
        let Some(group) = &self.group else {
            return Err(Error::unsupported(operation, Feature::Pause));
        };
        self.frozen.store(true, Ordering::SeqCst);
        let deadline = tokio::time::Instant::now() + END_TIMEOUT;
        loop {
            // Asked again each time: one that forks meanwhile may have got away.
            group.freeze(stop).map_err(|error| failed("the kernel refused").source(error))?;
            // A kill that comes after this look thaws the group itself.
            if stop && self.killed.load(Ordering::SeqCst) {
                thaw_group(group);
                return Err(failed("the sandbox is being ended"));
            }
            if group.is_frozen() == stop {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                thaw_group(group);
                return Err(failed("it did not come to a stop"));
            }
            tokio::time::sleep(END_POLL_INTERVAL).await;
        }
    }

    /// Whether its last process has not ended. Asks the kernel, and does not wait.
    pub(crate) fn is_alive(&self) -> bool {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        !matches!(poll(&mut ended, Some(&Timespec::default())), Ok(1..))
    }

    /// Nothing in it runs any more: its layers are free.
    pub(crate) fn let_go(&self) {
        lock(&self.held).take();
    }

    /// Kills, and waits until nothing is left (C-30).
    pub(crate) async fn end(&self) -> Result<()> {
        self.kill();
        let ended = tokio::time::timeout(END_TIMEOUT, wait_for_exit(&self.pidfd)).await;
        ended
            .map_err(|_| self.left_behind("its last process does not end"))?
            .map_err(|error| self.left_behind("its end cannot be watched").source(error))?;
        self.let_go();
        match &self.group {
            Some(group) => remove_group(&self.backend, &self.id, group).await,
            None => Ok(()),
        }
    }

    fn left_behind(&self, what: &str) -> Error {
        left_behind(&self.backend, &self.id, what)
    }
}

/// Whether no other host can be reached.
fn has_no_network(spec: &SandboxSpec) -> bool {
    match spec.network {
        Network::Auto | Network::None | Network::Loopback => true,
        Network::Egress(_) => false,
    }
}

fn is_watched(admitted: &Admitted, limit: LimitKind) -> bool {
    let watched = |it: &Enforcement| matches!(it, Enforcement::Partly { .. });
    admitted.enforcement().iter().any(|it| it.limit() == limit && watched(it))
}

/// The host's directories that a guest may write to, without parts of git directories: a backend that mounts those
/// writable adds them itself.
fn written_of_host(spec: &SandboxSpec) -> Vec<PathBuf> {
    let mounts = spec.all_mounts_without_commits().filter(|mount| !mount.read_only);
    let mounts = mounts.map(|mount| mount.source.as_path().to_owned());
    list_outermost(find_written_workspace(spec).into_iter().chain(mounts))
}

/// Directories without those that lie in an earlier one and count with that.
pub(crate) fn list_outermost(directories: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    directories.fold(Vec::new(), |mut outer, directory| {
        if !outer.iter().any(|other| directory.starts_with(other)) {
            outer.push(directory);
        }
        outer
    })
}

/// The workspace, if it is a host directory that is written to.
fn find_written_workspace(spec: &SandboxSpec) -> Option<PathBuf> {
    match &spec.workspace {
        Workspace::Local(path) if !spec.read_only => Some(path.as_path().to_owned()),
        Workspace::Overlay(layers) if !spec.read_only => Some(layers.upper.as_path().to_owned()),
        Workspace::Local(_) | Workspace::Overlay(_) | Workspace::Ephemeral => None,
    }
}

/// Waits until a process has ended. The kernel reports the end of the first process of a namespace
/// only after every other process in it is gone; a warden ends after all others.
pub(crate) async fn wait_for_exit(pidfd: &OwnedFd) -> io::Result<()> {
    wait_until_readable(pidfd).await
}

/// Lets everything in a group go on, so that it can end.
pub(crate) fn thaw_group(group: &Group) {
    // Where there is no freezer, nothing was stopped by one.
    let _ = group.freeze(false);
}

/// Removes a group, ending what is still in it. The kernel lets only an empty one go.
pub(crate) async fn remove_group(
    backend: &BackendName,
    id: &SandboxId,
    group: &Group,
) -> Result<()> {
    let deadline = tokio::time::Instant::now() + END_TIMEOUT;
    let mut again = false;
    loop {
        let Err(error) = group.remove() else {
            return Ok(());
        };
        if tokio::time::Instant::now() > deadline {
            return Err(
                left_behind(backend, id, "its control group cannot be removed").source(error)
            );
        }
        thaw_group(group);
        let _ = tokio::time::timeout_at(deadline, all_ended(kill_all(group))).await;
        // What is left is a new process, or one whose end the kernel has not completed.
        if again {
            tokio::time::sleep(END_POLL_INTERVAL).await;
        }
        again = true;
    }
}

async fn all_ended(pidfds: Vec<OwnedFd>) {
    for pidfd in pidfds {
        // Whether it is so, the group tells.
        let _ = wait_for_exit(&pidfd).await;
    }
}

/// Kills every process of a group that can be found now, and returns their pidfds. Those are opened first,
/// and only processes still in the group after that are killed: a pid may be reused for another process in
/// between.
fn kill_all(group: &Group) -> Vec<OwnedFd> {
    let open = |pid: i32| Some((pid, pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK).ok()?));
    let found: Vec<_> = group.list_processes().into_iter().filter_map(open).collect();
    let still = if found.is_empty() { BTreeSet::new() } else { group.list_processes() };
    let meant = found.into_iter().filter(|(pid, _)| still.contains(pid));
    meant
        .filter(|(_, pidfd)| pidfd_send_signal(pidfd, Kill::KILL).is_ok())
        .map(|(_, pidfd)| pidfd)
        .collect()
}

pub(crate) fn left_behind(backend: &BackendName, id: &SandboxId, what: &str) -> Error {
    Error::new(ErrorCode::LeftBehind, "destroy", format!("sandbox `{id}`: {what}"))
        .backend(backend.clone())
        .remedy("look for processes in uninterruptible sleep; destroying again is safe")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use stockade_core::{HostTree, Mount};

    use super::super::admit_provisionally;
    use super::*;

    /// A sandbox of one sleeping process, in a group whose files are plain ones in this directory.
    fn live_in(directory: &Path) -> (LiveWalls, std::process::Child) {
        fs::write(directory.join("cgroup.events"), "frozen 0\n").unwrap();
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::NONBLOCK).unwrap();
        let backend = BackendName::literal("test");
        let admitted = admit_provisionally(backend.clone(), &SandboxSpec::default()).unwrap();
        let built = BuiltWalls {
            backend,
            last: (pid, pidfd),
            ending: KillMethod::Signal(Kill::KILL),
            group: Some(Group::V2(directory.to_owned())),
            written: Vec::new(),
            held: None,
        };
        (LiveWalls::new("one".parse().unwrap(), built, &admitted), child)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_told_to_end_is_not_stopped_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let (live, mut child) = live_in(directory.path());
        let asked = || fs::read_to_string(directory.path().join("cgroup.freeze")).unwrap();
        let pausing = live.freeze(true);
        tokio::pin!(pausing);
        tokio::select! {
            biased;
            _ = &mut pausing => panic!("nothing says that it has stopped"),
            () = std::future::ready(()) => live.kill(),
        }
        assert_eq!(asked(), "0", "what stands still does not end");
        let refused = pausing.await.unwrap_err();
        assert!(refused.message().contains("being ended"), "{refused}");
        assert_eq!(asked(), "0");
        child.wait().unwrap();
    }

    #[test]
    fn what_git_on_the_host_writes_is_charged_to_no_guest_who_cannot() {
        let mount = |path: &str| Mount {
            source: path.parse().unwrap(),
            target: path.parse().unwrap(),
            read_only: false,
        };
        let git = mount("/srv/main/.git/objects");
        let git = HostTree { part_of: HostTree::GIT_PART.into(), mount: git, required: false };
        let mounts = vec![mount("/srv/data"), mount("/srv/data/inner")];
        let spec = SandboxSpec { mounts, trees: vec![git], ..SandboxSpec::default() };
        assert_eq!(written_of_host(&spec), [PathBuf::from("/srv/data")]);
    }
}
