//! Takes what has changed in the other copy. Everything here is the other side's word: each path is
//! checked by its parts and resolved by the kernel, each size is bounded, and a kind that does not travel
//! is refused by name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, fchmod, futimens, linkat,
    mkdirat, openat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Entry, EntryType};

use super::pack::{GONE, path};
use super::stamp::{Kind, MODE, Stamp};
use super::{Tree, TreeError, beneath, shown};

/// The longest name or link.
const LONGEST: u64 = 4096;

/// Takes an archive; an empty one is no change. Answers the paths that had changed here too.
pub(super) fn place(tree: &mut Tree, input: impl Read) -> Result<BTreeSet<String>, TreeError> {
    let most = tree.most;
    let mut archive = tar::Archive::new(input.take(most));
    let mut placing =
        Placing { tree, name: None, link: None, modes: Vec::new(), conflicts: BTreeSet::new() };
    for entry in archive.entries()?.raw(true) {
        placing.entry(entry?)?;
    }
    placing.settle()?;
    let conflicts = placing.conflicts;
    // What follows the end of the archive is read too, so that the sender is not cut off.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink())?;
    match rest.limit() {
        0 => Err(TreeError::TooLarge(format!("the {most} bytes that may come back"))),
        _ => Ok(conflicts),
    }
}

struct Placing<'a> {
    tree: &'a mut Tree,
    /// The name of the next entry, if it was too long for its own header; and where it points to.
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// The permissions of directories, which are set when nothing more goes into them.
    modes: Vec<(PathBuf, u32)>,
    conflicts: BTreeSet<String>,
}

impl Placing<'_> {
    fn entry<R: Read>(&mut self, mut entry: Entry<'_, R>) -> Result<(), TreeError> {
        let kind = entry.header().entry_type();
        if kind == EntryType::GNULongName {
            self.name = Some(text(&mut entry)?);
            return Ok(());
        }
        if kind == EntryType::GNULongLink {
            self.link = Some(text(&mut entry)?);
            return Ok(());
        }
        let (name, link) = (self.name.take(), self.link.take());
        let name = name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let path = plain(path(name))?;
        if self.conflicts_at(&path)? {
            self.conflicts.insert(shown(&path));
            return Ok(());
        }
        if kind.as_byte() == GONE {
            self.remove(&path)
        } else if kind == EntryType::Directory {
            self.directory(&path, entry.header().mode()? & MODE)
        } else if kind == EntryType::Symlink {
            let target = link.or_else(|| Some(entry.header().link_name_bytes()?.into_owned()));
            self.link(&path, target.unwrap_or_default())
        } else if kind == EntryType::Regular {
            self.file(&path, entry)
        } else {
            Err(refused(&path, "is neither a file, a directory nor a link"))
        }
    }

    /// Whether what is there now is not what was there when the copies were last the same.
    fn conflicts_at(&self, path: &Path) -> Result<bool, TreeError> {
        let now = match beneath::parent(&self.tree.root, path) {
            Ok((dir, name)) => self.look(&dir, name).map_err(|error| TreeError::at(path, error))?,
            // Something above it is gone, or is no directory any more.
            Err(_) => return Ok(true),
        };
        Ok(match (now, self.tree.base.get(path.as_os_str())) {
            (Some(Some(now)), Some(base)) => {
                now != *base && (now.kind, base.kind) != (Kind::Directory, Kind::Directory)
            }
            (None, _) => false,
            (Some(Some(now)), None) => now.kind != Kind::Directory,
            (Some(None), _) => true,
        })
    }

    /// What is at a path: nothing, something that does not travel, or something that does.
    fn look(&self, dir: &OwnedFd, name: &OsStr) -> io::Result<Option<Option<Stamp>>> {
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stamp::of(&stat, self.tree.side))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Remembers how it looks now that the copies are the same here.
    fn note(&mut self, path: &Path, dir: &OwnedFd, name: &OsStr) -> Result<(), TreeError> {
        let found = self.look(dir, name).map_err(|error| TreeError::at(path, error))?.flatten();
        match found {
            Some(stamp) => self.tree.base.insert(path.into(), stamp),
            None => self.tree.base.remove(path.as_os_str()),
        };
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<(), TreeError> {
        let (dir, name) = beneath::parent(&self.tree.root, path)?;
        let was_dir =
            self.tree.base.get(path.as_os_str()).is_some_and(|was| was.kind == Kind::Directory);
        let how = if was_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(&dir, name, how) {
            // A directory in which there is something new stays.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => self.note(path, &dir, name),
            Err(errno) => Err(TreeError::at(path, errno)),
        }
    }

    fn directory(&mut self, path: &Path, mode: u32) -> Result<(), TreeError> {
        let (dir, name) = beneath::parent(&self.tree.root, path)?;
        match mkdirat(&dir, name, Mode::RWXU) {
            Ok(()) => self.own(&dir, name, path)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(TreeError::at(path, errno)),
        }
        self.modes.push((path.into(), mode));
        self.note(path, &dir, name)
    }

    fn link(&mut self, path: &Path, target: Vec<u8>) -> Result<(), TreeError> {
        let target = self::path(target);
        if target.is_empty() || target.len() as u64 > LONGEST {
            return Err(refused(path, "is a link to nowhere"));
        }
        let (dir, name) = beneath::parent(&self.tree.root, path)?;
        let draft = draft();
        symlinkat(&target, &dir, &draft).map_err(|errno| TreeError::at(path, errno))?;
        self.own(&dir, &draft, path)?;
        self.swap(&dir, &draft, name, path)
    }

    fn file<R: Read>(&mut self, path: &Path, mut entry: Entry<'_, R>) -> Result<(), TreeError> {
        let (dir, name) = beneath::parent(&self.tree.root, path)?;
        let fail = |error: io::Error| TreeError::at(path, error);
        let (file, named) = new_file(&dir).map_err(fail)?;
        let filled = fill(&file, &mut entry).map_err(fail);
        let draft = match (filled, named) {
            (Ok(()), Some(draft)) => draft,
            (Ok(()), None) => give_name(&file, &dir).map_err(fail)?,
            (Err(error), named) => {
                named.map(|draft| unlinkat(&dir, draft, AtFlags::empty()));
                return Err(error);
            }
        };
        self.own(&dir, &draft, path)?;
        self.swap(&dir, &draft, name, path)
    }

    /// Puts what is ready where it belongs, all at once.
    fn swap(
        &mut self,
        dir: &OwnedFd,
        draft: &OsStr,
        name: &OsStr,
        path: &Path,
    ) -> Result<(), TreeError> {
        if let Err(errno) = renameat(dir, draft, dir, name) {
            let _ = unlinkat(dir, draft, AtFlags::empty());
            return Err(TreeError::at(path, errno));
        }
        self.note(path, dir, name)
    }

    fn own(&self, dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), TreeError> {
        let Some((uid, gid)) = self.tree.owner else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let owned = chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        owned.map_err(|errno| TreeError::at(path, errno))
    }

    /// What could not be set before everything was in place. A directory stays one that its owner can
    /// look into.
    fn settle(&mut self) -> Result<(), TreeError> {
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            let fail = |error| TreeError::at(&path, error);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = beneath::open(&self.tree.root, &path, flags, Mode::empty()).map_err(fail)?;
            let set = fchmod(&dir, Mode::from_raw_mode(mode) | Mode::RWXU);
            set.map_err(|errno| fail(errno.into()))?;
            let (above, name) = beneath::parent(&self.tree.root, &path)?;
            self.note(&path, &above, name)?;
        }
        Ok(())
    }
}

