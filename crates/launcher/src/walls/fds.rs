//! Host descriptors: after this wall the process holds the agent's pipe, the agent, the way to
//! report, and the sandbox's own `/dev/null` three times. Nothing else survives.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{At, Failure, Wall};
use crate::sys;

/// The agent's pipe, as the agent is told.
pub(crate) const PIPE_FD: RawFd = 3;
/// The agent's program; closed by its execution.
pub(crate) const AGENT_PROGRAM_FD: RawFd = 4;
/// The descriptor for the report; closed by the agent's execution, which is how success is told.
pub(crate) const REPORT_FD: RawFd = 5;

/// The descriptor of the channel to the launcher, for as long as there is something to hand over.
const HANDOVER_FD: RawFd = 6;

/// The descriptors the last steps still need, borrowed from their fixed numbers.
pub(crate) struct Remaining {
    pub agent: OwnedFd,
    pub report: OwnedFd,
    /// The way to hand something to the launcher, where there is one. Dropped before the walls are read back.
    pub hand: Option<OwnedFd>,
}

/// Puts the three where they belong and closes everything else.
pub(crate) fn close_all(
    pipe: BorrowedFd<'_>,
    agent: BorrowedFd<'_>,
    report: BorrowedFd<'_>,
    hand: Option<BorrowedFd<'_>>,
) -> Result<Remaining, Failure> {
    close_other_fds(pipe, agent, report, hand)
        .at(Wall::Descriptors, "closing the host's descriptors")
}

fn close_other_fds(
    pipe: BorrowedFd<'_>,
    agent: BorrowedFd<'_>,
    report: BorrowedFd<'_>,
    hand: Option<BorrowedFd<'_>>,
) -> Result<Remaining, Errno> {
    // Copies above every fixed number, so that placing one cannot overwrite another.
    let [pipe, agent, report] = [pipe, agent, report]
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 16).map(std::mem::ManuallyDrop::new));
    let (pipe, agent, report) = (pipe?, agent?, report?);
    sys::duplicate_onto(pipe.as_raw_fd(), PIPE_FD, false)?;
    sys::duplicate_onto(agent.as_raw_fd(), AGENT_PROGRAM_FD, true)?;
    sys::duplicate_onto(report.as_raw_fd(), REPORT_FD, true)?;
    let last = match hand {
        Some(hand) => {
            let hand = std::mem::ManuallyDrop::new(rustix::io::fcntl_dupfd_cloexec(hand, 16)?);
            sys::duplicate_onto(hand.as_raw_fd(), HANDOVER_FD, true)?;
            HANDOVER_FD
        }
        None => REPORT_FD,
    };
    sys::close_from(last as u32 + 1, true)?;
    standard_streams()?;
    let hand = hand.map(|_| sys::take_inherited_fd(HANDOVER_FD)).transpose()?;
    Ok(Remaining {
        agent: sys::take_inherited_fd(AGENT_PROGRAM_FD)?,
        report: sys::take_inherited_fd(REPORT_FD)?,
        hand,
    })
}

/// The launcher's own are opened on the host's mounts, which nothing inside may hold on to.
fn standard_streams() -> Result<(), Errno> {
    let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    (0..=2).try_for_each(|stream| sys::duplicate_onto(null.as_raw_fd(), stream, false))
}
