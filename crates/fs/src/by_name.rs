//! Resolution for kernels that have no `openat2`, such as gVisor's: one name at a time, each resolved
//! by the kernel without following anything, each link read and followed here. No step is ever left to
//! a name that could have become something else: what was passed is held by its descriptor, and the
//! way up leads through those, so that a tree that is being moved cannot lead out of it.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, readlinkat};
use rustix::io::{Errno, Result};

/// The most symbolic links on one path, as in the kernel.
const MAX_SYMLINKS: usize = 40;

const STEP_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is kept to here. That no mount is crossed (`NO_XDEV`) is not: such kernels do not tell where one is.
const KNOWN_FLAGS: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::IN_ROOT)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS);

/// Opens what `openat2` would open with the same arguments: `BENEATH` refuses what leads out with
/// `EXDEV`, `IN_ROOT` takes the directory for `/`; one of them has to be there. `EAGAIN` where something was
/// swapped meanwhile, `ENOSYS` for what is not kept to here.
pub(crate) fn open_by_name(
    root: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    mode: Mode,
    within: ResolveFlags,
) -> Result<OwnedFd> {
    let rooted = within.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT);
    if !rooted || !KNOWN_FLAGS.contains(within) {
        return Err(Errno::NOSYS);
    }
    let mut walk = PathWalk { root, inside: Vec::new(), todo: VecDeque::new(), links: 0, within };
    walk.queue_path(path.to_bytes())?;
    walk.open_target(flags | OFlags::NOFOLLOW, mode, flags.contains(OFlags::NOFOLLOW))
}

struct PathWalk<'r> {
    root: BorrowedFd<'r>,
    /// The directories from the root to where we are.
    inside: Vec<OwnedFd>,
    /// The names still to come.
    todo: VecDeque<Vec<u8>>,
    links: usize,
    within: ResolveFlags,
}

