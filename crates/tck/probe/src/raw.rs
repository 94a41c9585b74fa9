//! System calls for which neither std nor rustix has a safe form. Each is the bare call; what it is for
//! is in the verbs.
#![allow(unsafe_code)]

use std::io;

/// Splits this process in two. The probe has one thread, so the child is as whole as the parent.
/// Gives nothing in the child.
pub fn fork_process() -> io::Result<Option<i32>> {
    // SAFETY: no other thread exists whose locks the child could find taken.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Ends this process at once.
pub fn exit_process() -> ! {
    // SAFETY: ends the process without touching its memory.
    unsafe { libc::_exit(0) }
}

/// Sends a signal to every process that can be reached, but this one.
pub fn signal_everybody(number: i32) -> io::Result<()> {
    // SAFETY: touches no memory.
    check_syscall(unsafe { libc::kill(-1, number) }.into())
}

/// Takes control of another process.
pub fn attach_tracer(pid: i32) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: attaching reads and writes no memory of this process.
    check_syscall(unsafe { libc::ptrace(libc::PTRACE_ATTACH, pid, nothing, nothing) })
}

/// Closes a descriptor that the rest of this program takes for open.
pub fn close_descriptor(number: i32) {
    // SAFETY: std's streams cope with a closed descriptor: their writes fail.
    unsafe { libc::close(number) };
}

/// Takes a context for asynchronous I/O, until this process ends.
pub fn io_context() -> io::Result<()> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes one word, which outlives the call.
    check_syscall(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) })
}

fn check_syscall(ret: i64) -> io::Result<()> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
