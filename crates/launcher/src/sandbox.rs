//! The walls, in order: what the new process does between its birth and the agent's first
//! instruction. Read it from top to bottom; each step says why it stands where it stands. Nothing
//! here reads a byte that a guest wrote, and nothing of the guest runs before the last line.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use crate::base_namespaces::Ground;
use crate::error::{At, Failure, Wall};
use crate::open::Sources;
use crate::plan::LaunchPlan;
use crate::template::RootTemplate;
use crate::walls::inotify::InotifyBounds;
use crate::walls::proc::ProcMask;
use crate::walls::sources::MountWhen;
use crate::walls::verify::{Expected, read_back};
use crate::walls::{
    caps, cgroup, fds, identity, landlock, parent, proc, rlimits, root, scratch, sources, uts,
};
use crate::wire::{self, LaunchReply, Proof};
use crate::without_namespaces::calls;
use crate::{sys, walls};

/// Everything one sandbox is built from, made ready before its process exists.
pub(crate) struct SandboxBlueprint<'a> {
    pub plan: &'a LaunchPlan,
    pub ground: &'a Ground,
    pub template: &'a RootTemplate,
    pub sources: &'a Sources,
    pub membership: &'a walls::cgroup::Membership,
    pub masks: &'a [ProcMask],
    pub filter: &'a [libc::sock_filter],
    pub inotify: InotifyBounds,
    pub landlock: Option<u32>,
    pub launcher: BorrowedFd<'a>,
    pub agent: BorrowedFd<'a>,
    pub pipe: BorrowedFd<'a>,
    pub go: BorrowedFd<'a>,
    /// Where the launcher waits for the listener of a filter that asks.
    pub hand: Option<BorrowedFd<'a>>,
    pub report: BorrowedFd<'a>,
}

/// Builds the walls around this process and becomes the agent; or reports why not, and ends.
pub(crate) fn enter_sandbox(b: &SandboxBlueprint<'_>) -> ! {
    // The old root's directories stay open until the outer walls stand.
    let outer = build_walls(b).and_then(|private| {
        let remaining = fds::close_all(b.pipe, b.agent, b.report, b.hand)?;
        Ok((private, remaining))
    });
    match outer {
        Err(failure) => send_report(b.report, LaunchReply::Failed(failure)),
        Ok((private, mut remaining)) => {
            let hand = remaining.hand.take();
            let to = remaining.report.as_fd();
            match close_in(b, &private, hand) {
                Err(failure) => send_report(to, LaunchReply::Failed(failure)),
                Ok(proofs) => {
                    send_report(to, LaunchReply::Proved(proofs));
                    send_report(to, LaunchReply::Failed(start_agent(b.plan, &remaining.agent)));
                }
            }
        }
    }
    sys::exit_now(1)
}

/// The outer walls: what the sandbox is made of. The namespaces, the network's among them, are there
/// from birth.
fn build_walls(b: &SandboxBlueprint<'_>) -> Result<Vec<PathBuf>, Failure> {
    // At once: until then, a signal to its own process group reaches the launcher.
    parent::leave_group()?;
    // Before the first wait: a launcher that is killed now would leave it waiting for ever.
    parent::die_with(b.launcher)?;
    // The limits on what building itself may use.
    cgroup::join_cgroups(b.membership)?;
    // Before any file is made: none can have an owner until the ids are mapped.
    identity::become_mapped(b.go, b.plan)?;
    // Once more after the change of identity, which clears the signal.
    parent::die_with(b.launcher)?;
    uts::set_hostname(&b.plan.hostname)?;
    // While /proc of the host can be written to.
    b.inotify.set()?;
    // While the capabilities last.
    mount_all(b)
}

/// The inner walls: what this process itself gives up, and the proof of all walls.
fn close_in(
    b: &SandboxBlueprint<'_>,
    private: &[PathBuf],
    hand: Option<OwnedFd>,
) -> Result<Vec<Proof>, Failure> {
    // Nothing below needs a capability.
    caps::drop_all()?;
    // Needs no_new_privs, and no more mounts to come.
    if let Some(abi) = b.landlock {
        landlock::restrict_process(abi, b.plan, &list_writable_paths(b.plan, private))?;
    }
    // Last of the walls but for limits: most steps above would be refused behind it.
    install_filter(b.filter, hand)?;
    // After the last descriptor was passed: limits on them are for the guest, not for the builder.
    rlimits::set_rlimits(&b.plan.rlimits)?;
    // From behind all walls, so that what is proved is what the agent gets.
    read_back(&build_expected(b, private))
}