impl PathWalk<'_> {
    fn current_dir(&self) -> BorrowedFd<'_> {
        self.inside.last().map_or(self.root, AsFd::as_fd)
    }

    /// Puts the names of a path in front of those still to come.
    fn queue_path(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.starts_with(b"/") {
            self.restart_at_root()?;
        }
        for name in path.rsplit(|byte| *byte == b'/') {
            self.todo.push_front(name.to_owned());
        }
        Ok(())
    }

    fn restart_at_root(&mut self) -> Result<()> {
        if self.within.contains(ResolveFlags::BENEATH) {
            return Err(Errno::XDEV);
        }
        self.inside.clear();
        Ok(())
    }

    fn ascend(&mut self) -> Result<()> {
        let left = self.inside.pop().is_none();
        if left && self.within.contains(ResolveFlags::BENEATH) {
            return Err(Errno::XDEV);
        }
        Ok(())
    }

    /// Walks to the last name and opens that.
    fn open_target(&mut self, flags: OFlags, mode: Mode, keep_link: bool) -> Result<OwnedFd> {
        while let Some(name) = self.todo.pop_front() {
            let last = self.todo.is_empty();
            match name.as_slice() {
                b"" | b"." => {}
                b".." => self.ascend()?,
                name if last && keep_link => return openat(self.current_dir(), name, flags, mode),
                name => match self.read_link(name)? {
                    Some(target) => self.queue_path(&target)?,
                    None if last => return self.open_last(name, flags, mode),
                    None => self.inside.push(openat(
                        self.current_dir(),
                        name,
                        STEP_FLAGS,
                        Mode::empty(),
                    )?),
                },
            }
        }
        // Named by its descriptor, or by a path that ends in a directory.
        openat(self.current_dir(), ".", flags, mode)
    }

    /// Where a name leads, if it is a symbolic link.
    fn read_link(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match readlinkat(self.current_dir(), name, Vec::new()) {
            Ok(_) if self.within.contains(ResolveFlags::NO_SYMLINKS) => Err(Errno::LOOP),
            Ok(_) if self.links == MAX_SYMLINKS => Err(Errno::LOOP),
            Ok(target) => {
                self.links += 1;
                Ok(Some(target.into_bytes()))
            }
            // Not a link, or nothing yet: opening it tells.
            Err(Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn open_last(&self, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let opened = match openat(self.current_dir(), name, flags, mode) {
            // It was no link a moment ago.
            Err(Errno::LOOP) => return Err(Errno::AGAIN),
            opened => opened?,
        };
        // Only to look at, a link is opened itself.
        let is_link = || -> Result<bool> {
            Ok(FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Symlink)
        };
        if flags.contains(OFlags::PATH) && is_link()? { Err(Errno::AGAIN) } else { Ok(opened) }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use rustix::fs::{CWD, fstat, openat2};

    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("root/a/b")).unwrap();
        fs::write(at("outside"), "secret").unwrap();
        fs::write(at("root/file"), "x").unwrap();
        fs::write(at("root/a/b/deep"), "x").unwrap();
        for (link, target) in [
            ("up", ".."),
            ("out", "../outside"),
            ("abs", "/file"),
            ("absdir", "/a/b"),
            ("a/back", "../file"),
            ("a/b/far", "../../../outside"),
            ("loop", "loop"),
            ("dangling", "nothing"),
            ("todir", "a/b"),
            ("tofile", "file"),
        ] {
            symlink(target, at("root").join(link)).unwrap();
        }
        dir
    }

    const TEST_PATHS: &[&str] = &[
        ".",
        "",
        "/",
        "a",
        "a/",
        "a/.",
        "a/..",
        "..",
        "a/../..",
        "a/b/../../file",
        "file",
        "file/",
        "file/x",
        "up",
        "up/outside",
        "out",
        "abs",
        "absdir/deep",
        "a/back",
        "a/b/far",
        "loop",
        "dangling",
        "dangling/x",
        "todir/deep",
        "todir/../back",
        "tofile",
        "tofile/",
        "todir/",
        "nothing",
        "nothing/x",
        "/file",
        "/a/b/deep",
        "/../file",
        "/up/file",
        "a//b///deep",
    ];

    #[test]
    fn every_path_leads_where_openat2_leads_and_is_refused_as_there() {
        let dir = tree();
        let root = openat(CWD, dir.path().join("root"), STEP_FLAGS, Mode::empty()).unwrap();
        let ways = [OFlags::PATH, OFlags::RDONLY, OFlags::PATH | OFlags::NOFOLLOW];
        let plain = [ResolveFlags::BENEATH, ResolveFlags::IN_ROOT];
        let withins = plain.into_iter().chain(plain.map(|how| how | ResolveFlags::NO_SYMLINKS));
        let told = |opened: Result<OwnedFd>| opened.and_then(|fd| Ok(fstat(&fd)?.st_ino));
        for path in TEST_PATHS {
            for (flags, within) in ways.iter().flat_map(|f| withins.clone().map(|w| (*f, w))) {
                let flags = flags | OFlags::CLOEXEC;
                let theirs = openat2(&root, *path, flags, Mode::empty(), within);
                let name = CString::new(*path).unwrap();
                let ours = open_by_name(root.as_fd(), &name, flags, Mode::empty(), within);
                assert_eq!(told(ours), told(theirs), "{path:?} {flags:?} {within:?}");
            }
        }
    }

    #[test]
    fn a_file_is_made_where_a_path_says_and_nowhere_else() {
        let dir = tree();
        let root = openat(CWD, dir.path().join("root"), STEP_FLAGS, Mode::empty()).unwrap();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let make = |path: &str| {
            let path = CString::new(path).unwrap();
            open_by_name(root.as_fd(), &path, flags, Mode::RUSR, ResolveFlags::BENEATH)
        };
        make("todir/new").unwrap();
        assert!(dir.path().join("root/a/b/new").exists());
        make("dangling").unwrap();
        assert!(dir.path().join("root/nothing").exists());
        assert_eq!(make("up/new").unwrap_err(), Errno::XDEV);
        assert_eq!(make("out").unwrap_err(), Errno::XDEV);
        assert_eq!(fs::metadata(dir.path().join("outside")).unwrap().size(), 6);
    }

    #[test]
    fn what_is_not_kept_to_here_is_refused() {
        let dir = tree();
        let root = openat(CWD, dir.path().join("root"), STEP_FLAGS, Mode::empty()).unwrap();
        for within in [ResolveFlags::BENEATH | ResolveFlags::NO_XDEV, ResolveFlags::NO_SYMLINKS] {
            let opened = open_by_name(root.as_fd(), c"file", OFlags::PATH, Mode::empty(), within);
            assert_eq!(opened.unwrap_err(), Errno::NOSYS);
        }
    }
}
