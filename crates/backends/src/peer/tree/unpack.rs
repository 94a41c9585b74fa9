//! Takes what has changed in the other copy. Everything here is the peer's word: each path is
//! checked by its parts and resolved by the kernel, each size is bounded, and a kind that does not travel
//! is refused by name.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fstat, mkdirat, renameat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Entry, EntryType};

use super::holes::SPARSE_ENTRY_TYPE;
use super::pack::{REMOVED_ENTRY_TYPE, bytes_to_path};
use super::stamp::{FileStamp, PERMISSION_BITS, StampKind};
use super::{Conflict, Count, MAX_CONFLICTS, Tree, TreeError, beneath, draft, escape_path};

/// Who but the owner may write.
const OTHER_WRITERS: u32 = 0o022;
const GROUP_WRITES: u32 = 0o020;
/// Longest path or link target.
const MAX_PATH_BYTES: u64 = 4096;

/// Takes an archive; an empty one is no change. Answers what had changed here too.
pub(super) fn place_archive(tree: &mut Tree, input: impl Read) -> Result<Vec<Conflict>, TreeError> {
    let most = tree.max_archive_bytes();
    let mut archive = tar::Archive::new(input.take(most));
    let mut placing = Placing::new(tree);
    for entry in archive.entries()?.raw(true) {
        placing.place_entry(entry?)?;
    }
    placing.remove_others()?;
    placing.set_directory_modes()?;
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
    conflicts: Vec<Conflict>,
    /// The number of the next entry, and how much may be remembered of them.
    next: u32,
    gone: Count,
    fresh: Count,
    room: GrowthRoom,
    /// What was named, where that is all there is to be.
    all: Option<BTreeSet<OsString>>,
}

/// How much larger the tree may still get.
struct GrowthRoom {
    most: u64,
    left: u64,
}

impl GrowthRoom {
    fn reserve_bytes(&mut self, bytes: u64) -> Result<(), TreeError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            TreeError::TooLarge(format!("the {} bytes that it may grow by at once", self.most))
        })?;
        Ok(())
    }

    /// What goes away, or is replaced.
    fn release_file(&mut self, was: &Stat) {
        let elsewhere =
            FileStamp::of(was, super::Side::Near).is_none_or(|was| was.kind != StampKind::File);
        // Another name for it keeps what it takes.
        if !elsewhere && was.st_nlink == 1 {
            self.left = self.left.saturating_add(allocated_bytes(was));
        }
    }
}

/// The space that something takes.
fn allocated_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

impl<'a> Placing<'a> {
    fn new(tree: &'a mut Tree) -> Self {
        let room = GrowthRoom { most: tree.growth, left: tree.growth };
        let all = std::mem::take(&mut tree.awaits_all).then(BTreeSet::new);
        Self {
            tree,
            name: None,
            link: None,
            modes: Vec::new(),
            conflicts: Vec::new(),
            next: 0,
            gone: Count::default(),
            fresh: Count::default(),
            room,
            all,
        }
    }

    /// One entry after the other: an archive that names the same thing twice is not one of ours, but
    /// does no more harm than two archives.
    fn place_entry<R: Read>(&mut self, mut entry: Entry<'_, R>) -> Result<(), TreeError> {
        let kind = entry.header().entry_type();
        if kind == EntryType::GNULongName {
            self.name = Some(read_long_name(&mut entry)?);
            return Ok(());
        }
        if kind == EntryType::GNULongLink {
            self.link = Some(read_long_name(&mut entry)?);
            return Ok(());
        }
        let (name, link) = (self.name.take(), self.link.take());
        let name = name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let path = check_plain_path(bytes_to_path(name))?;
        let count =
            if kind.as_byte() == REMOVED_ENTRY_TYPE { &mut self.gone } else { &mut self.fresh };
        count.add_path(&path)?;
        let number = self.next;
        self.next += 1;
        self.claim_path(&path, kind == EntryType::Directory)?;
        if self.conflicts_at(&path)? {
            return self.note_conflict(number, &path);
        }
        if kind.as_byte() == REMOVED_ENTRY_TYPE {
            self.remove_path(&path)
        } else if kind == EntryType::Directory {
            self.place_directory(&path, entry.header().mode()?)
        } else if kind == EntryType::Symlink {
            let target = link.or_else(|| Some(entry.header().link_name_bytes()?.into_owned()));
            self.place_symlink(&path, target.unwrap_or_default())
        } else if kind == EntryType::Regular || kind.as_byte() == SPARSE_ENTRY_TYPE {
            self.place_file(&path, entry)
        } else {
            Err(refused_error(&path, "is neither a file, a directory nor a link"))
        }
    }

