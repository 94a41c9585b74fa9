//! Cache directories: entries that are made again where they are missing. Measures and removes them beside
//! processes that make and use them. Never removes an entry whose lock is held, and follows no symbolic link.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::lock::{Locked, Sharing};
use crate::names::list_names;
use crate::remove::{ClosedDirs, remove_entry};

/// Depth to which an entry is measured: no cache nests deeper.
const MAX_MEASURED_DEPTH: usize = 16;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

const ENTRY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A directory of entries that are made again where they are missing.
#[derive(Debug, Clone)]
pub struct CacheDir {
    /// What people call its entries.
    pub kind: &'static str,
    /// Where they lie. It may be missing.
    pub path: PathBuf,
    /// Which names are entries; all others are left alone.
    pub is_entry: fn(&str) -> bool,
    /// Entries that are in use although no process has locked them.
    pub used: BTreeSet<String>,
    /// Age below which no entry is removed.
    pub min_age: Duration,
    /// File whose lock is held by processes that make entries; absent: entries appear whole, by a rename.
    pub maker_lock: Option<PathBuf>,
}

/// Whether entries are removed or only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleaning {
    /// Counts what would be removed.
    Preview,
    /// Removes it.
    Remove,
}

/// What a cache holds, and what of it was removed or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Entries before.
    pub entries: u64,
    /// Bytes on disk before. Files that have another name elsewhere do not count.
    pub bytes: u64,
    /// Entries that are in use.
    pub in_use: u64,
    /// Entries that were removed.
    pub freed_entries: u64,
    /// Their bytes on disk.
    pub freed_bytes: u64,
}

impl CacheDir {
    /// Removes the entries that are not in use and were not used within this time. Others may do the same at
    /// once: what one of them removes is counted by that one alone.
    pub fn clean(&self, unused_for: Duration, cleaning: Cleaning) -> io::Result<CacheUsage> {
        let mut usage = CacheUsage::default();
        let Some(dir) = open_own_dir(&self.path)? else { return Ok(usage) };
        let making = self.lock_makers()?;
        for name in list_names(&dir)? {
            let Some(text) = name.to_str().ok().filter(|text| (self.is_entry)(text)) else {
                continue;
            };
            let Some(entry) = open_entry(dir.as_fd(), &name)? else { continue };
            let bytes = measure_entry(dir.as_fd(), &name, 0)?;
            let lock = match &making {
                Making::Nowhere(_) if !self.used.contains(text) => {
                    Locked::attempt(entry, Sharing::Exclusive)?.ok()
                }
                Making::Nowhere(_) | Making::Elsewhere => None,
            };
            usage.entries += 1;
            usage.bytes += bytes;
            let Some(lock) = lock else {
                usage.in_use += 1;
                continue;
            };
            if is_removed(&lock)? {
                usage.entries -= 1;
                usage.bytes -= bytes;
            } else if self.is_due(&lock, unused_for)? {
                if cleaning == Cleaning::Remove {
                    remove_entry(&dir, &*name, ClosedDirs::Open)?;
                }
                usage.freed_entries += 1;
                usage.freed_bytes += bytes;
            }
        }
        Ok(usage)
    }

    /// Keeps others from making entries while these are looked at, unless one is at it.
    fn lock_makers(&self) -> io::Result<Making> {
        let Some(path) = &self.maker_lock else { return Ok(Making::Nowhere(None)) };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, path, flags, Mode::from(0o600))?);
        Ok(match Locked::attempt(file, Sharing::Exclusive)? {
            Ok(lock) => Making::Nowhere(Some(lock)),
            Err(_held) => Making::Elsewhere,
        })
    }

    /// Whether an entry is old enough. One from the future was used just now.
    fn is_due(&self, entry: &Locked, unused_for: Duration) -> io::Result<bool> {
        let age = entry.file().metadata()?.modified()?.elapsed().unwrap_or_default();
        Ok(age >= unused_for.max(self.min_age))
    }
}

