//! The walls of a sandbox without namespaces, in order: what the new process does between its birth
//! and the agent's first instruction. Nothing of the guest runs before the last line.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::Mode;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::plan::BarePlan;
use super::proof::{self, Questions};
use super::{BARE_AGENT, calls, rules};
use crate::error::{At, Failure, Wall};
use crate::sys;
use crate::walls::fds::{self, Remaining};
use crate::walls::{parent, rlimits};
use crate::wire::{self, LaunchReply, Proof};

/// Everything the agent's process is built from.
pub(super) struct BareBlueprint<'a> {
    pub plan: &'a BarePlan,
    pub filter: &'a [libc::sock_filter],
    pub landlock: u32,
    pub privileged: bool,
    pub agent: BorrowedFd<'a>,
    pub pipe: BorrowedFd<'a>,
    pub report: BorrowedFd<'a>,
    /// Where the warden waits for the listener.
    pub hand: BorrowedFd<'a>,
    pub warden: Pid,
}

/// Builds the walls around this process and becomes the agent; or reports why not, and ends.
pub(super) fn enter_agent(b: &BareBlueprint<'_>) -> ! {
    match build_walls(b) {
        Err(failure) => send_report(b.report, LaunchReply::Failed(failure)),
        Ok((mut proofs, remaining)) => {
            let to = remaining.report.as_fd();
            match close_in(b) {
                Err(failure) => send_report(to, LaunchReply::Failed(failure)),
                Ok(more) => {
                    proofs.extend(more);
                    send_report(to, LaunchReply::Proved(proofs));
                    send_report(to, LaunchReply::Failed(execute_agent(b.plan, &remaining.agent)));
                }
            }
        }
    }
    sys::exit_now(1)
}

fn build_walls(b: &BareBlueprint<'_>) -> Result<(Vec<Proof>, Remaining), Failure> {
    // Before there is anything that could outlive its warden.
    die_with(b.warden)?;
    // No terminal of the host's, and no group through which a signal could come or go.
    parent::leave_group()?;
    // While /proc can be opened.
    let questions = Questions::open()?;
    // Capabilities are gone and no_new_privs is set: the warden has seen to both for itself.
    rules::restrict_to_plan(b.landlock, b.plan)?;
    // Last of the walls: some steps above would be refused behind it.
    let listener = calls::filter_with_listener(b.filter).at(Wall::Seccomp, "the filter")?;
    // The listener's holder decides about the guest's calls: no process in here may hold it.
    proof::hand_over(b.hand, &listener)?;
    let proofs = questions.ask(b.privileged)?;
    let remaining = fds::close_all(b.pipe, b.agent, b.report, None)?;
    Ok((proofs, remaining))
}

fn close_in(b: &BareBlueprint<'_>) -> Result<Vec<Proof>, Failure> {
    // After the closing of descriptors: a small limit on them is for the guest, not for the builder.
    rlimits::set_rlimits(&b.plan.rlimits)?;
    // From behind all walls, so that what is proved is what the agent gets.
    proof::read_back(b.plan, b.warden)
}

fn die_with(warden: Pid) -> Result<(), Failure> {
    let wall = Wall::ParentDeath;
    set_parent_process_death_signal(Some(Signal::KILL)).at(wall, "the parent-death signal")?;
    match getppid() == Some(warden) {
        true => Ok(()),
        false => Err(Failure::without_errno(wall, "the warden is gone")),
    }
}

/// The agent's first instruction, or the reason why there is none.
fn execute_agent(plan: &BarePlan, agent: &OwnedFd) -> Failure {
    const AGENT_ENVIRONMENT: [&CStr; 1] = [c"PATH=/usr/local/bin:/usr/bin:/bin"];
    rustix::process::umask(Mode::from_raw_mode(0o022));
    sys::reset_signals();
    let texts = [BARE_AGENT.as_bytes(), plan.workspace.as_os_str().as_bytes(), plan.id.as_bytes()];
    let [Ok(name), Ok(workspace), Ok(id)] = texts.map(CString::new) else {
        return Failure::without_errno(Wall::Agent, "a name holds a zero byte");
    };
    // The sandbox's name is the last argument, where a search among the host's processes finds it.
    let arguments = [&*name, c"--scoped", c"3", &workspace, &id];
    let errno = sys::execute_program(agent.as_fd(), &arguments, &AGENT_ENVIRONMENT);
    Failure::new(Wall::Agent, errno, "executing the agent")
}

/// Tells the owner. One that has given up has nothing left to be built for.
fn send_report(to: BorrowedFd<'_>, what: LaunchReply) {
    if wire::send_reply(to, &what, None).is_err() {
        sys::exit_now(1);
    }
}
