//! Where what was prepared is kept: below the user's cache, each thing under a name that says what it was
//! made of. A thing is made in a directory of its own and takes its place whole, so that a kill at any
//! instant leaves it or nothing; its maker holds a lock, and removes the drafts that others left half-way.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Result};
use stockade_fs::{Survives, draft_name, remove_tree, write_atomically};

use super::{NAME, system_error};
use crate::across::far::{FAR_DIGEST, FAR_PROGRAM};

/// Timeout of the store's lock, which another process holds while it makes something.
const LOCK_TIMEOUT: Duration = Duration::from_secs(900);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Limit of the cached entries of a kind; the least recently used are removed.
const MAX_CACHED_ENTRIES: usize = 6;
/// Name prefix of unfinished entries.
const DRAFT_PREFIX: &str = "new-";

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

fn unusable_error(error: io::Error) -> Error {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    let code = if full { ErrorCode::TooLarge } else { ErrorCode::System };
    Error::new(code, "create", "the directory for prepared machines cannot be used")
        .backend(NAME)
        .remedy("see that ~/.cache/stockade is yours alone, and that there is room")
        .source(error)
}

/// The store's directory where none is configured.
pub(super) fn default_dir() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("stockade/microvm"))
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
        made().map_err(unusable_error)
    }

    /// The thing of this name, if it is there. It was used just now.
    pub(super) fn find_entry(&self, kind: StoreKind, name: &str) -> Option<PathBuf> {
        let path = self.0.join(kind.name()).join(name);
        let opened = File::open(&path).ok()?;
        // Failing to note it is no harm: at the worst it is made once more.
        let _ = opened.set_modified(SystemTime::now());
        Some(path)
    }

    /// The program that starts machines in their walls and is the first inside, as a file.
    pub(super) fn ensure_program_file(&self) -> Result<PathBuf> {
        let path = self.0.join(format!("program-{FAR_DIGEST}"));
        if path.is_file() {
            return Ok(path);
        }
        let written =
            write_atomically(&path, &draft_name("program"), FAR_PROGRAM, 0o755, Survives::Process);
        written.map(|()| path).map_err(unusable_error)
    }

    /// Waits for the right to make something.
    pub(super) async fn acquire_maker(&self) -> Result<Maker> {
        let lock = File::options().create(true).append(true).open(self.0.join("lock"));
        let lock = lock.map_err(unusable_error)?;
        let until = tokio::time::Instant::now() + LOCK_TIMEOUT;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
                }
                Err(error) => return Err(unusable_error(error.into())),
            }
        }
        let maker = Maker { store: self.clone(), _lock: lock };
        maker.remove_drafts();
        Ok(maker)
    }

    /// Removes drafts that others left half-way, unless the lock is held.
    pub(super) fn remove_stale_drafts(&self) {
        let lock = File::options().create(true).append(true).open(self.0.join("lock"));
        if let Ok(lock) = lock
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            Maker { store: self.clone(), _lock: lock }.remove_drafts();
        }
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
        made.map(|()| StoreDraft(path)).map_err(unusable_error)
    }

    /// Puts something into its place, and removes the oldest of its kind.
    pub(super) fn publish_entry(
        &self,
        kind: StoreKind,
        name: &str,
        made: &Path,
    ) -> Result<PathBuf> {
        let path = self.store.0.join(kind.name()).join(name);
        fs::rename(made, &path).map_err(unusable_error)?;
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
