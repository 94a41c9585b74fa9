//! Where what was prepared is kept: below the user's cache, each thing under a name that says what it was
//! made of. A thing is made in a directory of its own and takes its place whole, so that a kill at any
//! instant leaves it or nothing; its maker holds a lock, and removes the drafts that others left half-way.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Result};
use stockade_fs::{Locked, Sharing, Survives, draft_name, remove_tree, write_atomically};

use super::{NAME, system_error};
use crate::peer::far_program::{FAR_DIGEST, FAR_PROGRAM};

/// Timeout of the store's lock, which another process holds while it makes something.
const LOCK_TIMEOUT: Duration = Duration::from_secs(900);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Limit of the cached entries of a kind; the least recently used are removed.
const MAX_CACHED_ENTRIES: usize = 6;
/// Name prefix of unfinished entries.
const DRAFT_PREFIX: &str = "new-";
/// File whose lock is held while an entry is made.
const LOCK_FILE: &str = "lock";

/// The store.
#[derive(Debug, Clone)]
pub(super) struct MachineStore(PathBuf);

/// The right to make something.
pub(super) struct Maker {
    store: MachineStore,
    _lock: File,
}

/// A directory in which something is made. What does not take its place in the store is removed with this value,
/// which must not outlive the right to make things.
pub(super) struct StoreDraft(PathBuf);

impl StoreDraft {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for StoreDraft {
    fn drop(&mut self) {
        // What stays is cleared by the next to make something.
        let _ = remove_tree(&self.0);
    }
}

/// An entry of the store. It is in use, and not to be cleaned away, while a clone of this value is held.
#[derive(Debug, Clone)]
pub(super) struct HeldEntry {
    path: PathBuf,
    _lock: Arc<Locked>,
}

impl HeldEntry {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A kind of thing.
#[derive(Debug, Clone, Copy)]
pub(super) enum StoreKind {
    /// The file system of a root.
    Image,
    /// A machine that waits.
    Template,
}

impl StoreKind {
    fn name(self) -> &'static str {
        match self {
            Self::Image => "images",
            Self::Template => "templates",
        }
    }
}

fn unusable_error(dir: &Path, error: io::Error) -> Error {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    let code = if full { ErrorCode::TooLarge } else { ErrorCode::System };
    let message =
        format!("the directory for prepared machines, `{}`, cannot be used", dir.display());
    Error::new(code, "create", message)
        .backend(NAME)
        .remedy("see that it is yours alone, and that there is room")
        .source(error)
}

/// The store's directory where none is configured.
pub(super) fn default_dir() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("stockade/microvm"))
}

/// What the store in this directory, or in the usual one, holds for `stockade clean`.
#[cfg(any(test, feature = "factory"))]
pub(super) fn cache_dirs(at: Option<PathBuf>) -> Vec<stockade_fs::CacheDir> {
    use std::collections::BTreeSet;

    let Some(dir) = at.or_else(default_dir) else { return Vec::new() };
    let dir = fs::canonicalize(&dir).unwrap_or(dir);
    let cache = |kind, path: PathBuf, is_entry: fn(&str) -> bool| stockade_fs::CacheDir {
        kind,
        path,
        is_entry,
        used: BTreeSet::new(),
        min_age: Duration::ZERO,
        maker_lock: Some(dir.join(LOCK_FILE)),
    };
    vec![
        cache("microvm images", dir.join(StoreKind::Image.name()), |_| true),
        cache("microvm templates", dir.join(StoreKind::Template.name()), |_| true),
        cache("microvm drafts", dir.clone(), |name| name.starts_with(DRAFT_PREFIX)),
    ]
}

impl MachineStore {
    /// Opens it, made if it is not there. No other user may write to it.
    pub(super) fn open(at: Option<PathBuf>) -> Result<Self> {
        let dir = at.or_else(default_dir).ok_or_else(|| {
            system_error("create", "there is no directory for prepared machines")
                .remedy("set HOME or XDG_CACHE_HOME")
        })?;
        let made = || {
            for path in [dir.clone(), dir.join("images"), dir.join("templates")] {
                DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            }
            let dir = fs::canonicalize(&dir)?;
            let found = fs::metadata(&dir)?;
            let own = rustix::process::geteuid().as_raw();
            match found.uid() == own && found.mode() & 0o022 == 0 {
                true => Ok(Self(dir)),
                false => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            }
        };
        made().map_err(|error| unusable_error(&dir, error))
    }

    /// The thing of this name, if it is there. It was used just now, and is in use from now on.
    pub(super) fn find_entry(&self, kind: StoreKind, name: &str) -> Option<HeldEntry> {
        let path = self.0.join(kind.name()).join(name);
        let opened = File::open(&path).ok()?;
        // Failing to note it is no harm: at the worst it is made once more.
        let _ = opened.set_modified(SystemTime::now());
        // One that is being cleaned away is as good as gone.
        let lock = Locked::attempt(opened, Sharing::Shared).ok()?.ok()?;
        let there = rustix::fs::fstat(lock.file()).is_ok_and(|found| found.st_nlink > 0);
        there.then(|| HeldEntry { path, _lock: Arc::new(lock) })
    }

    /// The program that starts machines in their walls and is the first inside, as a file.
    pub(super) fn ensure_program_file(&self) -> Result<PathBuf> {
        let path = self.0.join(format!("program-{FAR_DIGEST}"));
        if path.is_file() {
            return Ok(path);
        }
        let written =
            write_atomically(&path, &draft_name("program"), FAR_PROGRAM, 0o755, Survives::Process);
        written.map(|()| path).map_err(|error| self.unusable(error))
    }

