//! Close-on-exec for every descriptor this process was started with: none may reach a supervisor, which
//! would hold a pipe of its caller open for as long as it lives. The one system call here that no safe
//! library offers.

#![allow(unsafe_code, reason = "close_range has no safe wrapper")]

use std::io;

/// Marks every descriptor but the standard three to be closed when another program is executed.
pub fn set_cloexec_on_all() -> io::Result<()> {
    const FIRST_FD: libc::c_uint = 3;
    const CLOSE_RANGE_FLAGS: libc::c_uint = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: no memory is passed, and the flag closes nothing in this process: it only marks.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_FD, libc::c_uint::MAX, CLOSE_RANGE_FLAGS)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
