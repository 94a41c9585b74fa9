//! Ignoring signals: the one thing here for which neither std nor rustix has a safe call.
#![allow(unsafe_code)]

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
