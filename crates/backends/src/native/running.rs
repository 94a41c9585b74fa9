//! One live sandbox as the host sees it: its first process, its group, what it uses, and its end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::process::{Signal as Kill, pidfd_send_signal};
use stockade_core::{
    Admitted, EffectiveLimits, Error, ErrorCode, LimitKind, Result, SandboxId, SandboxSpec, Span,
    User, Workspace,
};

use super::cgroup::Group;
use super::ready::readable;
use super::{NAME, plan, tally};

/// How long the kernel may take to end everything that was killed.
const END_DEADLINE: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(2);

pub(super) struct Running {
    pub id: SandboxId,
    /// The first process inside, as the host numbers it.
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub group: Option<Group>,
    pub limits: EffectiveLimits,
    /// Whom everything in it runs as.
    pub user: User,
    /// The host directory that is written to, if any.
    pub written: Option<PathBuf>,
    breached: AtomicU8,
}

impl Running {
    pub(super) fn new(
        id: SandboxId,
        (pid, pidfd): (i32, OwnedFd),
        group: Option<Group>,
        admitted: &Admitted,
    ) -> Self {
        let limits = *admitted.limits();
        let user = plan::user(admitted.spec());
        let written = written(admitted.spec());
        Self { id, pid, pidfd, group, limits, user, written, breached: AtomicU8::new(u8::MAX) }
    }

    /// Processor time used so far by everything in it.
    pub(super) fn cpu_time(&self) -> Span {
        let counted = self.group.as_ref().and_then(Group::cpu_time);
        counted.unwrap_or_else(|| tally::below(self.pid).cpu.into())
    }

    pub(super) fn oom_kills(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::oom_kills)
    }

    /// Remembers the first limit that was exceeded: later ones are its consequences.
    pub(super) fn breach(&self, limit: LimitKind) {
        let at = LimitKind::ALL.iter().position(|kind| *kind == limit);
        let at = at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX);
        let _ = self.breached.compare_exchange(u8::MAX, at, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The limit that ended it, if one did.
    pub(super) fn breached(&self) -> Option<LimitKind> {
        LimitKind::ALL.get(usize::from(self.breached.load(Ordering::SeqCst))).copied()
    }

    /// Kills everything in it at once: with the first process of a process namespace, all end.
    pub(super) fn kill(&self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.pidfd, Kill::KILL);
    }

    /// Kills, and waits until nothing is left (C-30).
    pub(super) async fn end(&self) -> Result<()> {
        self.kill();
        let ended = tokio::time::timeout(END_DEADLINE, ended(&self.pidfd)).await;
        ended
            .map_err(|_| left_behind(&self.id, "its first process does not end"))?
            .map_err(|error| left_behind(&self.id, "its end cannot be watched").source(error))?;
        match &self.group {
            Some(group) => remove(&self.id, group).await,
            None => Ok(()),
        }
    }
}

/// The host directory that is written to, if any.
fn written(spec: &SandboxSpec) -> Option<PathBuf> {
    match &spec.workspace {
        Workspace::Local(path) if !spec.read_only => Some(path.as_path().to_owned()),
        Workspace::Local(_) | Workspace::Ephemeral => None,
    }
}

/// Waits until a process has ended. The kernel reports the end of the first process of a namespace
/// only after every other process in it is gone.
pub(super) async fn ended(pidfd: &OwnedFd) -> io::Result<()> {
    readable(pidfd).await
}

/// Removes a group, ending what is still in it. The kernel lets only an empty one go.
pub(super) async fn remove(id: &SandboxId, group: &Group) -> Result<()> {
    let deadline = tokio::time::Instant::now() + END_DEADLINE;
    loop {
        let Err(error) = group.remove() else {
            return Ok(());
        };
        if tokio::time::Instant::now() > deadline {
            return Err(left_behind(id, "its control group cannot be removed").source(error));
        }
        for pid in group.processes() {
            super::find::kill_if(pid, |pid| group.processes().contains(&pid));
        }
        tokio::time::sleep(END_POLL).await;
    }
}

fn left_behind(id: &SandboxId, what: &str) -> Error {
    Error::new(ErrorCode::LeftBehind, "destroy", format!("sandbox `{id}`: {what}"))
        .backend(NAME)
        .remedy("look for processes in uninterruptible sleep; destroying again is safe")
}
