//! What ties a sandbox to its launcher, and what must not: it dies with the launcher, at any instant
//! (C-31), and shares no process group with it, through which a signal would reach the host.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, set_parent_process_death_signal, setsid};

use crate::error::{At, Failure, Wall};
use crate::sys;

/// Asks for the signal, and makes sure that the launcher had not gone before the asking. Its process
/// id cannot tell: seen from the new pid namespace it has none.
pub(crate) fn die_with(launcher: BorrowedFd<'_>) -> Result<(), Failure> {
    let wall = Wall::ParentDeath;
    set_parent_process_death_signal(Some(Signal::KILL)).at(wall, "the parent-death signal")?;
    let mut watched = [PollFd::new(&launcher, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut watched, Some(&now)).at(wall, "looking for the launcher")? {
        0 => Ok(()),
        _ => Err(Failure::without_errno(wall, "the launcher is gone")),
    }
}

/// Leaves the launcher's process group: a signal to one's own group pays no heed to pid namespaces.
pub(crate) fn leave_group() -> Result<(), Failure> {
    setsid().map(drop).at(Wall::Session, "a new session")
}

/// Reads it back: the first process of the namespace leads its own group and session.
pub(crate) fn prove_group() -> Result<String, Failure> {
    prove_leader(Pid::INIT).map(|()| "process 1 leads its own".to_owned())
}

/// Reads it back where process numbers are the host's.
pub(crate) fn prove_own_group() -> Result<String, Failure> {
    prove_leader(getpid()).map(|()| "the agent leads its own".to_owned())
}

fn prove_leader(own: Pid) -> Result<(), Failure> {
    let own = own.as_raw_nonzero().get();
    match sys::group_and_session() == (own, own) {
        true => Ok(()),
        false => Err(Failure::without_errno(Wall::Session, "the launcher's group is shared")),
    }
}
