//! A file on its way into the tree: filled under no name or a temporary one, and renamed when complete.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, openat,
};
use rustix::io::Errno;
use tar::Entry;

use super::holes;

/// A temporary name that no other process or thread uses.
pub(super) fn new_draft_name() -> OsString {
    static NEXT_DRAFT_NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NEXT_DRAFT_NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(".stockade-{}-{number}", std::process::id()).into()
}

/// A file that is not there yet: without a name where the file system can, so that a process which is
/// killed leaves nothing half-written.
pub(super) fn new_file(dir: &OwnedFd) -> io::Result<(File, Option<OsString>)> {
    let mode = Mode::RUSR | Mode::WUSR;
    match openat(dir, ".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok((file.into(), None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let draft = new_draft_name();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = openat(dir, &draft, flags | OFlags::CLOEXEC, mode)?;
            Ok((file.into(), Some(draft)))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a file without a name one.
pub(super) fn give_name(file: &File, dir: &OwnedFd) -> io::Result<OsString> {
    let draft = new_draft_name();
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, itself, dir, &draft, AtFlags::SYMLINK_FOLLOW)?;
    Ok(draft)
}

/// What an entry says of a file, with this mode. `room` is asked before anything is written whether there is so much.
pub(super) fn fill_file<R: Read>(
    mut file: &File,
    entry: &mut Entry<'_, R>,
    mode: u32,
    mut room: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let size = entry.size();
    if entry.header().entry_type().as_byte() == holes::SPARSE_ENTRY_TYPE {
        holes::fill_sparse_file(file, entry, room)?;
    } else {
        room(holes::round_to_blocks(size))?;
        if io::copy(entry, &mut file)? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let header = entry.header();
    fchmod(file, Mode::from_raw_mode(mode))?;
    let time = Timespec {
        tv_sec: i64::try_from(header.mtime()?).unwrap_or(0),
        tv_nsec: i64::try_from(header.uid()?).unwrap_or(0).clamp(0, 999_999_999),
    };
    futimens(file, &Timestamps { last_access: time, last_modification: time })?;
    Ok(())
}
