//! What the files below a directory take, counted from outside while a guest may be changing all of
//! it. Never leaves the directory and follows no link: each step is resolved by the kernel.
//!
//! A guest must not hide anything. An entry that is always gone under the name it was listed by, or always
//! swapped with another, is counted as endless. An inode counts even if it is empty. A directory that cannot
//! be read, as test suites leave them, holds at most what the file system has lost since the first scan: then
//! that counts, no matter which process took it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatvfs, openat, statat,
};
use rustix::io::{Errno, Result};

/// How many directories are looked into below each other: nothing anybody works with is that deep.
const MAX_DEPTH: usize = 8192;
/// How many of them are held open, the deepest ones. The others are opened again from below.
const MAX_OPEN_DIRECTORIES: usize = 64;
/// How often a directory is listed until every entry of it was looked at.
const MAX_LISTINGS: usize = 64;
/// What an inode counts as at least. An empty file takes no block, but a file system has only so many inodes; most
/// make one for each 16 KiB. It is no more than a block, so that an ordinary small file counts as what it takes.
const MIN_INODE_BYTES: u64 = 4096;

const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is used below a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// What all inodes count as, each at least `MIN_INODE_BYTES`.
    bytes: u64,
    /// The bytes of the blocks that they take.
    allocated: u64,
    /// Directories that cannot be looked into, and when each was changed last.
    hidden: BTreeMap<FileId, ChangeTime>,
    /// Bytes that are free in the file systems that were looked at. Absent: it did not tell.
    free: BTreeMap<DeviceId, u64>,
}

type DeviceId = u64;
/// Device and inode.
type FileId = (DeviceId, u64);
type ChangeTime = (i64, i64);

impl DiskUsage {
    /// What was added since another count, with what may lie in directories that have been hidden or changed
    /// since then.
    pub(crate) fn since(&self, before: &DiskUsage) -> u64 {
        if self.is_endless() {
            return u64::MAX;
        }
        // By blocks too: removing empty files makes no room for as many full ones.
        let added = self.bytes.saturating_sub(before.bytes);
        let added = added.max(self.allocated.saturating_sub(before.allocated));
        let changed = |id: &FileId| before.hidden.get(id) != self.hidden.get(id);
        let devices: BTreeSet<DeviceId> =
            self.hidden.keys().filter(|id| changed(id)).map(|(device, _)| *device).collect();
        if devices.is_empty() {
            return added;
        }
        let lost = devices.iter().map(|device| self.lost_space(before, *device));
        let lost = lost.fold(0, u64::saturating_add);
        // What was removed in plain sight has made room for as much out of sight.
        let removed = before.allocated.saturating_sub(self.allocated);
        added.max(lost.saturating_add(removed))
    }

    /// What a file system has less room for than before. Endless, where it does not tell.
    fn lost_space(&self, before: &DiskUsage, device: DeviceId) -> u64 {
        match (before.free.get(&device), self.free.get(&device)) {
            (Some(before), Some(now)) => before.saturating_sub(*now),
            (None, _) | (_, None) => u64::MAX,
        }
    }

    /// Both together.
    pub(crate) fn merge_with(mut self, other: DiskUsage) -> DiskUsage {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.hidden.extend(other.hidden);
        self.free.extend(other.free);
        self
    }

    /// Notes what is free where this directory is.
    fn note_free_space(&mut self, root: &OwnedFd) {
        if let (Ok(found), Ok(space)) = (fstat(root), fstatvfs(root)) {
            self.free.insert(found.st_dev, space.f_bfree.saturating_mul(space.f_frsize));
        }
    }

    /// The bytes that could be counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts an inode of any type by its blocks, or by the least that an inode counts as.
    fn add_inode(&mut self, found: &Stat) {
        let allocated = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
        self.allocated = self.allocated.saturating_add(allocated);
        self.bytes = self.bytes.saturating_add(allocated.max(MIN_INODE_BYTES));
    }

    fn insert_hidden(&mut self, found: &Stat) {
        let time = (found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or(i64::MAX));
        self.hidden.insert(file_id(found), time);
    }

    /// Whether it could not be counted.
    pub(crate) fn is_endless(&self) -> bool {
        self.bytes == u64::MAX
    }

    /// Makes it more than any other.
    pub(crate) fn make_endless(&mut self) {
        (self.bytes, self.allocated) = (u64::MAX, u64::MAX);
    }
}

fn file_id(found: &Stat) -> FileId {
    (found.st_dev, found.st_ino)
}

