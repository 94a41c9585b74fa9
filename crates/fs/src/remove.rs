//! Removes trees that a guest has filled: of any depth, with any modes and names, by descriptors alone. Never
//! follows a symbolic link, never empties what is mounted in the tree, and holds few descriptors. Others may
//! change the tree meanwhile, or remove it too.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::mode::chmod_descriptor;
use crate::mount::is_mount_point;

/// The depth from which a directory is moved up to the top before it is emptied. Not less: a layer of an
/// overlay that is beneath others may refuse to have its directories moved.
const MAX_OPEN_DEPTH: usize = 64;
/// How often a directory is emptied that others keep filling.
const MAX_EMPTY_ROUNDS: usize = 1000;

const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What becomes of directories that are closed to their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedDirs {
    /// They are opened and emptied.
    Open,
    /// They are refused with `EACCES`, as by any program of the same user.
    Refuse,
}

/// Removes a directory with everything in it. Succeeds when nothing is there; what is no directory is refused.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match openat(CWD, path, DIRECTORY_FLAGS.union(OFlags::PATH), Mode::empty()) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
        Ok(_) => Ok(remove_entry(CWD, path, ClosedDirs::Open)?),
    }
}

/// Removes what has this name in a directory, with everything in it. Succeeds when nothing is there. What is
/// mounted in it is refused with `EBUSY`.
pub fn remove_entry(dir: impl AsFd, name: impl Arg, closed: ClosedDirs) -> Result<()> {
    name.into_with_c_str(|name| {
        Removal { top: None, moved: 0, closed }.remove(dir.as_fd(), name, 0)
    })
}

struct Removal {
    /// The tree's own directory, where what lies too deep is moved.
    top: Option<OwnedFd>,
    moved: u64,
    closed: ClosedDirs,
}

/// How far an attempt got.
#[derive(PartialEq, Eq)]
enum Attempt {
    Done,
    /// It was emptied, or has become something else.
    Again,
}

impl Removal {
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<()> {
        let mut rounds = 0;
        while rounds < MAX_EMPTY_ROUNDS {
            let moved = self.moved;
            if self.attempt(parent, name, depth)? == Attempt::Done {
                return Ok(());
            }
            // What lay too deep is in the top now: each such round brings the end nearer.
            rounds += usize::from(moved == self.moved);
        }
        Err(Errno::NOTEMPTY)
    }

