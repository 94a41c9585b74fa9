//! The system calls of this module that have no safe form.
#![allow(unsafe_code)] // raw system calls

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;

fn check_return(ret: c_long) -> Result<c_long, Errno> {
    if ret >= 0 {
        return Ok(ret);
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)))
}

/// Kills every process this one may signal, but itself. Only [`super::scope::LandlockScope`] may call it.
pub(super) fn kill_all_in_reach() {
    // SAFETY: no pointers are passed. The error for no process in reach is no failure.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Gives a descriptor that tells of ended children and of the request to end, and blocks both.
pub(super) fn warden_signals() -> Result<OwnedFd, Errno> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and outlives the calls.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigaddset(&mut set, libc::SIGTERM);
        check_return(c_long::from(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut())))?;
        check_return(c_long::from(libc::signalfd(
            -1,
            &set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )))?
    };
    own_descriptor(fd)
}

/// The number of the next signal waiting there, if any.
pub(super) fn next_signal(signals: BorrowedFd<'_>) -> Option<c_int> {
    let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(signals, &mut record[..]) {
        // The number is the record's first field.
        Ok(count) if count == record.len() => {
            record.first_chunk().map(|field| i32::from_ne_bytes(*field))
        }
        Ok(_) | Err(_) => None,
    }
}

/// Installs a filter for good, and gives the descriptor that tells of the calls it asks about.
pub(crate) fn filter_with_listener(program: &[libc::sock_filter]) -> Result<OwnedFd, Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let prog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (mode, flag) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the kernel copies `len` instructions from a slice that outlives the call and does not
    // write to it.
    own_descriptor(check_return(unsafe {
        libc::syscall(libc::SYS_seccomp, mode, flag, ptr::from_ref(&prog))
    })?)
}

fn own_descriptor(fd: c_long) -> Result<OwnedFd, Errno> {
    let raw = RawFd::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel has just made this descriptor for us; no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// The next call that is asked about.
pub(crate) fn next_call(listener: BorrowedFd<'_>) -> Result<libc::seccomp_notif, Errno> {
    // SAFETY: all zeroes are a valid value, and what the kernel wants to find.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the struct has the kernel's layout and outlives the call.
    check_return(c_long::from(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call)
    }))?;
    Ok(call)
}

/// Whether the caller still waits, so that what was found out about its number is about it.
pub(crate) fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the number outlives the call.
    let ret = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id)
    };
    ret == 0
}

/// Lets the caller go on with a result. One that has ended meanwhile needs none.
pub(crate) fn reply_to_call(listener: BorrowedFd<'_>, id: u64, result: Result<(), Errno>) {
    let error = result.err().map_or(0, |errno| -errno.raw_os_error());
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error, flags: 0 };
    // SAFETY: the struct has the kernel's layout and outlives the call.
    unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
    }
}

/// Copies another process's memory, at most up to the end of the buffer; says how much there was.
pub(crate) fn read_memory(pid: u32, from: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let address = usize::try_from(from).map_err(|_| Errno::FAULT)?;
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY: the local part is the whole of a buffer that outlives the call; the remote one is an
    // address of another process, which the kernel checks.
    let count = unsafe { libc::process_vm_readv(pid.cast_signed(), &local, 1, &remote, 1, 0) };
    check_return(count as c_long).and_then(|count| usize::try_from(count).map_err(|_| Errno::FAULT))
}

/// Changes the mode of what a descriptor names.
pub(super) fn set_mode(of: BorrowedFd<'_>, mode: c_uint) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the path is a C string.
    check_return(unsafe {
        libc::syscall(libc::SYS_fchmodat2, of.as_raw_fd(), c"".as_ptr(), mode, flags)
    })?;
    Ok(())
}

/// Changes the times of what a descriptor names; to now where none are given.
pub(super) fn set_times(of: BorrowedFd<'_>, times: Option<[u8; 32]>) -> Result<(), Errno> {
    let given: Option<[libc::timespec; 2]> = times.map(|bytes| {
        let mut times = MaybeUninit::<[libc::timespec; 2]>::uninit();
        // SAFETY: both have 32 bytes, any of which make numbers; the kernel judges these.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), times.as_mut_ptr().cast(), bytes.len());
            times.assume_init()
        }
    });
    let pointer = given.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (fd, flags) = (of.as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: the path is a C string; the times, if any, outlive the call.
    check_return(unsafe { libc::syscall(libc::SYS_utimensat, fd, c"".as_ptr(), pointer, flags) })?;
    Ok(())
}
