//! The launcher's side of one launch without namespaces: clones the warden, tells the owner of it and
//! lets it go.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use rustix::thread::{CapabilitySet, capabilities};

use super::plan::BarePlan;
use super::warden;
use crate::error::{At, Failure, Wall};
use crate::sealed_memfd;
use crate::seccomp::{self, FilterKind};
use crate::sys::{self, Cloned};
use crate::walls::cgroup::{self, Membership};
use crate::walls::landlock::SCOPES_SINCE;
use crate::wire::{self, LaunchReply};

/// What is made once and used for every sandbox.
pub(crate) struct BareLauncher {
    pub filter: Vec<libc::sock_filter>,
    pub landlock: u32,
    pub privileged: bool,
    pub pid: Pid,
    pub itself: OwnedFd,
    pub agent: OwnedFd,
}

/// What one warden is sent out with.
pub(super) struct Commission<'a> {
    pub bare_launcher: &'a BareLauncher,
    pub plan: &'a BarePlan,
    pub membership: &'a Membership,
    pub pipe: BorrowedFd<'a>,
    pub reply: BorrowedFd<'a>,
    go: BorrowedFd<'a>,
}

impl Commission<'_> {
    pub(super) fn wait_for_go(&self) -> Result<(), Failure> {
        match rustix::io::read(self.go, &mut [0; 8]) {
            Ok(8) => Ok(()),
            Ok(_) | Err(_) => Err(Failure::without_errno(Wall::Request, "the launcher is gone")),
        }
    }
}

impl BareLauncher {
    /// Prepares everything that does not depend on a plan.
    pub(crate) fn open(agent: OwnedFd) -> Result<BareLauncher, Failure> {
        sealed_memfd::check_seals(&agent)?;
        let pid = getpid();
        let itself = pidfd_open(pid, PidfdFlags::empty()).at(Wall::Ground, "own pidfd")?;
        let capable = capabilities(None).at(Wall::Ground, "its capabilities")?.effective;
        if capable.contains(CapabilitySet::SETGID) {
            // Membership in root's groups would otherwise be handed down to every sandbox. A user
            // namespace may forbid it to its own root.
            match rustix::thread::set_thread_groups(&[]) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(errno) => return Err(Failure::new(Wall::Ground, errno, "other groups")),
            }
        }
        let privileged = capable.contains(CapabilitySet::SETPCAP);
        let filter = seccomp::compile_filter(FilterKind::Bare);
        Ok(BareLauncher { filter, landlock: read_landlock_abi()?, privileged, pid, itself, agent })
    }

    /// Starts building one sandbox around the agent that will hold `pipe`. The new processes tell the
    /// rest over `reply` themselves. Answers the warden's process.
    pub(crate) fn begin(
        &self,
        plan: &BarePlan,
        pipe: &OwnedFd,
        reply: &OwnedFd,
    ) -> Result<Pid, Failure> {
        let membership = cgroup::open_cgroups(plan.cgroup.as_ref())?;
        let go = eventfd(0, EventfdFlags::CLOEXEC).at(Wall::Request, "an eventfd")?;
        let commission = Commission {
            bare_launcher: self,
            plan,
            membership: &membership,
            pipe: pipe.as_fd(),
            reply: reply.as_fd(),
            go: go.as_fd(),
        };
        let cgroup = membership.unified.as_ref().map(AsFd::as_fd);
        match sys::clone_into(0, cgroup).at(Wall::Agent, "a warden")? {
            Cloned::Child => warden::run_warden(&commission),
            Cloned::Parent { pid, pidfd } => {
                release_warden(pid, &pidfd, reply, &go).inspect_err(|_| {
                    // It has not begun: nothing of it is left.
                    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                })?;
                Ok(pid)
            }
        }
    }
}

fn read_landlock_abi() -> Result<u32, Failure> {
    let none = |errno| Failure::new(Wall::Landlock, errno, "the kernel has no Landlock");
    let remedy = "use Linux 6.12 or later with Landlock switched on (lsm=landlock,…)";
    match sys::landlock_abi().map_err(|errno| none(errno).remedy(remedy))? {
        abi if abi >= SCOPES_SINCE => Ok(abi),
        abi => {
            let detail = format!("its version {abi} cannot keep signals inside");
            Err(Failure::new(Wall::Landlock, Errno::OPNOTSUPP, detail).remedy(remedy))
        }
    }
}

/// Tells the owner and lets the warden go, in this order, so that the owner hears in order too.
fn release_warden(pid: Pid, pidfd: &OwnedFd, reply: &OwnedFd, go: &OwnedFd) -> Result<(), Failure> {
    let begun = LaunchReply::Begun { pid: pid.as_raw_nonzero().get().unsigned_abs() };
    wire::send_reply(reply, &begun, Some(pidfd.as_fd())).at(Wall::Request, "the owner is gone")?;
    rustix::io::write(go, &1_u64.to_ne_bytes()).at(Wall::Request, "letting it go")?;
    Ok(())
}
