//! Paths to descriptors beneath a directory, by the kernel alone (C-21, C-22).

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::by_name;

/// How often a path is resolved when the kernel could not decide because something was being moved.
const MAX_RESOLVE_ATTEMPTS: usize = 64;

/// Opens a path from a directory on, which leads no further than `within` says and never through a magic link:
/// by the kernel in one go, or name by name where it has no `openat2` or a filter refuses it.
pub fn open_beneath(
    dir: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    within: ResolveFlags,
) -> Result<OwnedFd> {
    let (flags, within) = (flags | OFlags::CLOEXEC, within | ResolveFlags::NO_MAGICLINKS);
    path.into_with_c_str(|path| {
        let mut result = Err(Errno::AGAIN);
        for _ in 0..MAX_RESOLVE_ATTEMPTS {
            result = open_once(dir.as_fd(), path, flags, mode, within);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    })
}

fn open_once(
    dir: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    mode: Mode,
    within: ResolveFlags,
) -> Result<OwnedFd> {
    match openat2(dir, path, flags, mode, within) {
        Err(Errno::NOSYS) => by_name::open_by_name(dir, path, flags, mode, within),
        opened => opened,
    }
}

/// Opens an absolute path none of whose parts is a symbolic link.
pub fn open_without_symlinks(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    if !path.is_absolute() {
        return Err(Errno::INVAL);
    }
    let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    open_beneath(root, path, flags, Mode::empty(), within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_link_on_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("a")).unwrap();
        std::fs::write(real.join("a/file"), "x").unwrap();
        std::os::unix::fs::symlink("a", real.join("link")).unwrap();
        let open = |path: &Path| open_without_symlinks(path, OFlags::PATH).map(drop);
        assert_eq!(open(&real.join("a/file")), Ok(()));
        assert_eq!(open(&real.join("link/file")), Err(Errno::LOOP));
        assert_eq!(open(&real.join("link")), Err(Errno::LOOP));
        assert_eq!(open(Path::new("a/file")), Err(Errno::INVAL));
    }
}
