//! The few system calls that have no safe wrapper: each is one function, checked and typed. Nothing else in
//! this crate is `unsafe` but the loading of the filter's program and the server's start.
#![allow(unsafe_code)] // raw system calls have no safe form

use std::ffi::{CStr, c_char, c_long, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::process::Pid;

fn check_return(ret: c_long) -> Result<c_long, Errno> {
    if ret >= 0 {
        return Ok(ret);
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)))
}

fn own_descriptor(fd: c_long) -> Result<OwnedFd, Errno> {
    let raw = RawFd::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel has just made this descriptor for us; no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// libc's constant of this name overflows its type.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The bits in which `clone` has the signal of its end.
const CLONE_SIGNAL: u64 = 0xff;

/// What a clone gave: the parent learns of the child, the child that it is one.
pub(crate) enum Cloned {
    Parent { pid: Pid, pidfd: OwnedFd },
    Child,
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `clone3` with a pidfd and without shared memory: a fork into new namespaces, and into `cgroup`
/// (a directory of the unified hierarchy) where one is given.
pub(crate) fn clone_into(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(directory) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(directory.as_raw_fd()).map_err(|_| Errno::BADF)?;
    }
    // SAFETY: no CLONE_VM and no stack: the child goes on in a copy of this memory. The process is
    // single-threaded, so that no lock can be left taken in the copy.
    let ret = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<CloneArgs>()) };
    let pid = match check_return(ret) {
        // Filters of containers refuse it, because they cannot read its flags, and allow its elder.
        Err(Errno::NOSYS) if cgroup.is_none() => older_clone(args.flags, &mut pidfd)?,
        answered => answered?,
    };
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        None => Ok(Cloned::Child),
        Some(pid) => Ok(Cloned::Parent { pid, pidfd: own_descriptor(c_long::from(pidfd))? }),
    }
}

/// The same by `clone`, which knows of no control groups.
fn older_clone(flags: u64, pidfd: &mut RawFd) -> Result<c_long, Errno> {
    // The flag of a time namespace lies where this call has the signal.
    if flags & CLONE_SIGNAL != 0 {
        return Err(Errno::NOSYS);
    }
    let (flags, zero) = (flags | libc::SIGCHLD as u64, 0_u64);
    // SAFETY: as above; the descriptor's place outlives the call.
    check_return(unsafe {
        libc::syscall(libc::SYS_clone, flags, zero, ptr::from_mut(pidfd), zero, zero)
    })
}

/// New namespaces for this process itself.
pub(crate) fn unshare_namespaces(flags: rustix::thread::UnshareFlags) -> Result<(), Errno> {
    // SAFETY: the unsafety is about CLONE_FILES, whose descriptors Rust believes to own alone;
    // no caller here passes that flag.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Connects a socket to an address of any kind, as it was given.
pub(crate) fn connect_socket(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel copies as many bytes as the slice has, wherever they lie.
    let ret = unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) };
    check_return(c_long::from(ret)).map(drop)
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets attributes on a mount (and, recursively, on those below it) and makes it private.
pub(crate) fn mount_setattr(
    tree: BorrowedFd<'_>,
    set: MountAttrFlags,
    recursive: bool,
) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: u64::from(set.bits()),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the path is a C string, and the struct outlives the call and has the size given.
    check_return(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// The kernel's `struct landlock_ruleset_attr`.
#[repr(C)]
pub(crate) struct RulesetAttr {
    pub handled_access_fs: u64,
    pub handled_access_net: u64,
    pub scoped: u64,
}

/// The Landlock version this kernel offers.
pub(crate) fn landlock_abi() -> Result<u32, Errno> {
    const CREATE_RULESET_VERSION: c_uint = 1;
    let none = ptr::null::<c_void>();
    // SAFETY: with the version flag the kernel reads no attribute.
    let ret = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, CREATE_RULESET_VERSION)
    };
    check_return(ret).map(|abi| u32::try_from(abi).unwrap_or(0))
}

/// A rule set handling what `attr` says. `size` is how much of the struct this kernel knows.
pub(crate) fn landlock_ruleset(attr: &RulesetAttr, size: usize) -> Result<OwnedFd, Errno> {
    let size = size.min(size_of::<RulesetAttr>());
    // SAFETY: the struct outlives the call and is at least `size` long.
    own_descriptor(check_return(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::from_ref(attr), size, 0)
    })?)
}

