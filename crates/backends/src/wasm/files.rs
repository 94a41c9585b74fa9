//! A sandbox's files from outside. Every path is resolved by the kernel beneath its directory (C-21), and the
//! result is used by descriptor.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fchmod, fstat, ftruncate, mkdirat,
    renameat, statat,
};
use rustix::io::{Errno, pread};
use stockade_core::{Entry, EntryKind, Error, ErrorCode, Files, Result, SandboxPath};
use stockade_fs::{ClosedDirs, open_beneath, remove_entry};

use super::NAME;
use super::tree::{GuestPlace, GuestTree};

/// Most entries of a directory that are listed.
const MAX_LISTED_ENTRIES: usize = 100_000;
/// Most bytes of one read.
const MAX_READ_BYTES: usize = 8 << 20;

/// Mode of a new file.
const NEW_FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// Mode of a new directory.
const NEW_DIR_MODE: Mode = Mode::from_raw_mode(0o755);

/// The files of a tree.
pub(super) struct TreeFiles(pub Arc<GuestTree>);

/// A path that was found to lie in one of the directories.
struct LocatedFile<'t> {
    operation: &'static str,
    path: &'t SandboxPath,
    place: &'t GuestPlace,
    rest: String,
}

impl LocatedFile<'_> {
    fn to_error(&self, errno: Errno) -> Error {
        errno_error(self.operation, self.path, errno)
    }

    fn open_rest(&self, rest: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let within = ResolveFlags::BENEATH;
        open_beneath(&self.place.dir, rest, flags, mode, within)
            .map_err(|errno| self.to_error(errno))
    }

    fn open_path(&self, flags: OFlags) -> Result<OwnedFd> {
        self.open_rest(&self.rest, flags, Mode::empty())
    }

    /// The directory that its last part is in, and that part.
    fn open_parent(&self) -> Result<(OwnedFd, &str)> {
        let trimmed = self.rest.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or((".", trimmed));
        if matches!(name, "" | "." | "..") {
            return Err(invalid_path_error(
                self.operation,
                self.path,
                "names no entry of a directory",
            ));
        }
        Ok((self.open_rest(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// Fails where the directory is only to be looked at (C-20).
    fn check_writable(&self) -> Result<()> {
        if self.place.read_only { Err(self.to_error(Errno::ROFS)) } else { Ok(()) }
    }

    /// A regular file. Looked at before, because opening a device can have effects of its own, and
    /// after, because it may have been swapped in between.
    fn open_regular(&self, flags: OFlags) -> Result<OwnedFd> {
        let new = match self.open_path(OFlags::PATH) {
            Ok(seen) => self.demand_regular(&seen).map(|()| false)?,
            Err(error) if !flags.contains(OFlags::CREATE) => return Err(error),
            Err(_) => true,
        };
        let mode = if flags.contains(OFlags::CREATE) { NEW_FILE_MODE } else { Mode::empty() };
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_rest(&self.rest, flags, mode)?;
        self.demand_regular(&file)?;
        if new {
            // Independent of the umask.
            fchmod(&file, NEW_FILE_MODE).map_err(|errno| self.to_error(errno))?;
        }
        Ok(file)
    }

    fn demand_regular(&self, file: &OwnedFd) -> Result<()> {
        let found = fstat(file).map_err(|errno| self.to_error(errno))?;
        match entry_kind(&found) {
            EntryKind::File => Ok(()),
            EntryKind::Directory | EntryKind::Symlink | EntryKind::Other => {
                Err(invalid_path_error(self.operation, self.path, "is not a regular file"))
            }
        }
    }
}

fn entry_kind(found: &Stat) -> EntryKind {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => EntryKind::Other,
    }
}

fn to_entry(found: &Stat, name: &str) -> Entry {
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Entry { name: name.to_owned(), kind: entry_kind(found), size, mode: found.st_mode & 0o7777 }
}

fn invalid_path_error(operation: &'static str, path: &SandboxPath, what: &str) -> Error {
    Error::new(ErrorCode::Invalid, operation, format!("`{path}` {what}")).backend(NAME)
}

fn errno_error(operation: &'static str, path: &SandboxPath, errno: Errno) -> Error {
    let (code, what) = match errno {
        Errno::NOENT => (ErrorCode::NotFound, "is not there"),
        // From `openat2` it says that the path left its root.
        Errno::XDEV => (ErrorCode::PathEscapes, "leaves its root"),
        Errno::ROFS => (ErrorCode::Denied, "is read-only"),
        Errno::ACCESS | Errno::PERM => (ErrorCode::Denied, "is not allowed"),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => (ErrorCode::TooLarge, "does not fit"),
        Errno::NOTDIR => (ErrorCode::Invalid, "is not a directory"),
        Errno::ISDIR => (ErrorCode::Invalid, "is a directory"),
        Errno::EXIST | Errno::NOTEMPTY | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => {
            (ErrorCode::Invalid, "is not suitable")
        }
        _ => (ErrorCode::System, "could not be used"),
    };
    let error = Error::new(code, operation, format!("`{path}` {what}")).backend(NAME);
    if code == ErrorCode::System { error.source(errno) } else { error }
}

impl TreeFiles {
    fn locate_file<'t>(
        &'t self,
        operation: &'static str,
        path: &'t SandboxPath,
    ) -> Result<LocatedFile<'t>> {
        let (place, rest) =
            self.0.locate_path(path).ok_or_else(|| errno_error(operation, path, Errno::NOENT))?;
        Ok(LocatedFile { operation, path, place, rest })
    }

    fn make_dirs(&self, path: &SandboxPath) -> Result<()> {
        let found = self.locate_file("make a directory", path)?;
        let directory = OFlags::PATH | OFlags::DIRECTORY;
        match found.open_path(directory) {
            Ok(_) => return Ok(()),
            Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
            Err(_) => found.check_writable()?,
        }
        let ends = found.rest.char_indices().filter(|(at, c)| *c == '/' && *at > 0);
        let ends = ends.map(|(at, _)| at).chain(std::iter::once(found.rest.len()));
        for end in ends {
            let part = LocatedFile { rest: found.rest[..end].to_owned(), ..found };
            let Ok((parent, name)) = part.open_parent() else { continue };
            match mkdirat(&parent, name, NEW_DIR_MODE) {
                Ok(()) => open_to_others(&parent, name).map_err(|errno| found.to_error(errno))?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(found.to_error(errno)),
            }
        }
        // What was there may be something else, and what was made may have been swapped.
        found.open_path(directory).map(drop)
    }

    fn list_entries(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let found = self.locate_file("list", path)?;
        let dir = found.open_path(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for item in Dir::read_from(&dir).map_err(|errno| found.to_error(errno))? {
            let item = item.map_err(|errno| found.to_error(errno))?;
            if matches!(item.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            if entries.len() == MAX_LISTED_ENTRIES {
                let message = format!("`{path}` has more than {MAX_LISTED_ENTRIES} entries");
                return Err(Error::new(ErrorCode::TooLarge, "list", message).backend(NAME));
            }
            // An entry that vanishes meanwhile is left out.
            if let Ok(stat) = statat(&dir, item.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                entries.push(to_entry(&stat, &item.file_name().to_string_lossy()));
            }
        }
        Ok(entries)
    }

    fn remove_all(&self, path: &SandboxPath) -> Result<()> {
        let found = self.locate_file("remove", path)?;
        let (parent, name) = match found.open_parent() {
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(()),
            parent => parent?,
        };
        found.check_writable()?;
        remove_entry(&parent, name, ClosedDirs::Open).map_err(|errno| found.to_error(errno))
    }
}

/// Gives a new directory its mode, independent of the umask. Follows no link that took its place.
fn open_to_others(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = open_beneath(parent, name, flags, Mode::empty(), ResolveFlags::BENEATH)?;
    fchmod(made, NEW_DIR_MODE)
}

#[async_trait]
impl Files for TreeFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        let found = self.locate_file("stat", path)?;
        let seen = found.open_path(OFlags::PATH | OFlags::NOFOLLOW)?;
        let name = path.as_str().trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        Ok(to_entry(&fstat(seen).map_err(|errno| found.to_error(errno))?, name))
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.list_entries(path)
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        let found = self.locate_file("read", path)?;
        let file = found.open_regular(OFlags::RDONLY)?;
        let mut data = vec![0; (most as usize).min(MAX_READ_BYTES)];
        let mut filled = 0;
        while filled < data.len() {
            match pread(&file, &mut data[filled..], offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(found.to_error(errno)),
            }
        }
        data.truncate(filled);
        Ok(data.into())
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        let found = self.locate_file("write", path)?;
        found.check_writable()?;
        let place = if append { OFlags::APPEND } else { OFlags::empty() };
        let file = found.open_regular(OFlags::WRONLY | OFlags::CREATE | place)?;
        if !append {
            ftruncate(&file, 0).map_err(|errno| found.to_error(errno))?;
        }
        let mut left = &data[..];
        while !left.is_empty() {
            match rustix::io::write(&file, left) {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(found.to_error(errno)),
            }
        }
        Ok(())
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        let found = self.locate_file("set the mode", path)?;
        found.check_writable()?;
        let file = found.open_regular(OFlags::RDONLY)?;
        fchmod(&file, Mode::from_raw_mode(mode & 0o777)).map_err(|errno| found.to_error(errno))
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.make_dirs(path)
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let (from, to) = (self.locate_file("rename", from)?, self.locate_file("rename", to)?);
        from.check_writable()?;
        to.check_writable()?;
        let ((from_dir, from_name), (to_dir, to_name)) = (from.open_parent()?, to.open_parent()?);
        renameat(&from_dir, from_name, &to_dir, to_name).map_err(|errno| match errno {
            // Here it says that two file systems are involved, not that a path escapes.
            Errno::XDEV => invalid_path_error("rename", from.path, "lies on another file system"),
            errno => from.to_error(errno),
        })
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.remove_all(path)
    }
}
