//! Modes and times of files, which Landlock does not decide about: the filter hands these calls to the
//! warden, which carries them out where the guest may write and nowhere else. What the guest's memory
//! says is copied once and then judged by the object the kernel finds, never by text alone.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::calls;

/// The longest path the kernel takes, with its end.
const PATH_LIMIT: usize = 4096;
/// The bits that a guest may set in a mode: not set-user-id and set-group-id.
const ALLOWED_MODE_BITS: u32 = 0o1777;

/// What is asked for.
enum AttributeChange {
    Mode(u32),
    Times(Option<[u8; 32]>),
}

/// Of what: a directory or file by descriptor, and a path from there.
struct AttributeTarget {
    from: i32,
    path: u64,
    follow: bool,
    empty: bool,
}

/// Deals with the next call. An error means that no process is left that could make one.
pub(super) fn serve_call(listener: BorrowedFd<'_>, writable: &[PathBuf]) -> Result<(), Errno> {
    let call = match calls::next_call(listener) {
        // The caller was killed before its notification was received.
        Err(Errno::NOENT | Errno::INTR) => return Ok(()),
        call => call?,
    };
    calls::reply_to_call(listener, call.id, decide_call(listener, &call, writable));
    Ok(())
}

fn decide_call(
    listener: BorrowedFd<'_>,
    call: &libc::seccomp_notif,
    writable: &[PathBuf],
) -> Result<(), Errno> {
    let (target, change) = parse_call(call)?;
    let object = open_target(call.pid, &target)?;
    // Numbers are used again: what was found may be another process's.
    if !calls::still_waits(listener, call.id) {
        return Err(Errno::SRCH);
    }
    if !is_below(&object, writable)? {
        return Err(Errno::PERM);
    }
    match change {
        AttributeChange::Mode(mode) if mode & !ALLOWED_MODE_BITS != 0 => Err(Errno::PERM),
        AttributeChange::Mode(mode) => calls::set_mode(object.as_fd(), mode),
        AttributeChange::Times(times) => calls::set_times(object.as_fd(), times),
    }
}

fn parse_call(call: &libc::seccomp_notif) -> Result<(AttributeTarget, AttributeChange), Errno> {
    let [first, second, third, fourth, ..] = call.data.args;
    let plain = |from, path| AttributeTarget { from, path, follow: true, empty: false };
    let (target, change) = match i64::from(call.data.nr) {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => (plain(libc::AT_FDCWD, first), mode_change(second)),
        libc::SYS_fchmod => (plain(register_number(first), 0), mode_change(second)),
        libc::SYS_fchmodat => (plain(register_number(first), second), mode_change(third)),
        libc::SYS_fchmodat2 => (parse_flagged_target(first, second, fourth)?, mode_change(third)),
        libc::SYS_utimensat => {
            (parse_flagged_target(first, second, fourth)?, read_times(call.pid, third)?)
        }
        _ => return Err(Errno::NOSYS),
    };
    let by_descriptor = i64::from(call.data.nr) == libc::SYS_fchmod
        || i64::from(call.data.nr) == libc::SYS_utimensat;
    match target.path == 0 && !by_descriptor {
        true => Err(Errno::FAULT),
        false => Ok((target, change)),
    }
}

/// Descriptors and modes are the lower halves of their registers.
fn register_number(register: u64) -> i32 {
    (register as u32).cast_signed()
}

fn mode_change(register: u64) -> AttributeChange {
    // The kernel itself looks at no more than the permission bits.
    AttributeChange::Mode(register as u32 & 0o7777)
}

fn read_times(pid: u32, pointer: u64) -> Result<AttributeChange, Errno> {
    let mut bytes = [0; 32];
    match pointer {
        0 => Ok(AttributeChange::Times(None)),
        _ if calls::read_memory(pid, pointer, &mut bytes)? == bytes.len() => {
            Ok(AttributeChange::Times(Some(bytes)))
        }
        _ => Err(Errno::FAULT),
    }
}

fn parse_flagged_target(from: u64, path: u64, flags: u64) -> Result<AttributeTarget, Errno> {
    let flags = register_number(flags);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::INVAL);
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let empty = flags & libc::AT_EMPTY_PATH != 0;
    Ok(AttributeTarget { from: register_number(from), path, follow, empty })
}

/// Opens what is meant, only to name it.
fn open_target(pid: u32, target: &AttributeTarget) -> Result<OwnedFd, Errno> {
    let path = match target.path {
        0 => CString::default(),
        pointer => read_string(pid, pointer)?,
    };
    if path.is_empty() {
        let named = target.path == 0 || target.empty;
        return if named { open_held_fd(pid, target.from) } else { Err(Errno::NOENT) };
    }
    let from = match path.as_bytes().starts_with(b"/") {
        true => openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?,
        false => open_held_fd(pid, target.from)?,
    };
    let last = if target.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::PATH | OFlags::CLOEXEC | last;
    // Beneath nothing: it leads wherever the guest's own call would have led.
    openat2(from, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// What a process holds under a number, or its working directory.
fn open_held_fd(pid: u32, number: i32) -> Result<OwnedFd, Errno> {
    let link = match number {
        libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
        0.. => format!("/proc/{pid}/fd/{number}"),
        _ => return Err(Errno::BADF),
    };
    let opened = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|errno| if errno == Errno::NOENT { Errno::BADF } else { errno })
}

/// A text in another process's memory. Read page by page: the next one need not be there.
fn read_string(pid: u32, pointer: u64) -> Result<CString, Errno> {
    const PAGE_BYTES: u64 = 4096;
    let mut bytes = Vec::new();
    while bytes.len() < PATH_LIMIT {
        let at = pointer.checked_add(bytes.len() as u64).ok_or(Errno::FAULT)?;
        let mut piece = vec![0; (PAGE_BYTES - at % PAGE_BYTES) as usize];
        let count = calls::read_memory(pid, at, &mut piece)?;
        piece.truncate(count);
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            let fits = bytes.len() < PATH_LIMIT;
            return CString::new(bytes).ok().filter(|_| fits).ok_or(Errno::NAMETOOLONG);
        }
        bytes.extend_from_slice(&piece);
    }
    Err(Errno::NAMETOOLONG)
}

/// Whether an object lies where the guest may write, as the kernel names it.
fn is_below(object: &OwnedFd, writable: &[PathBuf]) -> Result<bool, Errno> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", object.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new())?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    Ok(writable.iter().any(|place| path.starts_with(place)))
}
