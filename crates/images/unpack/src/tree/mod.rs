//! The tree that a layer is applied to. Every step is resolved by the kernel beneath the root, through no
//! symbolic link.
//!
//! Whiteouts hide what lower layers have, not what this layer adds, in whichever order they come. Directories get
//! their modes and times when all else is done: one that its owner cannot enter would close the way to what is
//! in it, and one that is written to gets a new time.

mod directories;
mod whiteouts;
mod xattrs;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, fchmod, futimens,
    linkat, mkdirat, openat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;
use stockade_fs::{ClosedDirs, remove_entry};

use self::directories::DirectoryState;
use self::xattrs::{remove_user_xattrs, set_user_xattrs};
use crate::UnpackError;
use crate::archive::{Archive, ArchiveEntry, ArchiveEntryKind};
use crate::name::{EntryName, show};

/// Without `NOFOLLOW`, by which the kernel would say of a link only that it is no directory.
const LOOK_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
const LIST_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
const NEW_FILE_FLAGS: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Modes while the layer is applied.
const OPEN_DIR_MODE: Mode = Mode::RWXU;
const NEW_FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const COPY_BUFFER_BYTES: usize = 128 << 10;

/// A tree with its lower layers, while one more is applied.
pub(crate) struct Tree<'r> {
    root: BorrowedFd<'r>,
    /// Paths that this layer has, by their hash under a key that the layer cannot know.
    present: HashSet<u64>,
    /// Symbolic links of this layer, likewise.
    links: HashSet<u64>,
    keys: RandomState,
    /// Directories that were made or written to, with what they get at the end.
    directories: HashMap<Vec<u8>, DirectoryState>,
    kept_name_bytes: usize,
    /// How many more directories may be made that no layer lists.
    implied_left: u64,
    /// The directory of the last entry: most follow their siblings.
    last_parent: Option<(Vec<u8>, OwnedFd)>,
    buffer: Vec<u8>,
}

impl<'r> Tree<'r> {
    pub fn new(root: BorrowedFd<'r>, max_implied: u64) -> Self {
        Self {
            root,
            present: HashSet::new(),
            links: HashSet::new(),
            keys: RandomState::new(),
            directories: HashMap::new(),
            kept_name_bytes: 0,
            implied_left: max_implied,
            last_parent: None,
            buffer: vec![0; COPY_BUFFER_BYTES],
        }
    }

    /// Applies an entry that is no whiteout.
    pub fn add(
        &mut self,
        entry: &ArchiveEntry,
        archive: &mut Archive<'_>,
    ) -> Result<(), UnpackError> {
        let name = &entry.name;
        if name.is_root() {
            return self.add_root(entry);
        }
        let (parent_path, base) = name.split();
        self.open_parent(name, true)?;
        let source = match &entry.kind {
            ArchiveEntryKind::HardLink(target) => Some(self.find_link_target(name, target)?),
            ArchiveEntryKind::File
            | ArchiveEntryKind::Directory
            | ArchiveEntryKind::Symlink(_)
            | ArchiveEntryKind::Device => None,
        };
        let parent = self.parent(name, parent_path)?;
        let keeps = self.clear_place(&parent, entry, base)?;
        match (&entry.kind, source) {
            (ArchiveEntryKind::File, _) => self.write_file(&parent, entry, archive)?,
            (ArchiveEntryKind::Symlink(target), _) => add_symlink(&parent, entry, target)?,
            (ArchiveEntryKind::HardLink(target), Some(source)) => {
                add_hard_link(&source, target, &parent, name)?;
            }
            (ArchiveEntryKind::Directory, _) => self.add_directory(&parent, entry, keeps)?,
            (ArchiveEntryKind::HardLink(_), None) | (ArchiveEntryKind::Device, _) => {}
        }
        self.mark(name, matches!(entry.kind, ArchiveEntryKind::Symlink(_)));
        Ok(())
    }

    fn add_root(&mut self, entry: &ArchiveEntry) -> Result<(), UnpackError> {
        if entry.kind != ArchiveEntryKind::Directory {
            return Err(UnpackError::refused("the root is not a directory"));
        }
        self.open_directory(&entry.name, b"")?;
        replace_xattrs(self.root, b".", entry, true)?;
        self.keep_directory(b"", DirectoryState { mode: entry.mode, mtime: entry.mtime })
    }

    /// Removes what a lower layer has at this name, unless it is a directory that stays one: then true.
    fn clear_place(
        &self,
        parent: &OwnedFd,
        entry: &ArchiveEntry,
        base: &[u8],
    ) -> Result<bool, UnpackError> {
        let name = &entry.name;
        let there = match statat(parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(failed("looked at", name, errno)),
        };
        let is_directory = entry.kind == ArchiveEntryKind::Directory;
        let refused =
            |what: &str| Err(UnpackError::refused(format!("{} is {what}", show(name.bytes()))));
        match there {
            FileType::Directory if is_directory => return Ok(true),
            FileType::Directory if self.present.contains(&self.key(name.bytes())) => {
                return refused("a directory and something else in the same layer");
            }
            FileType::Symlink if is_directory && self.links.contains(&self.key(name.bytes())) => {
                return refused("a symbolic link and a directory in the same layer");
            }
            FileType::Directory
            | FileType::Symlink
            | FileType::RegularFile
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => {}
        }
        remove_entry(parent, base, ClosedDirs::Open)
            .map_err(|errno| failed("replaced", name, errno))?;
        Ok(false)
    }

