//! Pseudo-terminals.

use std::os::fd::OwnedFd;

use rustix::io::Result;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::protocol::Size;

/// A terminal's two ends: the agent's and the program's.
pub fn open(size: Size) -> Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    // By descriptor, not by a path under /dev that might be something else here.
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, size)?;
    Ok((ours, theirs))
}

/// Changes its size; the program's side is told by a signal.
pub fn resize(terminal: &OwnedFd, size: Size) -> Result<()> {
    let Size { rows, cols } = size;
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })
}