    /// One of all there is to be. What is of another kind here is in its way.
    fn claim_path(&mut self, path: &Path, is_dir: bool) -> Result<(), TreeError> {
        let Some(all) = &mut self.all else { return Ok(()) };
        all.insert(path.into());
        let here =
            self.tree.base.get(path.as_os_str()).map(|stamp| stamp.kind == StampKind::Directory);
        if here.is_none_or(|here| here == is_dir) {
            return Ok(());
        }
        let there = |known: &&OsString| Path::new(known).starts_with(path);
        let in_the_way: Vec<_> = self.tree.base.keys().rev().filter(there).cloned().collect();
        in_the_way.iter().try_for_each(|path| self.remove_known(Path::new(path)))
    }

    /// What was not named goes, if all was: what lies deepest first.
    fn remove_others(&mut self) -> Result<(), TreeError> {
        let Some(all) = self.all.take() else { return Ok(()) };
        let others = self.tree.base.keys().rev().filter(|path| !all.contains(*path));
        let others: Vec<_> = others.cloned().collect();
        others.iter().try_for_each(|path| self.remove_known(Path::new(path)))
    }

    fn remove_known(&mut self, path: &Path) -> Result<(), TreeError> {
        match self.conflicts_at(path)? {
            true => self.note_conflict(u32::MAX, path),
            false => self.remove_path(path),
        }
    }

    fn note_conflict(&mut self, entry: u32, path: &Path) -> Result<(), TreeError> {
        if self.conflicts.len() == MAX_CONFLICTS {
            return Err(TreeError::TooLarge(format!("{MAX_CONFLICTS} files that changed twice")));
        }
        self.conflicts.push(Conflict { entry, path: escape_path(path) });
        Ok(())
    }

    /// Whether what is there now is not what was there when the copies were last the same.
    fn conflicts_at(&self, path: &Path) -> Result<bool, TreeError> {
        let now = match beneath::open_parent(&self.tree.root, path) {
            Ok((dir, name)) => {
                self.read_stamp(&dir, name).map_err(|error| TreeError::at(path, error))?
            }
            // Something above it is gone, or is no directory any more.
            Err(_) => return Ok(true),
        };
        Ok(match (now, self.tree.base.get(path.as_os_str())) {
            (Some(Some(now)), Some(base)) => {
                now != *base
                    && (now.kind, base.kind) != (StampKind::Directory, StampKind::Directory)
            }
            (None, _) => false,
            (Some(Some(now)), None) => now.kind != StampKind::Directory,
            (Some(None), _) => true,
        })
    }

    /// What is at a path: nothing, something that does not travel, or something that does.
    fn read_stamp(&self, dir: &OwnedFd, name: &OsStr) -> io::Result<Option<Option<FileStamp>>> {
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileStamp::of(&stat, self.tree.side))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Remembers how it looks now that the copies are the same here.
    fn record_stamp(&mut self, path: &Path, dir: &OwnedFd, name: &OsStr) -> Result<(), TreeError> {
        let found =
            self.read_stamp(dir, name).map_err(|error| TreeError::at(path, error))?.flatten();
        match found {
            Some(stamp) => self.tree.base.insert(path.into(), stamp),
            None => self.tree.base.remove(path.as_os_str()),
        };
        Ok(())
    }