/// Allows `access` beneath `parent`.
pub(crate) fn landlock_allow(
    ruleset: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    access: u64,
) -> Result<(), Errno> {
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: i32,
    }
    const RULE_PATH_BENEATH: c_long = 1;
    let rule = PathBeneath { allowed_access: access, parent_fd: parent.as_raw_fd() };
    // SAFETY: the struct has the kernel's packed layout and outlives the call.
    check_return(unsafe {
        let fd = ruleset.as_raw_fd();
        libc::syscall(libc::SYS_landlock_add_rule, fd, RULE_PATH_BENEATH, &rule, 0)
    })?;
    Ok(())
}

/// Puts this process under the rule set for good.
pub(crate) fn landlock_restrict(ruleset: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: no pointers are passed.
    check_return(unsafe {
        libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0)
    })?;
    Ok(())
}

/// Installs a seccomp filter for good.
pub(crate) fn seccomp_filter(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let prog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from a slice that outlives the call and does not
    // write to it.
    check_return(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, ptr::from_ref(&prog))
    })?;
    Ok(())
}

/// Executes the program behind a descriptor. Comes back only with the reason why it did not.
pub(crate) fn execute_program(program: BorrowedFd<'_>, args: &[&CStr], env: &[&CStr]) -> Errno {
    let list = |strings: &[&CStr]| -> Vec<*const c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
    };
    let (args, env) = (list(args), list(env));
    // SAFETY: both lists end in a null pointer, and they and their strings outlive the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            args.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check_return(ret).err().unwrap_or(Errno::IO)
}

/// Marks every descriptor from `first` on as closed on execution, or closes it now.
pub(crate) fn close_from(first: c_uint, now: bool) -> Result<(), Errno> {
    let flags = if now { 0 } else { libc::CLOSE_RANGE_CLOEXEC };
    // SAFETY: no pointers are passed. Callers that close now own nothing they use beyond `first`.
    check_return(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, flags) })?;
    Ok(())
}

/// Closes every descriptor above the standard ones but these.
pub(crate) fn keep_only<const N: usize>(kept: [OwnedFd; N]) -> Result<[OwnedFd; N], Errno> {
    let mut numbers = kept.each_ref().map(|fd| fd.as_raw_fd() as c_uint);
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers {
        if number > first {
            // SAFETY: no pointers are passed. Callers use nothing they hold but what is kept.
            check_return(unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) })?;
        }
        first = number + 1;
    }
    close_from(first, true)?;
    Ok(kept)
}

/// Whether a number names an open descriptor.
pub(crate) fn is_open(number: RawFd) -> bool {
    // SAFETY: only asks for flags; a number that is not open answers EBADF.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

/// Makes `target` name what `from` names; unlike a typed dup, the number is what matters.
pub(crate) fn duplicate_onto(from: RawFd, target: RawFd, cloexec: bool) -> Result<(), Errno> {
    if from == target {
        return Err(Errno::INVAL);
    }
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no pointers are passed; the descriptor that `target` named is replaced, as callers intend.
    check_return(c_long::from(unsafe { libc::dup3(from, target, flags) }))?;
    Ok(())
}

/// Takes a descriptor this process inherited under a number agreed upon.
pub(crate) fn take_inherited_fd(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: only asks for flags; a number that is not open answers EBADF.
    check_return(c_long::from(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }))?;
    own_descriptor(c_long::from(number))
}

/// Blocks SIGCHLD and the signals a terminal sends, and gives a descriptor that tells of SIGCHLD.
pub(crate) fn child_signals() -> Result<OwnedFd, Errno> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and outlives the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::sigaddset(&mut set, libc::SIGCHLD);
        check_return(c_long::from(libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut())))?;
        own_descriptor(c_long::from(libc::signalfd(
            -1,
            &set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )))
    }
}

/// Undoes [`child_signals`] in a child: the agent starts with nothing blocked and nothing ignored.
pub(crate) fn reset_signals() {
    // SAFETY: the set is initialised before it is used; the dispositions are constants.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &set, ptr::null_mut());
    }
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn raise_loopback(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: an all-zero ifreq is valid; the name is shorter than its field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the request outlives the call and has the layout SIOCSIFFLAGS reads.
    check_return(c_long::from(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, ptr::from_ref(&request))
    }))?;
    Ok(())
}

/// Ends a forked child without running what its parent registered to run at exit.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions and does not come back.
    unsafe { libc::_exit(code) }
}

/// The caller's process group and session, by their leaders' numbers. Not by `rustix`: where the leader is of another pid namespace the kernel answers 0, which no
/// `Pid` can hold.
pub(crate) fn group_and_session() -> (i32, i32) {
    // SAFETY: both take a number, touch no memory, and cannot fail for the caller itself.
    unsafe { (libc::getpgid(0), libc::getsid(0)) }
}