    fn write_file(
        &mut self,
        parent: &OwnedFd,
        entry: &ArchiveEntry,
        archive: &mut Archive<'_>,
    ) -> Result<(), UnpackError> {
        let (name, base) = (&entry.name, entry.name.split().1);
        let file = openat(parent, base, NEW_FILE_FLAGS, NEW_FILE_MODE);
        let mut file = File::from(file.map_err(|errno| failed("made", name, errno))?);
        loop {
            let count = archive.read_contents(&mut self.buffer)?;
            if count == 0 {
                break;
            }
            let written = file.write_all(&self.buffer[..count]);
            written.map_err(|error| UnpackError::io("written", &show(name.bytes()), error))?;
        }
        set_user_xattrs(file.as_fd(), entry)?;
        // After writing, which would change the time and may need more rights than the mode gives.
        fchmod(&file, Mode::from(entry.mode))
            .map_err(|errno| failed("given its mode", name, errno))?;
        futimens(&file, &times(entry.mtime)).map_err(|errno| failed("given its time", name, errno))
    }

    fn add_directory(
        &mut self,
        parent: &OwnedFd,
        entry: &ArchiveEntry,
        is_there: bool,
    ) -> Result<(), UnpackError> {
        let (name, base) = (&entry.name, entry.name.split().1);
        if is_there {
            // Opened for its owner, if a lower layer has closed it.
            self.open_directory(name, name.bytes())?;
        } else {
            mkdirat(parent, base, OPEN_DIR_MODE).map_err(|errno| failed("made", name, errno))?;
        }
        replace_xattrs(parent.as_fd(), base, entry, is_there)?;
        self.keep_directory(name.bytes(), DirectoryState { mode: entry.mode, mtime: entry.mtime })
    }

    /// The directory of a hard link's target, which has to be a file of this tree.
    fn find_link_target(
        &mut self,
        name: &EntryName,
        target: &EntryName,
    ) -> Result<OwnedFd, UnpackError> {
        let refused = |reason: &str| {
            let (name, target) = (show(name.bytes()), show(target.bytes()));
            UnpackError::refused(format!("{name} is a hard link to {target}, {reason}"))
        };
        if name == target || target.is_root() {
            return Err(refused("which cannot be linked to"));
        }
        let behind = "which is not there, or is behind a symbolic link";
        // Opens what a lower layer has closed on the way.
        match self.open_parent(target, false) {
            Ok(true) => {}
            Ok(false) | Err(UnpackError::Refused(_)) => return Err(refused(behind)),
            Err(error) => return Err(error),
        }
        self.last_parent = None;
        let (directory, base) = target.split();
        let directory = self.parent(name, directory).map_err(|_| refused(behind))?;
        match statat(&directory, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if file_type(&stat) == FileType::RegularFile => Ok(directory),
            Ok(stat) if file_type(&stat) == FileType::Symlink => Err(refused("a symbolic link")),
            Ok(_) => Err(refused("which is no file")),
            Err(_) => Err(refused("which is not there")),
        }
    }

    fn key(&self, path: &[u8]) -> u64 {
        self.keys.hash_one(path)
    }

    fn mark(&mut self, name: &EntryName, is_link: bool) {
        let key = self.key(name.bytes());
        self.present.insert(key);
        match is_link {
            true => self.links.insert(key),
            false => self.links.remove(&key),
        };
    }
}

fn failed(step: &'static str, name: &EntryName, errno: Errno) -> UnpackError {
    UnpackError::io(step, &show(name.bytes()), errno)
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn add_hard_link(
    source: &OwnedFd,
    target: &EntryName,
    parent: &OwnedFd,
    name: &EntryName,
) -> Result<(), UnpackError> {
    match linkat(source, target.split().1, parent, name.split().1, AtFlags::empty()) {
        // It was in what the link replaces.
        Err(Errno::NOENT) => {
            let (name, target) = (show(name.bytes()), show(target.bytes()));
            Err(UnpackError::refused(format!(
                "{name} is a hard link to {target}, which it replaces"
            )))
        }
        linked => linked.map_err(|errno| failed("linked", name, errno)),
    }
}

fn add_symlink(parent: &OwnedFd, entry: &ArchiveEntry, target: &[u8]) -> Result<(), UnpackError> {
    let (name, base) = (&entry.name, entry.name.split().1);
    match symlinkat(target, parent, base) {
        Err(Errno::NAMETOOLONG) => {
            let shown = show(name.bytes());
            return Err(UnpackError::refused(format!(
                "{shown} is a symbolic link to too long a name"
            )));
        }
        made => made.map_err(|errno| failed("made", name, errno))?,
    }
    utimensat(parent, base, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| failed("given its time", name, errno))
}

/// Gives a directory the extended attributes of its entry, in place of those that a lower layer gave it.
fn replace_xattrs(
    parent: BorrowedFd<'_>,
    base: &[u8],
    entry: &ArchiveEntry,
    is_there: bool,
) -> Result<(), UnpackError> {
    if !is_there && entry.user_xattrs.is_empty() {
        return Ok(());
    }
    let opened = openat(parent, base, LIST_FLAGS | OFlags::CLOEXEC, Mode::empty());
    let opened = opened.map_err(|errno| failed("opened", &entry.name, errno))?;
    if is_there {
        remove_user_xattrs(opened.as_fd(), &entry.name)?;
    }
    set_user_xattrs(opened.as_fd(), entry)
}
