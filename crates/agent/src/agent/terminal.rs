//! Pseudo-terminals.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::protocol::Size;

/// A terminal's two ends: the agent's and the program's.
pub fn open_terminal(size: Size) -> Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    // By descriptor, not by a path under /dev that might be something else here.
    let theirs = match ioctl_tiocgptpeer(&ours, flags) {
        // A kernel that knows only the other way, such as gVisor's.
        Err(Errno::NOTTY) => by_name(&ours)?,
        opened => opened?,
    };
    resize_terminal(&ours, size)?;
    Ok((ours, theirs))
}

fn by_name(ours: &OwnedFd) -> Result<OwnedFd> {
    let name = ptsname(ours, Vec::new())?;
    rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// Changes its size; the program's side is told by a signal.
pub fn resize_terminal(terminal: &OwnedFd, size: Size) -> Result<()> {
    let Size { rows, cols } = size;
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })
}
