//! The few system calls that need `unsafe`. The agent has one thread, which is what makes forking
//! and going on in the child sound.
#![allow(unsafe_code)] // The calls below have no safe form in the libraries used.

use std::ffi::{CStr, c_char};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Which side of a fork this is.
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with the new one's id.
    Parent(i32),
}

fn check_result(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Splits the process in two.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: there is one thread, so the child's copy of every lock and of the heap is consistent.
    match check_result(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Puts the process under a filter, for good. It has given up gaining privileges before.
pub fn seccomp_filter(filter: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel only reads it.
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program and its instructions outlive the call, and the length is theirs.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Splits the process in two, the new one being the first of a pid namespace in a user namespace.
pub fn fork_apart() -> io::Result<Fork> {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::SIGCHLD;
    let zero: libc::c_ulong = 0;
    // SAFETY: as with `fork`, whose effect this has: no memory is shared, and the stack stays where it
    // is in the copy.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, zero, zero, zero, zero) };
    match i32::try_from(pid) {
        Ok(0) => Ok(Fork::Child),
        Ok(pid @ 1..) => Ok(Fork::Parent(pid)),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// The stack of a new process, for what it does before it becomes another program.
const CHILD_STACK_BYTES: usize = 256 * 1024;

/// Runs `body` in a new process that shares this one's memory, while this one is suspended until the
/// new one has become another program or ended. Nothing is copied, so it is faster than [`fork`], and
/// what `body` wrote is seen afterwards.
pub fn fork_and_wait(mut body: &mut dyn FnMut()) -> io::Result<i32> {
    extern "C" fn run(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it points to the caller's reference, and the caller is suspended.
        let body = unsafe { &mut *body.cast::<&mut dyn FnMut()>() };
        body();
        exit_now(127)
    }
    let mut stack = vec![0u128; CHILD_STACK_BYTES / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let body = (&raw mut body).cast();
    // SAFETY: the stack is aligned, and alive until the call returns, when the new process has left it; there
    // is one thread, and it is suspended, so no other code uses the memory meanwhile.
    check_result(unsafe { libc::clone(run, stack.as_mut_ptr_range().end.cast(), flags, body) })
}

/// Ends this process at once, without running what the parent registered for its own end.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Whether this is the first process of its pid namespace, whose end ends all others.
pub fn is_init() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() == 1
}

/// Takes over an inherited descriptor by its number.
pub fn adopt_fd(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: asks about the number only.
    check_result(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    // SAFETY: it is open, and the process that started us tells the caller that it is ours.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor above 2 except those given.
pub fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.iter().copied().filter(|fd| *fd >= 3) {
        close_range(first, fd - 1, 0);
        first = fd + 1;
    }
    close_range(first, RawFd::MAX, 0);
}

/// Marks every descriptor above 2 to be closed by `exec`.
pub fn close_on_exec_above_stdio() {
    close_range(3, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC);
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) {
    if first <= last {
        // SAFETY: only called where nothing uses the closed descriptors any more: in a child that
        // keeps those it needs.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    }
}

/// Makes `fds` the standard input, output and error.
pub fn set_stdio(fds: [RawFd; 3]) -> io::Result<()> {
    for (target, fd) in (0..).zip(fds) {
        // SAFETY: the targets are the standard ones, which nothing owns.
        check_result(unsafe { libc::dup2(fd, target) })?;
    }
    Ok(())
}

/// Undoes what was inherited: every signal has its default effect.
pub fn default_signals() {
    // What the kernel takes for an action: all zeroes is the default one. Asked directly, because the
    // C library keeps two signals to itself.
    let default = [0u64; 4];
    for number in 1..=64 {
        // SAFETY: sets no handler; the action outlives the call; numbers that cannot be set are
        // refused by the kernel.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, number, &default, 0, 8) };
    }
}

/// Makes a broken pipe an error of the write.
pub fn ignore_broken_pipes() {
    // SAFETY: sets no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// What a program expects: no signal blocked, none ignored.
pub fn signals_for_program() {
    // SAFETY: sets no handler, and a set the kernel fills in is a valid one.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_SETMASK, &no_signals(), std::ptr::null_mut());
    }
}

fn no_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// A descriptor that becomes readable when a child ends.
pub fn watch_children() -> io::Result<OwnedFd> {
    let mut set = no_signals();
    // SAFETY: the set is valid; the new descriptor has no other owner.
    unsafe {
        libc::sigaddset(&mut set, libc::SIGCHLD);
        check_result(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()))?;
        let fd = check_result(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The next child that ended, with its wait status; nothing if none has. An error means that there
/// are no children.
pub fn reap_child(block: bool) -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    let flags = if block { 0 } else { libc::WNOHANG };
    // SAFETY: the status outlives the call.
    let pid = check_result(unsafe { libc::waitpid(-1, &mut status, flags) })?;
    Ok((pid != 0).then_some((pid, status)))
}

/// Processor time in microseconds and highest memory in KiB of the children that were reaped.
pub fn usage_of_children() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: all zeroes are a valid value, which the call overwrites.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (micros(usage.ru_utime) + micros(usage.ru_stime), usage.ru_maxrss as u64)
}

/// Sends a signal. A process that is gone is no error: that is what one wants of most signals.
pub fn send_signal(pid: i32, number: i32) {
    if pid > 1 {
        // SAFETY: has no memory effects; never a group or everybody, as the check above ensures.
        unsafe { libc::kill(pid, number) };
    }
}

/// The signal by which the agent asks a keeper to signal everybody it keeps.
const REQUEST_SIGNAL: libc::c_int = libc::SIGUSR1;

/// Keeps requests waiting until [`obey_agent`]; inherited by every keeper.
pub fn hold_requests() -> io::Result<()> {
    let mut set = no_signals();
    // SAFETY: the set is valid and outlives the call.
    check_result(unsafe {
        libc::sigaddset(&mut set, REQUEST_SIGNAL);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
    })?;
    Ok(())
}

/// The process whose requests are obeyed.
static OBEYED_PID: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_request(_: libc::c_int, request: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record; a queued one has sender and value. Nothing is called
    // but `kill`, and the interrupted code finds its error number as it was.
    unsafe {
        let before = *libc::__errno_location();
        let queued = (*request).si_code == libc::SI_QUEUE;
        if queued && (*request).si_pid() == OBEYED_PID.load(Ordering::Relaxed) {
            libc::kill(-1, (*request).si_value().sival_ptr as libc::c_int);
        }
        *libc::__errno_location() = before;
    }
}

/// Signals everybody in reach whenever `agent` asks for it. Only [`super::landlock_scope::Entered`] may call it.
pub fn obey_agent(agent: i32) -> io::Result<()> {
    OBEYED_PID.store(agent, Ordering::Relaxed);
    // SAFETY: all zeroes are a valid action, which is then filled; the handler keeps to what may be
    // done in one; the set is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_request as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        check_result(libc::sigaction(REQUEST_SIGNAL, &action, std::ptr::null_mut()))?;
        let mut set = no_signals();
        libc::sigaddset(&mut set, REQUEST_SIGNAL);
        check_result(libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()))?;
    }
    Ok(())
}

/// Asks a keeper to send a signal to everybody it keeps. If it is gone, so are they.
pub fn request_signal(keeper: i32, number: i32) {
    let value = libc::sigval { sival_ptr: number as usize as *mut libc::c_void };
    // SAFETY: plain numbers; the value is not used as a pointer.
    unsafe { libc::sigqueue(keeper, REQUEST_SIGNAL, value) };
}

/// Keeps signals of this process and all it starts among themselves.
pub fn keep_signals() -> rustix::io::Result<()> {
    // The kernel's `struct landlock_ruleset_attr`: files, network, scopes.
    const SCOPE_SIGNALS: u64 = 2;
    let rules: [u64; 3] = [0, 0, SCOPE_SIGNALS];
    let last_error = || rustix::io::Errno::from_io_error(&io::Error::last_os_error());
    let failed = || last_error().unwrap_or(rustix::io::Errno::IO);
    // SAFETY: the struct outlives the call; the descriptor has no other owner.
    unsafe {
        let size = size_of_val(&rules);
        let made = libc::syscall(libc::SYS_landlock_create_ruleset, &rules, size, 0);
        let Ok(raw @ 0..) = RawFd::try_from(made) else { return Err(failed()) };
        let ruleset = OwnedFd::from_raw_fd(raw);
        match libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) {
            0 => Ok(()),
            _ => Err(failed()),
        }
    }
}

/// Becomes another user, with no groups but its own.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain numbers; the list of groups is empty.
    unsafe {
        check_result(libc::setgroups(0, std::ptr::null()))?;
        check_result(libc::setresgid(gid, gid, gid))?;
        check_result(libc::setresuid(uid, uid, uid))?;
    }
    Ok(())
}

/// Whether this process already is that user.
pub fn is_user(uid: u32, gid: u32) -> bool {
    // SAFETY: have no preconditions.
    unsafe { libc::geteuid() == uid && libc::getegid() == gid }
}

/// A list of C strings in the form `exec` takes.
pub struct Pointers(Vec<*const c_char>);

impl Pointers {
    /// The strings must outlive the use of the list.
    pub fn from_strings(strings: &[std::ffi::CString]) -> Self {
        let pointers = strings.iter().map(|text| text.as_ptr());
        Self(pointers.chain(std::iter::once(std::ptr::null())).collect())
    }
}

/// Becomes another program. Returns only if that failed.
pub fn exec(path: &CStr, argv: &Pointers, env: &Pointers) -> io::Error {
    // SAFETY: both lists end with a null pointer, and their strings are alive: the image that holds
    // them is borrowed by the caller.
    unsafe { libc::execve(path.as_ptr(), argv.0.as_ptr(), env.0.as_ptr()) };
    io::Error::last_os_error()
}

/// Reads at most `most` bytes to the end of `to`. Returns how many; 0 is the end of what is read.
pub fn read_more(from: &OwnedFd, to: &mut Vec<u8>, most: usize) -> rustix::io::Result<usize> {
    to.reserve(most);
    let length = to.len();
    let (filled, _) = rustix::io::read(from, &mut to.spare_capacity_mut()[..most])?;
    let count = filled.len();
    // SAFETY: the kernel has just filled that many bytes after the old end.
    unsafe { to.set_len(length + count) };
    Ok(count)
}

/// The same for a socket, over which one open file may come with the bytes.
pub fn receive_more(
    from: &OwnedFd,
    to: &mut Vec<u8>,
    most: usize,
) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let length = to.len();
    to.resize(length + most, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut came = RecvAncillaryBuffer::new(&mut space);
    let mut room = [IoSliceMut::new(&mut to[length..])];
    let received = recvmsg(from, &mut room, &mut came, RecvFlags::CMSG_CLOEXEC);
    let count = received.as_ref().map_or(0, |message| message.bytes);
    to.truncate(length + count);
    received?;
    let files = came.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        RecvAncillaryMessage::ScmCredentials(_) | _ => None,
    });
    let last = files.flatten().last();
    Ok((count, last))
}

/// Raw numbers of descriptors that are kept alive by the caller.
pub fn raw_fds(fds: &[&OwnedFd]) -> Vec<RawFd> {
    fds.iter().map(|fd| fd.as_raw_fd()).collect()
}

/// Makes this process the leader of a session of its own. Not by rustix, which takes the answer for a process id, never 0:
/// gVisor answers 0.
pub(super) fn begin_session() -> io::Result<()> {
    // SAFETY: takes no argument, and touches no memory.
    match unsafe { libc::setsid() } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
