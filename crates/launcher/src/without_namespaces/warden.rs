//! The warden of one sandbox: stands outside the guest's reach, and ends everything in it when its
//! agent ends, when it is asked to, or when the launcher is gone, in one call that no fork escapes.
//! It ends itself only after the last of them is buried and their private directory is removed.
//!
//! It never reads a byte from the guest's pipe, and holds none of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, set_child_subreaper, set_parent_process_death_signal, wait,
};
use stockade_fs::remove_tree;

use super::agent::{self, BareBlueprint};
use super::launch::Commission;
use super::plan::BarePlan;
use super::scope::LandlockScope;
use super::{attributes, calls};
use crate::error::{At, Failure, Wall};
use crate::sys::{self, Cloned};
use crate::walls::{caps, cgroup, parent};
use crate::wire::{self, LaunchReply};

/// What the warden itself holds on to.
struct Post {
    scope: LandlockScope,
    agent: Pid,
    signals: OwnedFd,
    launcher: OwnedFd,
    hand: OwnedFd,
}

/// Takes up its post, starts the agent, and stays until the end.
pub(super) fn run_warden(c: &Commission<'_>) -> ! {
    match take_up(c) {
        Err(failure) => {
            // An error is ignored: the peer to be told is gone.
            let _ = wire::send_reply(c.reply, &LaunchReply::Failed(failure), None);
        }
        Ok(post) => post.stay_until_end(c.plan),
    }
    sys::exit_now(1)
}

fn take_up(c: &Commission<'_>) -> Result<Post, Failure> {
    // Until there is a guest, dying with the launcher leaves nothing; from then on it is watched.
    set_parent_process_death_signal(Some(Signal::KILL)).at(Wall::ParentDeath, "to begin with")?;
    // The owner knows of this process before it hears from it.
    c.wait_for_go()?;
    parent::leave_group()?;
    // The limits on what building itself may use.
    cgroup::join_lists(c.membership)?;
    // Given up here and so in all that follows; the scope needs no_new_privs.
    if c.bare_launcher.privileged {
        caps::drop_all()?
    } else {
        caps::drop_own()?
    }
    let scope = LandlockScope::enter(c.bare_launcher.pid)?;
    // Orphans inside are reparented to the agent, and after its end to this process (subreaper).
    set_child_subreaper(Some(getpid())).at(Wall::ParentDeath, "becoming the warden")?;
    let signals = calls::warden_signals().at(Wall::ParentDeath, "signals")?;
    let launcher = c.bare_launcher.itself.try_clone();
    let launcher = launcher.map_err(|_| Failure::without_errno(Wall::ParentDeath, "a copy"))?;
    let (hand, theirs) = wire::packet_pair().at(Wall::Seccomp, "a way for the listener")?;
    let agent = start_agent(c, theirs.as_fd())?;
    let post = Post { scope, agent, signals, launcher, hand };
    drop(theirs);
    let post = post.let_go_of_the_rest()?;
    set_parent_process_death_signal(None).at(Wall::ParentDeath, "from now on")?;
    Ok(post)
}

fn start_agent(c: &Commission<'_>, hand: BorrowedFd<'_>) -> Result<Pid, Failure> {
    let blueprint = BareBlueprint {
        plan: c.plan,
        filter: &c.bare_launcher.filter,
        landlock: c.bare_launcher.landlock,
        privileged: c.bare_launcher.privileged,
        agent: c.bare_launcher.agent.as_fd(),
        pipe: c.pipe,
        report: c.reply,
        hand,
        warden: getpid(),
    };
    match sys::clone_into(0, None).at(Wall::Agent, "a process for it")? {
        Cloned::Child => agent::enter_agent(&blueprint),
        Cloned::Parent { pid, .. } => Ok(pid),
    }
}

impl Post {
    /// Copies the needed descriptors to low numbers and closes all others: while this process held the pipe
    /// or the report socket, their peers would not see them close.
    fn let_go_of_the_rest(self) -> Result<Post, Failure> {
        let Post { scope, agent, signals, launcher, hand } = self;
        let kept = sys::keep_only([signals, launcher, hand]);
        let [signals, launcher, hand] = kept.at(Wall::Descriptors, "the warden's own")?;
        Ok(Post { scope, agent, signals, launcher, hand })
    }

    fn stay_until_end(self, plan: &BarePlan) -> ! {
        let listener = self.receive_listener();
        let writable: Vec<PathBuf> = plan.changeable().cloned().collect();
        self.watch_agent(listener, &writable);
        self.scope.kill_all();
        bury_all();
        let removed = remove_tree(&plan.private);
        sys::exit_now(i32::from(removed.is_err()))
    }

    /// The agent's process sends it; one that failed before has nothing to send.
    fn receive_listener(&self) -> Option<OwnedFd> {
        let message = wire::receive_message(&self.hand, RecvFlags::empty()).ok()??;
        message.fds.into_iter().next()
    }

    /// Returns when everything is to end.
    fn watch_agent(&self, mut listener: Option<OwnedFd>, writable: &[PathBuf]) {
        while let Ok(ready) = self.wait(listener.as_ref()) {
            let [signals, launcher, asked] = ready;
            if launcher || (signals && self.is_over()) {
                return;
            }
            if asked
                && let Some(open) = &listener
                && attributes::serve_call(open.as_fd(), writable).is_err()
            {
                listener = None;
            }
        }
    }

    fn wait(&self, listener: Option<&OwnedFd>) -> Result<[bool; 3], Errno> {
        // Without one, the launcher is watched twice.
        let third = listener.unwrap_or(&self.launcher);
        let mut watched =
            [&self.signals, &self.launcher, third].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => Ok(watched.map(|fd| !fd.revents().is_empty())),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the end was asked for, or the agent has ended.
    fn is_over(&self) -> bool {
        let mut over = false;
        while let Some(signal) = calls::next_signal(self.signals.as_fd()) {
            over |= signal == libc::SIGTERM;
        }
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            over |= pid == self.agent;
        }
        over
    }
}

/// Waits until no child is left. All are killed, and none can have been forked since.
fn bury_all() {
    while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
}