/// What a file takes that is mounted by itself; nothing if there is none.
fn measure_file(path: &Path) -> DiskUsage {
    let mut usage = DiskUsage::default();
    if let Ok(found) = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
    {
        usage.add_inode(&found);
    }
    usage
}

/// The bytes that files below a directory take, or nothing if that was no longer wanted. A tree too
/// deep to be walked is taken for endless: what cannot be counted must not be free.
pub(crate) fn measure_usage(root: &Path, wanted: impl Fn() -> bool) -> Option<DiskUsage> {
    let mut usage = DiskUsage::default();
    let Ok(first) = openat(CWD, root, DIRECTORY_FLAGS, Mode::empty()) else {
        return Some(measure_file(root));
    };
    usage.note_free_space(&first);
    let mut levels = vec![DirectoryListing::of(first)];
    loop {
        let depth = levels.len();
        let Some(listing) = levels.last_mut() else { return Some(usage) };
        if !wanted() {
            return None;
        }
        match listing.next_directory(&mut usage) {
            Ok(Some(_)) if depth >= MAX_DEPTH => usage.make_endless(),
            Ok(Some(below)) => descend_into(&mut levels, below),
            Ok(None) => ascend_from(&mut levels, &mut usage),
            Err(_) => {
                listing.note_unlisted(&mut usage);
                ascend_from(&mut levels, &mut usage);
            }
        }
    }
}

/// Goes on in a directory below the last one, and closes the one that is far enough above.
fn descend_into(levels: &mut Vec<DirectoryListing>, below: OwnedFd) {
    levels.push(DirectoryListing::of(below));
    if let Some(above) = levels.len().checked_sub(MAX_OPEN_DIRECTORIES + 1) {
        levels[above].close();
    }
}

/// Goes back to the directory above the last one. If that was moved elsewhere meanwhile, what is left above
/// cannot be counted, and the guest has seen to that.
fn ascend_from(levels: &mut Vec<DirectoryListing>, usage: &mut DiskUsage) {
    let (below, above) = (levels.pop(), levels.last_mut());
    if let (Some(below), Some(above)) = (below, above)
        && above.open_again(&below).is_err()
    {
        usage.make_endless();
        levels.clear();
    }
}

/// One directory that is being looked at.
struct DirectoryListing {
    /// Closed while directories far below are looked at.
    directory: Option<OwnedFd>,
    /// Which one it is, to know it again. Kept when it is closed.
    closed: Option<FileId>,
    /// Entries of the last reading that were not looked at yet.
    todo: Vec<(std::ffi::CString, u64)>,
    readings: usize,
    /// The device whose inodes the listing names by the numbers that `stat` has for them. Absent: it has others, as
    /// overlays of several file systems and some FUSE file systems do, and a difference tells nothing.
    numbered_device: Option<DeviceId>,
    /// The inodes that were looked at, by the number that `stat` has for them.
    seen: BTreeSet<u64>,
    /// Those of the last reading that were gone, or something else, when they were looked at.
    missed: BTreeSet<u64>,
}

impl DirectoryListing {
    fn of(directory: OwnedFd) -> Self {
        let (seen, missed) = (BTreeSet::new(), BTreeSet::new());
        Self {
            directory: Some(directory),
            closed: None,
            todo: Vec::new(),
            readings: 0,
            numbered_device: None,
            seen,
            missed,
        }
    }

    fn directory(&self) -> Result<&OwnedFd> {
        self.directory.as_ref().ok_or(Errno::BADF)
    }

    /// Notes a directory whose entries cannot be listed any more.
    fn note_unlisted(&self, usage: &mut DiskUsage) {
        if let Ok(found) = self.directory().and_then(fstat) {
            usage.insert_hidden(&found);
        }
    }

    fn close(&mut self) {
        if let Some(found) = self.directory.take().and_then(|open| fstat(open).ok()) {
            self.closed = Some(file_id(&found));
        }
    }

    /// Opens a directory that was closed, as the one above another. An error if it is not the same any more.
    fn open_again(&mut self, below: &DirectoryListing) -> Result<()> {
        if self.directory.is_some() {
            return Ok(());
        }
        let above = openat(below.directory()?, c"..", DIRECTORY_FLAGS, Mode::empty())?;
        if self.closed != Some(file_id(&fstat(&above)?)) {
            return Err(Errno::XDEV);
        }
        self.directory = Some(above);
        Ok(())
    }

    /// Counts entries until there is a directory among them, which is returned open. Nothing, when all were
    /// counted.
    fn next_directory(&mut self, usage: &mut DiskUsage) -> Result<Option<OwnedFd>> {
        loop {
            if let Some(directory) = self.count_listed(usage)? {
                return Ok(Some(directory));
            }
            if !self.read_again(usage)? {
                return Ok(None);
            }
        }
    }