    fn remove_path(&mut self, path: &Path) -> Result<(), TreeError> {
        let (dir, name) = beneath::open_parent(&self.tree.root, path)?;
        let fail = |errno: Errno| TreeError::at(path, errno);
        let was = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return self.record_stamp(path, &dir, name),
            was => was.map_err(fail)?,
        };
        let is_dir = super::stamp::stamp_kind(&was) == Some(StampKind::Directory);
        let how = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(&dir, name, how) {
            // A directory in which there is something new stays.
            Err(Errno::NOENT | Errno::NOTEMPTY) => {}
            removed => {
                removed.map_err(fail)?;
                self.room.release_file(&was);
            }
        }
        self.record_stamp(path, &dir, name)
    }

    /// The permissions that an entry arrives with: no bit that changes who a program runs as, and, in the
    /// caller's own directory, no write permission for group or others that was not there before. A new file
    /// takes that of the group from its directory.
    fn allowed_mode(&self, dir: &OwnedFd, name: &OsStr, mode: u32) -> u32 {
        if self.tree.side == super::Side::Far {
            return mode & PERMISSION_BITS;
        }
        let is_no_link = |was: &Stat| super::stamp::stamp_kind(was) != Some(StampKind::Symlink);
        let was = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().filter(is_no_link);
        let writers = match was {
            Some(was) => was.st_mode & OTHER_WRITERS,
            None => fstat(dir).map_or(0, |dir| dir.st_mode & GROUP_WRITES),
        };
        mode & (PERMISSION_BITS & !OTHER_WRITERS | writers)
    }

    fn place_directory(&mut self, path: &Path, mode: u32) -> Result<(), TreeError> {
        let (dir, name) = beneath::open_parent(&self.tree.root, path)?;
        let mode = self.allowed_mode(&dir, name, mode);
        let fail = |errno: Errno| TreeError::at(path, errno);
        match mkdirat(&dir, name, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => {
                made.map_err(fail)?;
                let made = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
                self.room.reserve_bytes(allocated_bytes(&made))?;
                self.set_owner(&dir, name, path)?;
            }
        }
        self.modes.push((path.into(), mode));
        self.record_stamp(path, &dir, name)
    }

    fn place_symlink(&mut self, path: &Path, target: Vec<u8>) -> Result<(), TreeError> {
        let target = bytes_to_path(target);
        if target.is_empty() || target.len() as u64 > MAX_PATH_BYTES {
            return Err(refused_error(path, "is a link to nowhere"));
        }
        let (dir, name) = beneath::open_parent(&self.tree.root, path)?;
        let draft = draft::new_draft_name();
        symlinkat(&target, &dir, &draft).map_err(|errno| TreeError::at(path, errno))?;
        self.swap_in_draft(&dir, &draft, name, path)
    }

    fn place_file<R: Read>(
        &mut self,
        path: &Path,
        mut entry: Entry<'_, R>,
    ) -> Result<(), TreeError> {
        let (dir, name) = beneath::open_parent(&self.tree.root, path)?;
        let fail = |error: io::Error| TreeError::at(path, error);
        if let Ok(was) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.room.release_file(&was);
        }
        let mode = self.allowed_mode(&dir, name, entry.header().mode()?);
        let (file, named) = draft::new_file(&dir).map_err(fail)?;
        let mut full = None;
        let filled = draft::fill_file(&file, &mut entry, mode, |bytes| {
            self.room.reserve_bytes(bytes).map_err(|error| {
                full = Some(error);
                io::ErrorKind::FileTooLarge.into()
            })
        });
        let draft = match (filled, named) {
            (Ok(()), Some(draft)) => draft,
            (Ok(()), None) => draft::give_name(&file, &dir).map_err(fail)?,
            (Err(error), named) => {
                named.map(|draft| unlinkat(&dir, draft, AtFlags::empty()));
                return Err(full.unwrap_or_else(|| fail(error)));
            }
        };
        self.swap_in_draft(&dir, &draft, name, path)
    }

    /// Puts what is ready where it belongs, all at once, or takes it away again.
    fn swap_in_draft(
        &mut self,
        dir: &OwnedFd,
        draft: &OsStr,
        name: &OsStr,
        path: &Path,
    ) -> Result<(), TreeError> {
        let placed = self.set_owner(dir, draft, path).and_then(|()| {
            renameat(dir, draft, dir, name).map_err(|errno| TreeError::at(path, errno))
        });
        if placed.is_err() {
            let _ = unlinkat(dir, draft, AtFlags::empty());
        }
        placed?;
        self.record_stamp(path, dir, name)
    }

    fn set_owner(&self, dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), TreeError> {
        let Some((uid, gid)) = self.tree.owner else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let owned = chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        owned.map_err(|errno| TreeError::at(path, errno))
    }

    /// What could not be set before everything was in place. A directory stays one that its owner can
    /// look into.
    fn set_directory_modes(&mut self) -> Result<(), TreeError> {
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            let fail = |error| TreeError::at(&path, error);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = beneath::open_beneath(&self.tree.root, &path, flags, Mode::empty())
                .map_err(fail)?;
            let set = fchmod(&dir, Mode::from_raw_mode(mode) | Mode::RWXU);
            set.map_err(|errno| fail(errno.into()))?;
            let (above, name) = beneath::open_parent(&self.tree.root, &path)?;
            self.record_stamp(&path, &above, name)?;
        }
        Ok(())
    }
}

fn refused_error(path: &Path, what: &'static str) -> TreeError {
    TreeError::Refused { path: escape_path(path), what }
}

/// A long name or link.
fn read_long_name<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TreeError> {
    if entry.size() > MAX_PATH_BYTES {
        return Err(TreeError::TooLarge(format!("{MAX_PATH_BYTES} bytes in a name")));
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    while text.last() == Some(&0) {
        text.pop();
    }
    Ok(text)
}

/// A path that is made of plain parts only.
fn check_plain_path(given: OsString) -> Result<PathBuf, TreeError> {
    let path = PathBuf::from(given);
    let parts = || path.components();
    let fits = parts().all(|part| matches!(part, Component::Normal(_)))
        && parts().next().is_some()
        && path.as_os_str().len() as u64 <= MAX_PATH_BYTES;
    if fits { Ok(path) } else { Err(refused_error(&path, "leaves its root, or names nothing")) }
}
