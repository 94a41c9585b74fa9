//! Host descriptors: after this wall the process holds the agent's pipe, the agent, the way to
//! report, and the sandbox's own `/dev/null` three times. Nothing else survives.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{At, Failure, Wall};
use crate::sys;

/// The agent's pipe, as the agent is told.
pub(crate) const PIPE: RawFd = 3;
/// The agent; closed by its execution.
pub(crate) const AGENT: RawFd = 4;
/// The way to report; closed by the agent's execution, which is how success is told.
pub(crate) const REPORT: RawFd = 5;

/// The way to the launcher, for as long as there is something to hand over.
const HAND: RawFd = 6;

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
    close(pipe, agent, report, hand).at(Wall::Descriptors, "closing the host's descriptors")
}

fn close(
    pipe: BorrowedFd<'_>,
    agent: BorrowedFd<'_>,
    report: BorrowedFd<'_>,
    hand: Option<BorrowedFd<'_>>,
) -> Result<Remaining, Errno> {
    // Copies above every fixed number, so that placing one cannot overwrite another.
    let [pipe, agent, report] = [pipe, agent, report]
        .map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 16).map(std::mem::ManuallyDrop::new));
    let (pipe, agent, report) = (pipe?, agent?, report?);
    sys::duplicate_onto(pipe.as_raw_fd(), PIPE, false)?;
    sys::duplicate_onto(agent.as_raw_fd(), AGENT, true)?;
    sys::duplicate_onto(report.as_raw_fd(), REPORT, true)?;
    let last = match hand {
        Some(hand) => {
            let hand = std::mem::ManuallyDrop::new(rustix::io::fcntl_dupfd_cloexec(hand, 16)?);
            sys::duplicate_onto(hand.as_raw_fd(), HAND, true)?;
            HAND
        }
        None => REPORT,
    };
    sys::close_from(last as u32 + 1, true)?;
    standard_streams()?;
    let hand = hand.map(|_| sys::inherited(HAND)).transpose()?;
    Ok(Remaining { agent: sys::inherited(AGENT)?, report: sys::inherited(REPORT)?, hand })
}

/// The launcher's own are opened on the host's mounts, which nothing inside may hold on to.
fn standard_streams() -> Result<(), Errno> {
    let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    (0..=2).try_for_each(|stream| sys::duplicate_onto(null.as_raw_fd(), stream, false))
}