fn refused(path: &Path, what: &'static str) -> TreeError {
    TreeError::Refused { path: shown(path), what }
}

/// A long name or link.
fn text<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TreeError> {
    if entry.size() > LONGEST {
        return Err(TreeError::TooLarge(format!("{LONGEST} bytes in a name")));
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    while text.last() == Some(&0) {
        text.pop();
    }
    Ok(text)
}

/// A path that is made of plain parts only.
fn plain(given: OsString) -> Result<PathBuf, TreeError> {
    let path = PathBuf::from(given);
    let parts = || path.components();
    let fits = parts().all(|part| matches!(part, Component::Normal(_)))
        && parts().next().is_some()
        && path.as_os_str().len() as u64 <= LONGEST;
    if fits { Ok(path) } else { Err(refused(&path, "leaves its root, or names nothing")) }
}

/// A name that nobody else uses.
fn draft() -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".stockade-{}-{number}", std::process::id()).into()
}

/// A file that is not there yet: without a name where the file system can, so that a process which is
/// killed leaves nothing half-written.
fn new_file(dir: &OwnedFd) -> io::Result<(File, Option<OsString>)> {
    let mode = Mode::RUSR | Mode::WUSR;
    match openat(dir, ".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok((file.into(), None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let draft = draft();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = openat(dir, &draft, flags | OFlags::CLOEXEC, mode)?;
            Ok((file.into(), Some(draft)))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn give_name(file: &File, dir: &OwnedFd) -> io::Result<OsString> {
    let draft = draft();
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, itself, dir, &draft, AtFlags::SYMLINK_FOLLOW)?;
    Ok(draft)
}

fn fill<R: Read>(mut file: &File, entry: &mut Entry<'_, R>) -> io::Result<()> {
    let size = entry.size();
    if io::copy(entry, &mut file)? != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let header = entry.header();
    fchmod(file, Mode::from_raw_mode(header.mode()? & MODE))?;
    let time = Timespec {
        tv_sec: i64::try_from(header.mtime()?).unwrap_or(0),
        tv_nsec: i64::try_from(header.uid()?).unwrap_or(0).clamp(0, 999_999_999),
    };
    futimens(file, &Timestamps { last_access: time, last_modification: time })?;
    Ok(())
}
