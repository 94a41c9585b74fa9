//! Removing a tree without ever following a link, and without running out of descriptors however
//! deep somebody made it.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::{Failure, Result, Roots};

/// Deeper than this, a directory is moved up to the top before it is emptied.
const DEPTH: usize = 64;
/// How often a directory is emptied that others keep filling.
const ROUNDS: usize = 1000;

/// Removes everything at a path. Succeeds when nothing is there.
pub fn remove(roots: &Roots, path: &str) -> Result<()> {
    let (parent, name) = match roots.parent(path) {
        Err(failure) if failure.is_missing() => return Ok(()),
        found => found?,
    };
    let name = CString::new(name).map_err(|_| Failure::new(path, Errno::INVAL))?;
    let mut removal = Removal { top: None, moved: 0 };
    match removal.entry(&parent, &name, 0) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Failure::new(path, errno)),
    }
}

struct Removal {
    /// The tree's own directory, where what lies too deep is moved.
    top: Option<OwnedFd>,
    moved: u64,
}

impl Removal {
    fn entry(&mut self, parent: &OwnedFd, name: &CStr, depth: usize) -> rustix::io::Result<()> {
        match unlinkat(parent, name, AtFlags::empty()) {
            // Linux says EISDIR; POSIX allows EPERM.
            Err(Errno::ISDIR | Errno::PERM) => self.tree(parent, name, depth),
            done => done,
        }
    }

    fn tree(&mut self, parent: &OwnedFd, name: &CStr, depth: usize) -> rustix::io::Result<()> {
        if depth >= DEPTH
            && let Some(top) = &self.top
        {
            self.moved += 1;
            return renameat(parent, name, top, format!(".removed-{}", self.moved));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(parent, name, flags, Mode::empty())?;
        if self.top.is_none() {
            self.top = Some(rustix::io::fcntl_dupfd_cloexec(&dir, 3)?);
        }
        for _ in 0..ROUNDS {
            self.empty(&dir, depth)?;
            match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                // Others add to it, or what lay too deep was moved into it.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                done => return done,
            }
        }
        Err(Errno::NOTEMPTY)
    }

    fn empty(&mut self, dir: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
        for item in Dir::read_from(dir)? {
            let item = item?;
            if matches!(item.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            match self.entry(dir, item.file_name(), depth + 1) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