/// The file system, from the root outward; then the old root is left behind. Says where the private
/// writable places are.
fn mount_all(b: &SandboxBlueprint<'_>) -> Result<Vec<PathBuf>, Failure> {
    let staged = root::stage_root(b.plan, b.template)?;
    let private = scratch::set_up(&staged, b.plan.tmp_bytes)?;
    sources::mount_workspace(&staged, b.plan, b.sources)?;
    sources::mount_extras(&staged, b.plan, b.sources, MountWhen::BeforeProc)?;
    // After the mounts, which may lie in it.
    sources::workspace_alias(&staged, b.plan)?;
    proc::mount_terminals(&staged)?;
    proc::set_up(&staged, b.template, b.masks)?;
    sources::mount_extras(&staged, b.plan, b.sources, MountWhen::InProc)?;
    root::switch_root(&staged)?;
    Ok(private)
}

/// The filter's listener, where it has one, is sent to the launcher and kept by no process in here.
fn install_filter(filter: &[libc::sock_filter], hand: Option<OwnedFd>) -> Result<(), Failure> {
    let wall = Wall::Seccomp;
    let Some(hand) = hand else { return sys::seccomp_filter(filter).at(wall, "the filter") };
    let listener = calls::filter_with_listener(filter).at(wall, "the filter")?;
    wire::send_message(&hand, b"listener", &[listener.as_fd()])
        .at(wall, "handing over the listener")
}

fn list_writable_paths(plan: &LaunchPlan, private: &[PathBuf]) -> Vec<PathBuf> {
    let mut places = private.to_vec();
    if plan.copy_on_write.is_some() {
        places.push(PathBuf::from("/"));
    }
    if !plan.read_only {
        places.extend(plan.workspace_paths().cloned());
    }
    let extra = plan.mounts.iter().filter(|mount| !mount.read_only);
    places.extend(extra.map(|mount| mount.target.clone()));
    places
}

fn build_expected<'a>(b: &SandboxBlueprint<'a>, private: &'a [PathBuf]) -> Expected<'a> {
    let mut deep: Vec<&Path> = b.plan.workspace_paths().map(PathBuf::as_path).collect();
    deep.extend(b.plan.mounts.iter().map(|mount| mount.target.as_path()));
    deep.extend(b.template.mounts.iter().map(PathBuf::as_path));
    let mut mounts = vec!["/", "/proc", "/dev/pts"];
    mounts.extend(private.iter().filter_map(|place| place.to_str()));
    mounts.extend(b.masks.iter().map(|mask| mask.path.as_str()));
    Expected { plan: b.plan, ground: b.ground, mounts, deep, landlock: b.landlock }
}

/// The agent's first instruction, or the reason why there is none.
fn start_agent(plan: &LaunchPlan, agent: &OwnedFd) -> Failure {
    const AGENT_ENVIRONMENT: [&CStr; 2] =
        [c"PATH=/usr/local/bin:/usr/bin:/bin", c"HOME=/home/sandbox"];
    rustix::process::umask(Mode::from_raw_mode(0o022));
    sys::reset_signals();
    let Ok(workspace) = CString::new(plan.workspace_target.as_os_str().as_bytes()) else {
        return Failure::without_errno(Wall::Agent, "the workspace's name holds a zero byte");
    };
    let Ok(id) = CString::new(plan.id.as_str()) else {
        return Failure::without_errno(Wall::Agent, "the sandbox's name holds a zero byte");
    };
    // The sandbox's name is the last argument, where a search among the host's processes finds it.
    let arguments = [c"stockade-agent", c"3", &workspace, &id];
    let errno = sys::execute_program(agent.as_fd(), &arguments, &AGENT_ENVIRONMENT);
    Failure::new(Wall::Agent, errno, "executing the agent")
}

/// Tells the owner. One that has given up has nothing left to be built for.
fn send_report(to: BorrowedFd<'_>, what: LaunchReply) {
    if wire::send_reply(to, &what, None).is_err() {
        sys::exit_now(1);
    }
}
