//! The socket that a service manager has opened for the daemon (systemd's socket activation): it is there before the
//! daemon is, which starts with the first client.

#![allow(unsafe_code, reason = "a descriptor that is inherited has nothing but a number")]

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixListener;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// Which process the sockets are for.
const PID_VARIABLE: &str = "LISTEN_PID";
/// How many there are.
const COUNT_VARIABLE: &str = "LISTEN_FDS";
/// The number of the first one.
const FIRST_PASSED_FD: RawFd = 3;

/// Takes the socket over that was opened for this process, if one was. Programs that this process starts do not
/// inherit it. Fails with what is wrong with it.
pub(super) fn take_passed_socket() -> Result<Option<UnixListener>, &'static str> {
    let read_number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if read_number(PID_VARIABLE) != Some(std::process::id()) {
        return Ok(None);
    }
    match read_number(COUNT_VARIABLE) {
        None | Some(0) => Ok(None),
        Some(1) => duplicate_passed_socket().map(Some),
        Some(_) => Err("more than one was passed"),
    }
}

fn duplicate_passed_socket() -> Result<UnixListener, &'static str> {
    // SAFETY: used until the end of this function only, and nothing is closed. If it is not what the variables say,
    // the kernel says so below.
    let passed = unsafe { BorrowedFd::borrow_raw(FIRST_PASSED_FD) };
    let is_listening = sockopt::socket_domain(passed) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(passed) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(passed) == Ok(true);
    if !is_listening {
        return Err("descriptor 3 is not a Unix stream socket that listens");
    }
    let taken = fcntl_setfd(passed, FdFlags::CLOEXEC)
        .and_then(|()| fcntl_dupfd_cloexec(passed, FIRST_PASSED_FD + 1));
    let listener = taken.map(UnixListener::from).map_err(|_| "it cannot be duplicated")?;
    // By its path it is kept from guests, and clients are told it.
    let address = listener.local_addr();
    match address.is_ok_and(|address| address.as_pathname().is_some()) {
        true => Ok(listener),
        false => Err("it has no path"),
    }
}
