//! The launcher's side of one launch: opens what the plan names, clones the process that will build
//! the walls around itself, maps its identity and lets it go.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal,
    set_dumpable_behavior,
};

use crate::base_namespaces::Ground;
use crate::error::{At, Failure, Wall};
use crate::open::{Sources, format_path, is_normal};
use crate::plan::LaunchPlan;
use crate::sandbox::{SandboxBlueprint, enter_sandbox};
use crate::seccomp::{self, FilterKind};
use crate::sockets::SocketGuest;
use crate::sys::{self, Cloned};
use crate::template::Templates;
use crate::walls::inotify::InotifyBounds;
use crate::walls::landlock::SOCKETS_SINCE;
use crate::walls::net::Spare;
use crate::walls::proc::{ProcMask, list_masks};
use crate::walls::{cgroup, identity};
use crate::wire::{self, LaunchReply};
use crate::{sealed_memfd, walls};

/// What is made once and used for every sandbox.
pub(crate) struct LaunchWorkshop {
    ground: Ground,
    templates: Templates,
    masks: Vec<ProcMask>,
    filter: Vec<libc::sock_filter>,
    /// Whether the filter asks this process about connecting.
    asks: bool,
    inotify: InotifyBounds,
    landlock: Option<u32>,
    network: Spare,
    stock: Stock,
    itself: OwnedFd,
    agent: OwnedFd,
}

/// A sandbox in the making.
pub(crate) struct BegunLaunch {
    pub pid: Pid,
    /// Where the listener of its filter will come from, and its guest's user, if the filter asks.
    pub asking: Option<(OwnedFd, SocketGuest)>,
}

/// For how many sandboxes things are made ready ahead of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stock {
    /// For the next one, always.
    Always,
    /// For the first one.
    Once,
    /// For none any more.
    Never,
}

impl LaunchWorkshop {
    /// Prepares everything that does not depend on a plan.
    pub(crate) fn open(agent: OwnedFd, stock: Stock) -> Result<LaunchWorkshop, Failure> {
        sealed_memfd::check_seals(&agent)?;
        rustix::process::umask(rustix::fs::Mode::empty());
        let itself = pidfd_open(getpid(), PidfdFlags::empty()).at(Wall::Ground, "own pidfd")?;
        let ground = Ground::prepare()?;
        let landlock = sys::landlock_abi().ok();
        let asks = landlock.is_none_or(|abi| abi < SOCKETS_SINCE);
        let filter =
            seccomp::compile_filter(if asks { FilterKind::Asking } else { FilterKind::Namespaces });
        set_dumpable_behavior(DumpableBehavior::NotDumpable).at(Wall::Ground, "dumpable")?;
        let (templates, inotify) = (Templates::default(), InotifyBounds::of_host());
        let (masks, network) = (list_masks(), Spare::default());
        Ok(LaunchWorkshop {
            ground,
            templates,
            masks,
            filter,
            asks,
            inotify,
            landlock,
            network,
            stock,
            itself,
            agent,
        })
    }

    /// Does ahead of time what the next launch would otherwise have to wait for.
    pub(crate) fn prepare(&mut self) {
        self.network.prepare();
        if self.stock == Stock::Once {
            // The first plan has not come yet; most are for the host's root. A failure shows with the plan.
            let _ = self.templates.prepare_draft(&self.ground);
        }
    }

    /// Whether nothing more can be done ahead of time.
    pub(crate) fn is_prepared(&self) -> bool {
        self.stock == Stock::Never || self.network.is_ready()
    }

    /// Starts building one sandbox around the agent that will hold `pipe`. The new process tells the
    /// rest over `reply` itself.
    pub(crate) fn begin(
        &mut self,
        plan: &LaunchPlan,
        pipe: &OwnedFd,
        reply: &OwnedFd,
    ) -> Result<BegunLaunch, Failure> {
        if self.stock == Stock::Once {
            self.stock = Stock::Never;
        }
        check_plan(plan, &self.ground)?;
        let landlock = self.second_wall(plan)?;
        let (sources, membership) = self.open_sources(plan)?;
        let template = self.templates.get(&self.ground, plan, &sources.mounts)?;
        self.network.take(plan.network)?;
        let go = eventfd(0, EventfdFlags::CLOEXEC).at(Wall::Request, "an eventfd")?;
        let hand = self.asks.then(wire::packet_pair).transpose();
        let (hand, theirs) = hand.at(Wall::Seccomp, "a way for the listener")?.unzip();
        let blueprint = SandboxBlueprint {
            plan,
            ground: &self.ground,
            template,
            sources: &sources,
            membership: &membership,
            masks: &self.masks,
            filter: &self.filter,
            inotify: self.inotify,
            landlock,
            launcher: self.itself.as_fd(),
            agent: self.agent.as_fd(),
            pipe: pipe.as_fd(),
            go: go.as_fd(),
            hand: theirs.as_ref().map(AsFd::as_fd),
            report: reply.as_fd(),
        };
        let (pid, pidfd) = clone_child(&blueprint, &self.ground)?;
        if let Err(failure) = release_child(&self.ground, plan, pid, &pidfd, reply, &go) {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            return Err(failure);
        }
        let guest = SocketGuest {
            uid: plan.host_uid.unwrap_or(self.ground.uid),
            gid: plan.host_gid.unwrap_or(self.ground.gid),
        };
        Ok(BegunLaunch { pid, asking: hand.map(|hand| (hand, guest)) })
    }