    /// Waits for the right to make something.
    pub(super) async fn acquire_maker(&self) -> Result<Maker> {
        let lock = File::options().create(true).append(true).open(self.0.join(LOCK_FILE));
        let lock = lock.map_err(|error| self.unusable(error))?;
        let until = tokio::time::Instant::now() + LOCK_TIMEOUT;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
                }
                Err(error) => return Err(self.unusable(error.into())),
            }
        }
        let maker = Maker { store: self.clone(), _lock: lock };
        maker.remove_drafts();
        Ok(maker)
    }

    /// Removes drafts that others left half-way, unless the lock is held.
    pub(super) fn remove_stale_drafts(&self) {
        let lock = File::options().create(true).append(true).open(self.0.join(LOCK_FILE));
        if let Ok(lock) = lock
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            Maker { store: self.clone(), _lock: lock }.remove_drafts();
        }
    }

    fn unusable(&self, error: io::Error) -> Error {
        unusable_error(&self.0, error)
    }

    fn list_entries(&self, kind: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join(kind)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

impl Maker {
    /// Removes drafts that others left half-way: this value holds the lock.
    fn remove_drafts(&self) {
        let half_way = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(DRAFT_PREFIX)
        };
        for draft in self.store.list_entries("").into_iter().filter(half_way) {
            let _ = remove_tree(&draft);
        }
    }

    /// An empty directory to make something in.
    pub(super) fn create_draft(&self, name: &str) -> Result<StoreDraft> {
        let path = self.store.0.join(format!("{DRAFT_PREFIX}{name}"));
        let made = remove_tree(&path).and_then(|()| DirBuilder::new().mode(0o700).create(&path));
        made.map(|()| StoreDraft(path)).map_err(|error| self.store.unusable(error))
    }

    /// Puts something into its place, and removes the oldest of its kind.
    pub(super) fn publish_entry(
        &self,
        kind: StoreKind,
        name: &str,
        made: &Path,
    ) -> Result<PathBuf> {
        let path = self.store.0.join(kind.name()).join(name);
        fs::rename(made, &path).map_err(|error| self.store.unusable(error))?;
        let used = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
        let mut others = self.store.list_entries(kind.name());
        others.retain(|other| *other != path);
        others.sort_by_key(used);
        // A process that uses one has opened it, and does not need its name.
        for old in others.iter().rev().skip(MAX_CACHED_ENTRIES - 1) {
            let _ = remove_tree(old);
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use stockade_fs::Cleaning;

    use super::*;

    #[tokio::test]
    async fn what_is_half_way_is_cleared_and_the_oldest_go() {
        let place = tempfile::tempdir().unwrap();
        let store = MachineStore::open(Some(place.path().join("store"))).unwrap();
        let maker = store.acquire_maker().await.unwrap();
        let left = place.path().join("store/new-left");
        let draft = maker.create_draft("left").unwrap();
        fs::write(draft.path().join("file"), "x").unwrap();
        assert!(left.exists());
        drop(draft);
        assert!(!left.exists());
        // A process that was killed half-way dropped nothing.
        std::mem::forget(maker.create_draft("left").unwrap());
        drop(maker);
        let maker = store.acquire_maker().await.unwrap();
        assert!(!left.exists());
        for number in 0..MAX_CACHED_ENTRIES + 3 {
            let name = number.to_string();
            let draft = maker.create_draft(&name).unwrap();
            File::open(draft.path()).unwrap().set_modified(SystemTime::now()).unwrap();
            maker.publish_entry(StoreKind::Template, &name, draft.path()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(store.list_entries("templates").len(), MAX_CACHED_ENTRIES);
        assert!(store.find_entry(StoreKind::Template, "0").is_none());
        assert!(
            store.find_entry(StoreKind::Template, &(MAX_CACHED_ENTRIES + 2).to_string()).is_some()
        );
    }

    #[tokio::test]
    async fn what_is_in_use_is_not_cleaned_away_and_what_is_not_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        let store = MachineStore::open(Some(dir.clone())).unwrap();
        let maker = store.acquire_maker().await.unwrap();
        for name in ["a", "b"] {
            let draft = maker.create_draft(name).unwrap();
            fs::write(draft.path().join("memory"), [1_u8; 4096]).unwrap();
            maker.publish_entry(StoreKind::Template, name, draft.path()).unwrap();
        }
        let clean = || -> Vec<_> {
            let caches = cache_dirs(Some(dir.clone()));
            let cleaned =
                caches.iter().map(|cache| cache.clean(Duration::ZERO, Cleaning::Remove).unwrap());
            cleaned.map(|usage| (usage.in_use, usage.freed_entries)).collect()
        };
        assert_eq!(clean(), [(0, 0), (2, 0), (0, 0)], "one is being made");
        drop(maker);
        let held = store.find_entry(StoreKind::Template, "a").unwrap();
        assert_eq!(clean(), [(0, 0), (1, 1), (0, 0)]);
        assert!(held.path().join("memory").exists());
        assert!(store.find_entry(StoreKind::Template, "b").is_none());
        drop(held);
        assert_eq!(clean(), [(0, 0), (0, 1), (0, 0)]);
        assert!(store.find_entry(StoreKind::Template, "a").is_none());
    }

    #[test]
    fn a_store_that_others_can_write_to_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let error = MachineStore::open(Some(dir)).unwrap_err();
        assert!(error.hint().is_some());
    }
}
