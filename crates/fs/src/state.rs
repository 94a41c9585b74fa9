//! The directory that holds what must outlive a process: the journal and the leases.
//!
//! It belongs to one user alone. Nothing here follows a symbolic link in a last component, uses a directory
//! of another user, or leaves one open to others.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Result};

const PRIVATE_DIR_MODE: u32 = 0o700;

/// The state directory, opened and found private.
#[derive(Debug)]
pub struct StateDir(Directory);

/// A private directory, held open: everything in it is reached through the handle.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum StateFault {
    #[error("`{0}` is a symbolic link")]
    Link(PathBuf),
    #[error("`{0}` is not a directory")]
    NotADirectory(PathBuf),
    #[error("`{path}` belongs to user {owner}")]
    Foreign { path: PathBuf, owner: u32 },
    #[error("`{0}` is open to other users and cannot be closed to them")]
    Exposed(PathBuf),
    #[error("`{path}` cannot be {step}")]
    Io { step: &'static str, path: PathBuf, source: io::Error },
}

impl StateDir {
    /// Opens the directory, creating it and its parents for this user alone.
    ///
    /// - One that is a symbolic link or belongs to another user is refused.
    /// - One that others can enter is closed to them, or refused where that does not work.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = std::path::absolute(path.as_ref())
            .map_err(|source| StateFault::io("found", path.as_ref(), source))?;
        // A trailing slash would make the kernel follow a symbolic link after all.
        let path: PathBuf = path.components().collect();
        let made = open_or_make(CWD, &path, &path, |path| {
            DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(path)
        })?;
        Ok(Self(made))
    }

    /// Where the state lives unless told otherwise: `$XDG_STATE_HOME/stockade`, or
    /// `$HOME/.local/state/stockade`. Values that are not absolute paths do not count.
    pub fn default_location(lookup: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
        let absolute = |name| lookup(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
            .map(|base| base.join("stockade"))
            .ok_or_else(|| {
                let message = "neither XDG_STATE_HOME nor HOME holds an absolute path";
                Error::new(ErrorCode::StateUnavailable, "find the state directory", message)
                    .remedy("set XDG_STATE_HOME or name a state directory")
            })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// A directory in it, made if need be, as private as itself.
    pub fn subdirectory(&self, name: &'static str) -> Result<Directory> {
        let path = self.0.path_of(name);
        let make =
            |_: &Path| Ok(rustix::fs::mkdirat(&self.0.fd, name, Mode::from(PRIVATE_DIR_MODE))?);
        Ok(open_or_make(self.0.fd.as_fd(), Path::new(name), &path, make)?)
    }
}

fn open_or_make(
    at: BorrowedFd<'_>,
    name: &Path,
    path: &Path,
    make: impl Fn(&Path) -> io::Result<()>,
) -> Result<Directory, StateFault> {
    if let Some(there) = open_private(at, name, path)? {
        return Ok(there);
    }
    match make(path) {
        // Another engine may start at the same instant.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(StateFault::io("created", path, error));
        }
        Ok(()) | Err(_) => {}
    }
    let gone = || StateFault::io("opened", path, Errno::NOENT.into());
    open_private(at, name, path)?.ok_or_else(gone)
}

fn open_private(
    at: BorrowedFd<'_>,
    name: &Path,
    path: &Path,
) -> Result<Option<Directory>, StateFault> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    match rustix::fs::openat(at, name, flags, Mode::empty()) {
        Ok(fd) => {
            let directory = Directory { fd, path: path.to_owned() };
            directory.make_private()?;
            Ok(Some(directory))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(not_a_directory(at, name, path)),
        Err(errno) => Err(StateFault::io("opened", path, errno.into())),
    }
}

fn not_a_directory(at: BorrowedFd<'_>, name: &Path, path: &Path) -> StateFault {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
            StateFault::Link(path.to_owned())
        }
        Ok(_) | Err(_) => StateFault::NotADirectory(path.to_owned()),
    }
}

fn is_open_to_others(found: &rustix::fs::Stat) -> bool {
    found.st_mode & 0o077 != 0
}

/// What is wrong with a file of private state that was opened: another user's, or no regular file.
pub fn find_foreign_file(file: &File) -> io::Result<Option<String>> {
    let found = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Ok(Some("it is no regular file".to_owned()));
    }
    let owner = found.st_uid;
    let is_foreign = owner != rustix::process::geteuid().as_raw();
    Ok(is_foreign.then(|| format!("it belongs to user {owner}")))
}

impl Directory {
    fn make_private(&self) -> Result<(), StateFault> {
        let found = self.stat()?;
        let owner = found.st_uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(StateFault::Foreign { path: self.path.clone(), owner });
        }
        if is_open_to_others(&found) {
            // Some file systems accept the change and ignore it, so only the second look counts.
            let _ = rustix::fs::fchmod(&self.fd, Mode::from(PRIVATE_DIR_MODE));
            if is_open_to_others(&self.stat()?) {
                return Err(StateFault::Exposed(self.path.clone()));
            }
        }
        Ok(())
    }

    fn stat(&self) -> Result<rustix::fs::Stat, StateFault> {
        rustix::fs::fstat(&self.fd)
            .map_err(|errno| StateFault::io("read", &self.path, errno.into()))
    }

    /// An existing directory, as it is: for reading a copy that another user may have made.
    pub fn existing(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in it.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file in it, never through a symbolic link, closed to others if it is new.
    pub fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, name, flags, Mode::from(0o600))?.into())
    }

    /// Whether there is something of that name, a dangling link included.
    pub fn exists(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives a file a second name; fails where that name is taken.
    pub fn link(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?)
    }

    /// Gives a file another name, replacing what has it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file. One that is not there is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Everything in it.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    /// Makes renames and new files survive a power loss.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl StateFault {
    fn io(step: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { step, path: path.to_owned(), source }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Link(_) => "name the directory the link points to",
            Self::NotADirectory(_) => "move the file away or name another state directory",
            Self::Foreign { .. } => {
                "run as that user, or set STOCKADE_STATE_DIR to a directory of your own"
            }
            Self::Exposed(_) => "name a state directory on a file system that keeps permissions",
            Self::Io { .. } => {
                "make it possible, or set STOCKADE_STATE_DIR to a directory of your own"
            }
        }
    }
}

impl From<StateFault> for Error {
    fn from(fault: StateFault) -> Self {
        let error =
            Error::new(ErrorCode::StateUnavailable, "open the state directory", fault.to_string())
                .remedy(fault.remedy());
        match fault {
            StateFault::Io { source, .. } => error.source(source),
            StateFault::Link(_)
            | StateFault::NotADirectory(_)
            | StateFault::Foreign { .. }
            | StateFault::Exposed(_) => error,
        }
    }
}