/// Whether a process makes entries at this instant.
enum Making {
    /// None does, and none begins while this is held.
    Nowhere(#[allow(dead_code, reason = "held for its lock")] Option<Locked>),
    Elsewhere,
}

/// Opens a directory of this user's; nothing if it is not there.
fn open_own_dir(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match openat(CWD, path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match fstat(&dir)?.st_uid == rustix::process::geteuid().as_raw() {
        true => Ok(Some(dir)),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Opens a file or directory; nothing if it is gone or something else.
fn open_entry(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<File>> {
    match openat(dir, name, ENTRY_FLAGS, Mode::empty()) {
        Ok(entry) => Ok(Some(entry.into())),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is_removed(entry: &Locked) -> io::Result<bool> {
    Ok(fstat(entry.file())?.st_nlink == 0)
}

/// The bytes on disk that removing an entry frees.
fn measure_entry(dir: BorrowedFd<'_>, name: &CStr, depth: usize) -> rustix::io::Result<u64> {
    let found = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(0),
        found => found?,
    };
    let own = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Ok(if found.st_nlink > 1 { 0 } else { own });
    }
    if depth >= MAX_MEASURED_DEPTH {
        return Ok(own);
    }
    let inner = match openat(dir, name, ENTRY_FLAGS | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT | Errno::ACCESS) => return Ok(own),
        opened => opened?,
    };
    let names = list_names(&inner)?;
    names.iter().try_fold(own, |sum, name| {
        Ok(sum.saturating_add(measure_entry(inner.as_fd(), name, depth + 1)?))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    const ALL: Duration = Duration::ZERO;

    fn cache_at(path: &Path) -> CacheDir {
        CacheDir {
            kind: "things",
            path: path.join("things"),
            is_entry: |name| name.starts_with("e-"),
            used: BTreeSet::new(),
            min_age: Duration::ZERO,
            maker_lock: Some(path.join("lock")),
        }
    }

    /// A cache with a file and a directory, a file that is no entry, and a link to what is elsewhere.
    fn fill(home: &Path) -> CacheDir {
        let cache = cache_at(home);
        fs::create_dir_all(cache.path.join("e-dir/inner")).unwrap();
        fs::write(cache.path.join("e-dir/inner/file"), [1_u8; 9000]).unwrap();
        fs::write(cache.path.join("e-file"), [1_u8; 5000]).unwrap();
        fs::write(cache.path.join("key"), "kept").unwrap();
        fs::write(home.join("kept"), "kept").unwrap();
        symlink(home.join("kept"), cache.path.join("e-link")).unwrap();
        cache
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_preview_removes_nothing_and_tells_what_removing_frees() {
        let home = tempfile::tempdir().unwrap();
        let cache = fill(home.path());
        let told = cache.clean(ALL, Cleaning::Preview).unwrap();
        assert_eq!((told.entries, told.in_use, told.freed_entries), (2, 0, 2));
        assert!(told.bytes >= 14_000 && told.bytes == told.freed_bytes, "{told:?}");
        assert_eq!(names(&cache.path), ["e-dir", "e-file", "e-link", "key"]);
        assert_eq!(cache.clean(ALL, Cleaning::Remove).unwrap(), told);
        assert_eq!(names(&cache.path), ["e-link", "key"]);
        assert_eq!(fs::read_to_string(home.path().join("kept")).unwrap(), "kept");
        assert_eq!(cache.clean(ALL, Cleaning::Remove).unwrap(), CacheUsage::default());
    }

    #[test]
    fn what_is_locked_or_young_stays() {
        let home = tempfile::tempdir().unwrap();
        let cache = fill(home.path());
        let old = SystemTime::now() - Duration::from_secs(7200);
        File::open(cache.path.join("e-file")).unwrap().set_modified(old).unwrap();
        let user = File::open(cache.path.join("e-file")).unwrap();
        let user = Locked::attempt(user, Sharing::Shared).unwrap().unwrap();
        let hour = Duration::from_secs(3600);
        let told = cache.clean(hour, Cleaning::Remove).unwrap();
        assert_eq!((told.entries, told.in_use, told.freed_entries), (2, 1, 0));
        drop(user);
        assert_eq!(cache.clean(hour, Cleaning::Remove).unwrap().freed_entries, 1);
        assert_eq!(names(&cache.path), ["e-dir", "e-link", "key"]);
    }

    #[test]
    fn what_is_named_as_used_stays() {
        let home = tempfile::tempdir().unwrap();
        let cache = CacheDir { used: ["e-dir".to_owned()].into(), ..fill(home.path()) };
        let told = cache.clean(ALL, Cleaning::Remove).unwrap();
        assert_eq!((told.entries, told.in_use, told.freed_entries), (2, 1, 1));
        assert_eq!(names(&cache.path), ["e-dir", "e-link", "key"]);
    }

    #[test]
    fn everything_is_in_use_while_an_entry_is_made() {
        let home = tempfile::tempdir().unwrap();
        let cache = fill(home.path());
        let maker = File::create(home.path().join("lock")).unwrap();
        let maker = Locked::attempt(maker, Sharing::Exclusive).unwrap().unwrap();
        let told = cache.clean(ALL, Cleaning::Remove).unwrap();
        assert_eq!((told.entries, told.in_use, told.freed_entries), (2, 2, 0));
        drop(maker);
        assert_eq!(cache.clean(ALL, Cleaning::Remove).unwrap().freed_entries, 2);
    }

    #[test]
    fn two_who_clean_at_once_both_succeed_and_count_each_entry_once() {
        let home = tempfile::tempdir().unwrap();
        let cache = CacheDir { maker_lock: None, ..cache_at(home.path()) };
        fs::create_dir(&cache.path).unwrap();
        (0..200).for_each(|n| fs::write(cache.path.join(format!("e-{n}")), "x").unwrap());
        let start = std::sync::Barrier::new(2);
        let freed: u64 = std::thread::scope(|scope| {
            let both = [(); 2].map(|()| {
                scope.spawn(|| {
                    start.wait();
                    cache.clean(ALL, Cleaning::Remove).unwrap().freed_entries
                })
            });
            both.into_iter().map(|one| one.join().unwrap()).sum()
        });
        let left = names(&cache.path).len() as u64;
        assert_eq!(freed + left, 200, "each entry was removed by one of them, or by none");
        assert_eq!(cache.clean(ALL, Cleaning::Remove).unwrap().freed_entries, left);
    }

    #[test]
    fn a_file_with_another_name_frees_nothing() {
        let home = tempfile::tempdir().unwrap();
        let cache = fill(home.path());
        fs::hard_link(cache.path.join("e-file"), home.path().join("snapshot")).unwrap();
        let whole = cache.clean(ALL, Cleaning::Remove).unwrap();
        assert!(whole.freed_entries == 2 && whole.freed_bytes < 30_000, "{whole:?}");
        assert_eq!(fs::read(home.path().join("snapshot")).unwrap().len(), 5000);
    }
}
