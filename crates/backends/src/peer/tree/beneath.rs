//! Opening what lies in a tree: by the kernel, without following any link, and never outside (C-21).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use stockade_fs::chmod_descriptor;

use super::{Side, TreeError};

const BENEATH_FLAGS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Opens a path from this directory on.
pub(super) fn open_beneath(
    dir: impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(stockade_fs::open_beneath(dir, path, flags, mode, BENEATH_FLAGS)?)
}

/// Opens a path for reading. A file that the guest made unreadable for itself is owned by the user of this
/// process: its mode is widened for the open, and restored at once.
pub(super) fn open_readable(
    dir: impl AsFd,
    path: &Path,
    flags: OFlags,
    side: Side,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = open_beneath(&dir, path, flags, Mode::empty());
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    if side == Side::Near || !opened.as_ref().is_err_and(denied) {
        return opened;
    }
    let held = open_beneath(&dir, path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    let before = Mode::from_raw_mode(rustix::fs::fstat(&held)?.st_mode);
    chmod_descriptor(&held, before | Mode::RWXU)?;
    let opened = open_beneath(&dir, path, flags, Mode::empty());
    chmod_descriptor(&held, before)?;
    opened
}

/// The directory in which a path's last part lies, and that part.
pub(super) fn open_parent(root: impl AsFd, path: &Path) -> Result<(OwnedFd, &OsStr), TreeError> {
    let name = path.file_name().ok_or_else(|| TreeError::Refused {
        path: super::escape_path(path),
        what: "names no entry of a directory",
    })?;
    let above = path.parent().unwrap_or(Path::new(""));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir =
        open_beneath(root, above, flags, Mode::empty()).map_err(|e| TreeError::at(path, e))?;
    Ok((dir, name))
}
