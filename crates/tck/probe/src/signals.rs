//! Signals and sessions: what neither std nor rustix has a safe call for.
#![allow(unsafe_code)]

use std::io;

/// Ignores every signal that can be ignored. Programs started from here on ignore them too.
pub fn ignore_all() {
    for number in 1..=31 {
        // The kernel refuses these two; everything else is taken.
        if number != libc::SIGKILL && number != libc::SIGSTOP {
            // SAFETY: SIG_IGN installs no handler, so no code of ours runs in signal context.
            unsafe { libc::signal(number, libc::SIG_IGN) };
        }
    }
}

/// Gives one signal its usual effect back.
pub fn restore_default(number: i32) {
    // SAFETY: SIG_DFL installs no handler, so no code of ours runs in signal context.
    unsafe { libc::signal(number, libc::SIG_DFL) };
}

/// Makes this process the leader of a session of its own. Not by rustix, which takes the answer for a process id, never 0:
/// gVisor answers 0.
pub fn begin_session() -> io::Result<()> {
    // SAFETY: takes no argument, and touches no memory.
    match unsafe { libc::setsid() } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
