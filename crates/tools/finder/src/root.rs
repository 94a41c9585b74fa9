//! Where the search starts, resolved by the kernel (C-21): beneath the workspace for relative paths.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat};
use rustix::io::Errno;
use stockade_finder::FinderFailure;
use stockade_fs::open_beneath;

use crate::Refused;

/// Where the search starts.
pub struct SearchRoot {
    /// What relative paths resolve beneath; the root of everything for absolute ones.
    pub base: OwnedFd,
    pub start: SearchStart,
    /// The directories from the base to the start, to find their ignore files.
    pub above: Vec<String>,
}

/// A directory to walk or a single file.
pub enum SearchStart {
    Directory(OwnedFd),
    File(File),
}

const OPEN_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

impl SearchRoot {
    pub fn open(workspace: &str, path: &str) -> Result<Self, Refused> {
        let refuse = |errno| open_error(path, errno);
        let absolute = path.starts_with('/');
        let (base, within) = if absolute {
            ("/", ResolveFlags::IN_ROOT)
        } else {
            (workspace, ResolveFlags::BENEATH)
        };
        let dir = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, base, dir, Mode::empty()).map_err(refuse)?;
        // Looked at before it is opened: opening a device can have effects of its own.
        let seen =
            open_beneath(&base, path, OFlags::PATH, Mode::empty(), within).map_err(refuse)?;
        classify_start(&seen, path)?;
        let opened =
            open_beneath(&base, path, OPEN_FLAGS, Mode::empty(), within).map_err(refuse)?;
        let start = match classify_start(&opened, path)? {
            StartKind::Directory => SearchStart::Directory(opened),
            StartKind::File => SearchStart::File(opened.into()),
        };
        let above = if absolute { Vec::new() } else { split_path(path) };
        Ok(Self { base, start, above })
    }
}

enum StartKind {
    Directory,
    File,
}

fn classify_start(opened: &OwnedFd, path: &str) -> Result<StartKind, Refused> {
    let stat = fstat(opened).map_err(|errno| open_error(path, errno))?;
    let unusable = |what| Err(Refused(FinderFailure::Unusable, format!("`{path}` is {what}")));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(StartKind::Directory),
        FileType::RegularFile => Ok(StartKind::File),
        FileType::Fifo => unusable("a fifo"),
        FileType::Socket => unusable("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => unusable("a device"),
        FileType::Symlink | FileType::Unknown => unusable("neither a file nor a directory"),
    }
}

fn open_error(path: &str, errno: Errno) -> Refused {
    let (failure, why) = match errno {
        Errno::NOENT => (FinderFailure::NotFound, "is not there".to_owned()),
        Errno::XDEV => (FinderFailure::Escapes, "leaves its root".to_owned()),
        errno => (FinderFailure::Unusable, std::io::Error::from(errno).to_string()),
    };
    Refused(failure, format!("`{path}` {why}"))
}

/// The plain parts of a relative path; nothing where one leads upwards.
fn split_path(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let parts: Vec<String> = parts.map(str::to_owned).collect();
    if parts.iter().any(|part| part == "..") { Vec::new() } else { parts }
}
