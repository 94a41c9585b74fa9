//! A sandbox dies with its launcher, at whatever instant that is (C-31).

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::error::{At, Failure, Wall};

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