    /// Counts entries of the last reading until there is a directory among them, which is returned open.
    fn count_listed(&mut self, usage: &mut DiskUsage) -> Result<Option<OwnedFd>> {
        while let Some((name, inode)) = self.todo.pop() {
            if self.seen.contains(&inode) {
                continue;
            }
            match self.count_entry(&name, inode, usage) {
                Ok(Some(directory)) => return Ok(Some(directory)),
                Ok(None) => {}
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    self.missed.insert(inode);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Counts what is found under a name, and opens it if it is a directory. What was listed by that name and is
    /// no longer there is missed: the guest may have moved it to a name that was looked at before.
    fn count_entry(
        &mut self,
        name: &std::ffi::CStr,
        inode: u64,
        usage: &mut DiskUsage,
    ) -> Result<Option<OwnedFd>> {
        let (found, directory) = self.open_entry(name, usage)?;
        let is_new = self.seen.insert(found.st_ino);
        if is_new {
            usage.add_inode(&found);
        }
        if self.is_swapped(name, inode, &found) {
            self.missed.insert(inode);
            return Ok(directory.filter(|_| is_new));
        }
        Ok(directory)
    }

    /// Finds what is under a name, and opens it if it is a directory. Tells about what was opened: it may be
    /// another one than was found first.
    fn open_entry(
        &self,
        name: &std::ffi::CStr,
        usage: &mut DiskUsage,
    ) -> Result<(Stat, Option<OwnedFd>)> {
        let found = statat(self.directory()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {}
            FileType::RegularFile
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => return Ok((found, None)),
        }
        match self.open(name) {
            Ok(directory) => Ok((fstat(&directory)?, Some(directory))),
            Err(Errno::ACCESS | Errno::PERM) => {
                usage.insert_hidden(&found);
                Ok((found, None))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Whether another inode was found than was listed, although nothing is mounted there.
    fn is_swapped(&self, name: &std::ffi::CStr, inode: u64, found: &Stat) -> bool {
        found.st_ino != inode
            && self.numbered_device == Some(found.st_dev)
            && !self.is_mounted(name, found)
    }

    /// Whether what was found under a name is mounted there. Asked of the inode itself, since the guest may put
    /// something else there meanwhile.
    fn is_mounted(&self, name: &std::ffi::CStr, found: &Stat) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.directory().and_then(|at| openat(at, name, flags, Mode::empty()));
        opened.is_ok_and(|object| {
            fstat(&object).is_ok_and(|now| file_id(&now) == file_id(found))
                && stockade_fs::is_mount_point(&object, c"")
        })
    }

    fn open(&self, name: &std::ffi::CStr) -> Result<OwnedFd> {
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        stockade_fs::open_beneath(self.directory()?, name, DIRECTORY_FLAGS, Mode::empty(), inside)
    }

    /// Reads the directory once more, if there is anything in it that was not looked at. What is always gone
    /// when it is looked at, and always there when the directory is read, is being hidden.
    fn read_again(&mut self, usage: &mut DiskUsage) -> Result<bool> {
        let first = self.readings == 0;
        let missed = std::mem::take(&mut self.missed);
        if !first && missed.is_empty() {
            return Ok(false);
        }
        if self.readings >= MAX_LISTINGS {
            usage.make_endless();
            return Ok(false);
        }
        self.readings += 1;
        let own = fstat(self.directory()?)?;
        for entry in Dir::read_from(self.directory()?)? {
            let entry = entry?;
            let (name, inode) = (entry.file_name(), entry.ino());
            if name == c"." {
                self.numbered_device = (inode == own.st_ino).then_some(own.st_dev);
            }
            let wanted = first || missed.contains(&inode);
            if wanted && name != c"." && name != c".." {
                self.todo.push((name.to_owned(), inode));
            }
        }
        Ok(!self.todo.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn used(root: &Path) -> u64 {
        super::measure_usage(root, || true).unwrap().bytes()
    }

    fn usage(root: &Path) -> DiskUsage {
        super::measure_usage(root, || true).unwrap()
    }

    #[test]
    fn a_count_that_nobody_wants_any_more_ends_at_the_next_directory() {
        let dir = tempfile::tempdir().unwrap();
        (0..100).for_each(|n| fs::create_dir(dir.path().join(n.to_string())).unwrap());
        let asked = std::cell::Cell::new(0);
        let twice = || asked.replace(asked.get() + 1) < 2;
        assert_eq!(super::measure_usage(dir.path(), twice), None);
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn files_count_by_the_space_they_take_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let before = used(dir.path());
        fs::write(dir.path().join("file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        let after = used(dir.path());
        assert!((1 << 20..2 << 20).contains(&(after - before)), "{before} {after}");
    }

    #[test]
    fn a_file_that_is_mounted_by_itself_counts_and_what_a_link_leads_to_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!((1 << 20..2 << 20).contains(&used(&file)), "{}", used(&file));
        assert_eq!((used(&link), used(&dir.path().join("none"))), (0, 0));
    }

    #[test]
    fn links_of_one_file_in_a_directory_count_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(dir.path().join("file"), dir.path().join("link")).unwrap();
        assert!(used(dir.path()) < 2 << 20);
    }

    #[test]
    fn a_directory_that_was_hidden_since_the_first_look_may_hold_what_the_file_system_lost() {
        let hidden = |ino: u64, time: i64, bytes: u64, free: u64| DiskUsage {
            bytes,
            allocated: bytes,
            hidden: BTreeMap::from([((1, ino), (time, 0))]),
            free: BTreeMap::from([(1, free)]),
        };
        let before = hidden(7, 100, 10, 1000);
        let since = |now: DiskUsage| now.since(&before);
        assert_eq!(since(hidden(7, 100, 10, 300)), 0, "it was there and nobody touched it");
        assert_eq!(since(hidden(7, 101, 10, 300)), 700, "it was opened and closed again");
        assert_eq!(since(hidden(8, 100, 10, 1000)), 0, "another one, which holds nothing");
        assert_eq!(since(hidden(8, 100, 15, 300)), 700, "what is seen is part of what was lost");
        assert_eq!(since(hidden(8, 100, 0, 1000)), 10, "what was seen may lie there now");
        assert_eq!(since(DiskUsage { bytes: 15, ..DiskUsage::default() }), 5);
        let untold = DiskUsage { free: BTreeMap::new(), ..hidden(8, 100, 10, 0) };
        assert_eq!(since(untold), u64::MAX, "where nothing tells it is endless");
    }

    #[test]
    fn an_empty_file_counts_as_an_inode_and_others_by_their_blocks() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        (0..100).for_each(|n| fs::write(dir.path().join(n.to_string()), "").unwrap());
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        assert_eq!(used(dir.path()), 101 * MIN_INODE_BYTES);
        let full = dir.path().join("full");
        fs::write(&full, vec![1; 1 << 20]).unwrap();
        fs::File::open(&full).unwrap().sync_all().unwrap();
        let blocks = fs::metadata(&full).unwrap().blocks() * 512;
        assert_eq!(used(dir.path()), 101 * MIN_INODE_BYTES + blocks);
    }

    #[test]
    fn removed_empty_files_make_no_room_for_full_ones() {
        let of = |bytes, allocated| DiskUsage { bytes, allocated, ..DiskUsage::default() };
        assert_eq!(of(40_960, 40_960).since(&of(40_960, 0)), 40_960);
        assert_eq!(of(40_960, 0).since(&of(0, 0)), 40_960);
        assert_eq!(of(0, 0).since(&of(40_960, 0)), 0);
    }

    #[test]
    fn what_cannot_be_counted_is_beyond_every_limit_whatever_was_there_before() {
        let mut endless = DiskUsage::default();
        endless.make_endless();
        assert_eq!(endless.since(&endless.clone()), u64::MAX);
    }

    /// A directory with two entries, made by `make` at a path with a number of bytes.
    fn listing_of_two(dir: &Path, make: impl Fn(&Path, usize)) -> DirectoryListing {
        make(&dir.join("big"), 1 << 20);
        make(&dir.join("decoy"), 1);
        DirectoryListing::of(openat(CWD, dir, DIRECTORY_FLAGS, Mode::empty()).unwrap())
    }

    fn swap(dir: &Path) {
        let (one, two, flags) =
            (dir.join("big"), dir.join("decoy"), rustix::fs::RenameFlags::EXCHANGE);
        rustix::fs::renameat_with(CWD, &one, CWD, &two, flags).unwrap();
    }

    #[test]
    fn files_that_are_swapped_after_they_were_listed_both_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &Path, bytes| {
            fs::write(path, vec![1; bytes]).unwrap();
            fs::File::open(path).unwrap().sync_all().unwrap();
        };
        let (mut listing, mut usage) = (listing_of_two(dir.path(), write), DiskUsage::default());
        assert!(listing.read_again(&mut usage).unwrap());
        if listing.numbered_device.is_none() {
            return;
        }
        swap(dir.path());
        assert!(listing.next_directory(&mut usage).unwrap().is_none());
        assert_eq!(usage.bytes(), used(dir.path()));
    }

    #[test]
    fn directories_that_are_swapped_after_they_were_listed_are_both_walked_once() {
        let dir = tempfile::tempdir().unwrap();
        let create = |path: &Path, _| fs::create_dir(path).unwrap();
        let (mut listing, mut usage) = (listing_of_two(dir.path(), create), DiskUsage::default());
        assert!(listing.read_again(&mut usage).unwrap());
        swap(dir.path());
        let mut walked = Vec::new();
        while let Some(directory) = listing.next_directory(&mut usage).unwrap() {
            walked.push(file_id(&fstat(&directory).unwrap()));
        }
        assert_eq!((walked.len(), BTreeSet::from_iter(walked).len()), (2, 2));
    }

    #[test]
    fn files_that_are_swapped_at_every_listing_are_taken_for_endless() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &Path, bytes| fs::write(path, vec![1; bytes]).unwrap();
        let (mut listing, mut usage) = (listing_of_two(dir.path(), write), DiskUsage::default());
        while listing.read_again(&mut usage).unwrap() {
            if listing.numbered_device.is_none() {
                return;
            }
            swap(dir.path());
            assert!(listing.count_listed(&mut usage).unwrap().is_none());
        }
        assert_eq!(usage.bytes(), u64::MAX);
    }

    /// As an ordinary user, whom modes keep out: root looks into everything.
    fn as_somebody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let look = || {
            if rustix::process::geteuid().is_root() {
                let (uid, gid) =
                    (rustix::fs::Uid::from_raw(61234), rustix::fs::Gid::from_raw(61234));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_gid(gid).unwrap();
                rustix::thread::set_thread_uid(uid).unwrap();
            }
            work()
        };
        std::thread::scope(|scope| scope.spawn(look).join().unwrap())
    }

    #[test]
    fn what_is_moved_into_a_directory_that_cannot_be_looked_into_still_counts() {
        use std::os::unix::fs::PermissionsExt;
        let shared = tempfile::tempdir().unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).unwrap();
        as_somebody(|| {
            let dir = shared.path().join("own");
            let closed = dir.join("closed");
            fs::create_dir_all(&closed).unwrap();
            let before = DiskUsage { free: BTreeMap::new(), ..usage(&dir) };
            assert_eq!(usage(&dir).since(&before), 0);
            // Neither what cannot be listed nor what can only be listed is free.
            for mode in [0o000, 0o300, 0o400] {
                fs::write(closed.join("file"), vec![1; 1 << 20]).unwrap();
                fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
                let hidden = usage(&dir);
                assert_eq!(hidden.since(&before), u64::MAX, "{mode:o}: nothing tells");
                let free = hidden.free.iter().map(|(device, free)| (*device, free + (1 << 20)));
                let roomier = DiskUsage { free: free.collect(), ..before.clone() };
                assert!(hidden.since(&roomier) >= 1 << 20, "{mode:o}");
                assert_eq!(hidden.since(&hidden), 0, "{mode:o}: hidden before");
                fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
            }
            fs::remove_dir_all(&dir).unwrap();
        });
    }

    #[test]
    fn what_is_always_gone_when_it_is_looked_at_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&one).unwrap();
        fs::write(one.join("file"), vec![1; 1 << 20]).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    fs::rename(&one, &two).unwrap();
                    fs::rename(&two, &one).unwrap();
                }
            });
            let least = (0..200).map(|_| used(dir.path())).min();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(least.is_some_and(|least| least >= 1 << 20), "{least:?}");
        });
    }

    /// Directories in directories, each reached from the one before, as no path could.
    fn dig(from: &Path, depth: usize) -> OwnedFd {
        let name = "d".repeat(200);
        let mut at = openat(CWD, from, DIRECTORY_FLAGS, Mode::empty()).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = openat(&at, &name, DIRECTORY_FLAGS, Mode::empty()).unwrap();
        }
        at
    }

    #[test]
    fn what_lies_deeper_than_a_path_can_name_counts() {
        let dir = tempfile::tempdir().unwrap();
        let deepest = dig(dir.path(), 3 * MAX_OPEN_DIRECTORIES);
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&deepest, "file", flags, Mode::RWXU).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        assert!(used(dir.path()) >= 1 << 20);
    }

    #[test]
    fn a_tree_too_deep_to_be_walked_is_taken_for_endless() {
        let dir = tempfile::tempdir().unwrap();
        dig(dir.path(), MAX_DEPTH + 1);
        assert_eq!(used(dir.path()), u64::MAX);
        // By a program that any depth can be trusted to.
        std::process::Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap();
    }
}