    fn attempt(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<Attempt> {
        let refused = match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(Attempt::Done),
            // Linux says EISDIR; POSIX allows EPERM.
            Err(refused @ (Errno::ISDIR | Errno::PERM)) => refused,
            Err(errno) => return Err(errno),
        };
        // Most are empty: places to mount on.
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(Attempt::Done),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::NOTDIR) if refused == Errno::ISDIR => return Ok(Attempt::Again),
            Err(Errno::NOTDIR) => return Err(refused),
            Err(errno) => return Err(errno),
        }
        if depth >= MAX_OPEN_DEPTH {
            return self.move_to_top(parent, name).map(|()| Attempt::Done);
        }
        match self.open(parent, name) {
            Ok(dir) => self.empty(dir, depth)?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Attempt::Again)
    }

    fn empty(&mut self, dir: OwnedFd, depth: usize) -> Result<()> {
        if depth == 0 {
            self.top = Some(rustix::io::fcntl_dupfd_cloexec(&dir, 3)?);
        }
        let mut dir = Dir::new(dir)?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                self.remove(dir.fd()?, entry.file_name(), depth + 1)?;
            }
        }
        Ok(())
    }

    fn move_to_top(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        // A directory can be moved only by a user that may write to it.
        match self.open(parent, name) {
            Ok(_) => {}
            // Gone or another thing by now, which the next round tells.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let Some(top) = &self.top else { return Err(Errno::INVAL) };
        loop {
            self.moved += 1;
            match renameat(parent, name, top, format!(".removed-{}", self.moved)) {
                // The guest has guessed the name: the next one will do.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                // Removed by another process meanwhile.
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Opens a directory of the tree, so that what is in it can be removed.
    fn open(&self, parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
        let dir = match openat(parent, name, DIRECTORY_FLAGS, Mode::empty()) {
            Err(Errno::ACCESS) if self.closed == ClosedDirs::Open => {
                let seen =
                    openat(parent, name, DIRECTORY_FLAGS.union(OFlags::PATH), Mode::empty())?;
                refuse_mounted(&seen)?;
                chmod_descriptor(&seen, Mode::RWXU)?;
                openat(parent, name, DIRECTORY_FLAGS, Mode::empty())?
            }
            opened => opened?,
        };
        refuse_mounted(&dir)?;
        if self.closed == ClosedDirs::Open {
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&dir)?.st_mode);
            if !mode.contains(Mode::RWXU) {
                rustix::fs::fchmod(&dir, Mode::RWXU)?;
            }
        }
        Ok(dir)
    }
}

fn refuse_mounted(dir: &OwnedFd) -> Result<()> {
    if is_mount_point(dir, c"") { Err(Errno::BUSY) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn open_directory(at: impl AsFd, name: impl Arg) -> OwnedFd {
        openat(at, name, DIRECTORY_FLAGS, Mode::empty()).unwrap()
    }

    /// Makes directories in one another, deeper than any path can name, and hands back the last.
    fn nest(top: &Path, levels: usize) -> OwnedFd {
        let mut at = open_directory(CWD, top);
        for _ in 0..levels {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_directory(&at, "d");
        }
        at
    }

    #[test]
    fn a_tree_of_any_depth_and_mode_is_removed_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (top, kept) = (home.path().join("top"), home.path().join("kept"));
        std::fs::create_dir(&top).unwrap();
        std::fs::write(&kept, "kept").unwrap();
        symlink(home.path(), top.join("link")).unwrap();
        std::fs::write(top.join(".removed-1"), "in the way").unwrap();
        nest(&top, 3000);
        let locked = top.join("locked");
        std::fs::create_dir(&locked).unwrap();
        std::fs::write(locked.join("file"), "x").unwrap();
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o0)).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
        remove_tree(&top).unwrap();
    }

    #[test]
    fn a_deep_tree_with_closed_directories_and_links_is_removed_alone() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("kept"), "kept").unwrap();
        let mut dir = place.path().join("tree");
        std::fs::create_dir(&dir).unwrap();
        symlink(place.path(), dir.join("out")).unwrap();
        std::fs::create_dir(dir.join("closed")).unwrap();
        std::fs::write(dir.join("closed/x"), "x").unwrap();
        std::fs::set_permissions(dir.join("closed"), PermissionsExt::from_mode(0o0)).unwrap();
        for _ in 0..700 {
            dir.push("d");
            std::fs::create_dir(&dir).unwrap();
        }
        let fd = open_directory(CWD, place.path());
        remove_entry(&fd, "tree", ClosedDirs::Open).unwrap();
        remove_entry(&fd, "tree", ClosedDirs::Open).unwrap();
        let left = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["kept"]);
    }

    #[test]
    fn a_closed_directory_that_lies_too_deep_is_opened_and_moved() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let last = nest(&top, 2 * MAX_OPEN_DEPTH);
        for name in ["a", "b"] {
            rustix::fs::mkdirat(&last, name, Mode::RWXU).unwrap();
            rustix::fs::mkdirat(open_directory(&last, name), "inner", Mode::RWXU).unwrap();
            rustix::fs::chmodat(&last, name, Mode::empty(), AtFlags::empty()).unwrap();
        }
        rustix::fs::fchmod(&last, Mode::empty()).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn what_is_no_directory_is_removed_as_an_entry_and_refused_as_a_tree() {
        let home = tempfile::tempdir().unwrap();
        let (file, link) = (home.path().join("file"), home.path().join("link"));
        std::fs::write(&file, "x").unwrap();
        symlink(home.path(), &link).unwrap();
        assert!(remove_tree(&file).is_err() && remove_tree(&link).is_err());
        let dir = open_directory(CWD, home.path());
        remove_entry(&dir, "link", ClosedDirs::Refuse).unwrap();
        remove_entry(&dir, "file", ClosedDirs::Refuse).unwrap();
        assert!(std::fs::read_dir(home.path()).unwrap().next().is_none());
    }

    fn fill_tree(top: &Path) {
        for place in ["a/b/c", "a/d", "e/f/g/h", "i"] {
            let place = top.join(place);
            std::fs::create_dir_all(&place).unwrap();
            (0..20).for_each(|n| std::fs::write(place.join(n.to_string()), "x").unwrap());
        }
        nest(&top.join("i"), 2 * MAX_OPEN_DEPTH);
    }

    #[test]
    fn two_who_remove_the_same_tree_both_succeed() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        for _ in 0..50 {
            fill_tree(&top);
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let both = [(); 2].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        remove_tree(&top)
                    })
                });
                for one in both {
                    one.join().unwrap().unwrap();
                }
            });
            assert!(!top.exists());
        }
    }
}