    /// Does something where the host's paths can be seen.
    pub(crate) fn on_host<T>(
        &self,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.ground.on_host(work)
    }

    fn second_wall(&self, plan: &LaunchPlan) -> Result<Option<u32>, Failure> {
        match self.landlock {
            None if !plan.without_landlock => {
                Err(Failure::new(Wall::Landlock, Errno::NOSYS, "the kernel has no Landlock"))
            }
            landlock => Ok(landlock),
        }
    }

    fn open_sources(
        &self,
        plan: &LaunchPlan,
    ) -> Result<(Sources, walls::cgroup::Membership), Failure> {
        if !Sources::named_by(plan) && plan.cgroup.is_none() {
            let none = Sources { workspace: None, layers: None, mounts: Vec::new() };
            return Ok((none, walls::cgroup::Membership::default()));
        }
        self.ground
            .on_host(|| Ok((Sources::open(plan)?, cgroup::open_cgroups(plan.cgroup.as_ref())?)))
    }
}

/// What of a plan can be refused without looking at the host.
fn check_plan(plan: &LaunchPlan, ground: &Ground) -> Result<(), Failure> {
    let targets = plan.mounts.iter().map(|mount| &mount.target);
    for target in targets.chain(plan.workspace_paths()) {
        if !is_normal(target) {
            let detail = format!("{} is not a plain absolute path", format_path(target));
            return Err(Failure::without_errno(Wall::Request, detail));
        }
    }
    let elsewhere = plan.host_uid.is_some_and(|uid| uid != ground.uid)
        || plan.host_gid.is_some_and(|gid| gid != ground.gid);
    match elsewhere && !ground.privileged {
        false => Ok(()),
        true => Err(Failure::new(Wall::Identity, Errno::PERM, "another user of the host")
            .remedy("run as root, or leave the host's user and group out")),
    }
}

/// Clones into all new namespaces at once. In the child this does not come back.
fn clone_child(
    blueprint: &SandboxBlueprint<'_>,
    ground: &Ground,
) -> Result<(Pid, OwnedFd), Failure> {
    // A process that cannot be dumped belongs to root under /proc, where its maps must be written.
    set_dumpable_behavior(DumpableBehavior::Dumpable).at(Wall::Namespaces, "dumpable")?;
    let cgroup = blueprint.membership.unified.as_ref().map(AsFd::as_fd);
    let cloned = sys::clone_into(namespace_flags(ground), cgroup);
    match cloned {
        Ok(Cloned::Child) => enter_sandbox(blueprint),
        Ok(Cloned::Parent { pid, pidfd }) => {
            set_dumpable_behavior(DumpableBehavior::NotDumpable)
                .at(Wall::Namespaces, "dumpable")?;
            Ok((pid, pidfd))
        }
        Err(errno) => Err(Failure::new(Wall::Namespaces, errno, "cloning into new namespaces")),
    }
}

/// Every namespace but two: the network's, in which the launcher stands already, and the cgroup one,
/// which is made after the groups were joined.
fn namespace_flags(ground: &Ground) -> u64 {
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let time = match ground.namespaces.iter().any(|(name, _)| *name == "time") {
        true => libc::CLONE_NEWTIME,
        false => 0,
    };
    (flags | time) as u64
}

/// Maps the child, tells the owner of it, and lets it go: in this order, so that the owner knows of the
/// child before it hears from it, and a child whose owner has given up never starts.
fn release_child(
    ground: &Ground,
    plan: &LaunchPlan,
    pid: Pid,
    pidfd: &OwnedFd,
    reply: &OwnedFd,
    go: &OwnedFd,
) -> Result<(), Failure> {
    identity::write_id_maps(ground, plan, pid)?;
    let begun = LaunchReply::Begun { pid: pid.as_raw_nonzero().get().unsigned_abs() };
    wire::send_reply(reply, &begun, Some(pidfd.as_fd())).at(Wall::Request, "the owner is gone")?;
    rustix::io::write(go, &1_u64.to_ne_bytes()).at(Wall::Identity, "letting it go")?;
    Ok(())
}
