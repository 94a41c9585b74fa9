//! Stored snapshots: what was captured of sandboxes, kept by content, checked before it is used.
//!
//! ```text
//! snapshots/objects/DIGEST   what parts hold; the same bytes are kept once
//! snapshots/named/ID         what each snapshot says about itself
//! snapshots/drafts/…         what is not finished; its maker holds a lock on it
//! ```
//! A snapshot exists from the instant at which its name does; what its maker leaves when it is killed
//! before that is collected with the next removal. One that is only passing through has a draft beside it
//! that says so, and goes with that.

mod blocks;
mod bundle;
mod manifest;
mod transient;
mod verified;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stockade_core::{
    BackendName, Boundary, Bytes, Error, ErrorCode, Result, SandboxSpec, SnapshotFiles, SnapshotId,
    SnapshotKind,
};
use stockade_fs::{Directory, LOCK_TIMEOUT, Locked, Sharing, StateDir, draft_name, fresh_id};

pub use manifest::{HostThings, Part, Snapshot};
pub use transient::TransientSnapshot;
pub use verified::VerifiedParts;

use crate::engine::lock_mutex;
use crate::journal::ContentHash;
use manifest::{MAX_MANIFEST, build_damaged_error, is_part_name};

const LOCK_FILE: &str = "lock";
const DRAFT_PREFIX: &str = "draft";
const DRAFT_LOCK_FILE: &str = "held";
/// Age from which the modification time of a file is certain to differ after its next change.
const MTIME_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Cache size: digests of files that were read in full.
const MAX_CACHED_DIGESTS: usize = 1024;

/// The snapshots of a state directory. Any number of engines may share it.
#[derive(Debug)]
pub struct Snapshots {
    top: Directory,
    objects: PathBuf,
    named: Directory,
    drafts: PathBuf,
    /// Files whose every byte was read, as they were then.
    read: Mutex<HashMap<PartFileStamp, ContentHash>>,
}

/// What changes whenever the content of a file does. Further names do not change it: what backends
/// hand over again and again is linked, not copied, and read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct PartFileStamp {
    device: u64,
    inode: u64,
    size: u64,
    written: (i64, i64),
}

/// What a listing found.
#[derive(Debug, Default)]
pub struct SnapshotListing {
    /// Those that can be read, the newest first.
    pub snapshots: Vec<Snapshot>,
    /// The names of others, and what is wrong with them.
    pub damaged: Vec<(String, Error)>,
}

/// A directory in which a snapshot is put together. Gone when this is dropped, or by the next to
/// collect if its maker was killed.
pub(crate) struct SnapshotDraft {
    directory: PathBuf,
    _held: Locked,
}

impl SnapshotDraft {
    /// Where the backend puts the parts.
    pub(crate) fn parts(&self) -> PathBuf {
        self.directory.join("parts")
    }
}

impl Drop for SnapshotDraft {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Snapshots {
    /// Opens the snapshots of a state directory.
    pub fn open(state: &StateDir) -> Result<Self> {
        let top = state.subdirectory("snapshots")?;
        let [objects, named, drafts] = ["objects", "named", "drafts"].map(|name| top.path_of(name));
        let make = |path: &PathBuf| match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(build_unusable_error("open the snapshots", path, error))
            }
            Ok(()) | Err(_) => Ok(()),
        };
        [&objects, &named, &drafts].into_iter().try_for_each(make)?;
        let named = Directory::existing(&named)
            .map_err(|error| build_unusable_error("open the snapshots", &named, error))?;
        Ok(Self { top, objects, named, drafts, read: Mutex::default() })
    }

    /// Every snapshot.
    pub fn list(&self) -> Result<SnapshotListing> {
        let names = self
            .named
            .names()
            .map_err(|error| build_unusable_error("list", self.named.path(), error))?;
        let mut listing = SnapshotListing::default();
        for name in names.into_iter().filter(|name| !name.starts_with('.')) {
            match self.read(&name) {
                Ok(snapshot) => listing.snapshots.push(snapshot),
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => listing.damaged.push((name, error)),
            }
        }
        let newest = |snapshot: &Snapshot| (std::cmp::Reverse(snapshot.taken), snapshot.id.clone());
        listing.snapshots.sort_by_key(newest);
        listing.damaged.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(listing)
    }

    /// What a snapshot says about itself.
    pub fn get(&self, id: &SnapshotId) -> Result<Snapshot> {
        let snapshot = self.read(id.as_str())?;
        match snapshot.id == *id {
            true => Ok(snapshot),
            false => Err(build_damaged_error("it is kept under another name")),
        }
    }

    fn read(&self, name: &str) -> Result<Snapshot> {
        let opened = self.named.open(name, OFlags::RDONLY);
        let file = opened.map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return build_unknown_error(name);
            }
            build_unusable_error("read a snapshot", &self.named.path_of(name), error)
        })?;
        let mut sealed = Vec::new();
        file.take(MAX_MANIFEST as u64 + 1).read_to_end(&mut sealed).map_err(|error| {
            build_unusable_error("read a snapshot", &self.named.path_of(name), error)
        })?;
        Snapshot::unseal(&sealed)
    }

    /// The parts of a snapshot, after every byte was found right.
    pub fn parts(&self, snapshot: &Snapshot) -> Result<SnapshotFiles> {
        let mut files = BTreeMap::new();
        for (name, part) in &snapshot.parts {
            self.check(name, part)?;
            files.insert(name.clone(), self.object_path(&part.digest));
        }
        Ok(SnapshotFiles { kind: snapshot.kind, files })
    }

    fn object_path(&self, digest: &ContentHash) -> PathBuf {
        self.objects.join(digest.to_string())
    }

    fn check(&self, name: &str, part: &Part) -> Result<()> {
        let path = self.object_path(&part.digest);
        let wrong = |what: &str| build_damaged_error(format!("its part `{name}` {what}"));
        let file = open_plain(&path).map_err(|error| wrong("is not there").source(error))?;
        let failed = |error| build_unusable_error("read a snapshot", &path, error);
        if file.metadata().map_err(failed)?.len() != part.size.0
            || self.digest(&file).map_err(failed)? != part.digest
        {
            return Err(wrong("was changed"));
        }
        Ok(())
    }

    /// Reads a file once and remembers what it was like: only a change makes it read again. One that was
    /// written just now could change without its time telling.
    fn digest(&self, file: &File) -> io::Result<ContentHash> {
        let stamp = PartFileStamp::of(file)?;
        if let Some(known) = lock_mutex(&self.read).get(&stamp) {
            return Ok(*known);
        }
        let digest = blocks::digest_file(file, stamp.size)?;
        if file.metadata()?.modified()?.elapsed().is_ok_and(|age| age > MTIME_SETTLE_TIME) {
            self.remember_digest(stamp, digest);
        }
        Ok(digest)
    }

    fn remember_digest(&self, stamp: PartFileStamp, digest: ContentHash) {
        let mut read = lock_mutex(&self.read);
        if read.len() >= MAX_CACHED_DIGESTS {
            read.clear();
        }
        read.insert(stamp, digest);
    }

    /// A place to put a snapshot together.
    pub(crate) fn draft(&self) -> Result<SnapshotDraft> {
        let failed = |error| build_unusable_error("begin a snapshot", &self.drafts, error);
        // No collector may see the directory before its lock is held.
        let _nobody_collects = self.lock_store(Sharing::Shared)?;
        let directory = self.drafts.join(draft_name(DRAFT_PREFIX));
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        make(&directory).and_then(|()| make(&directory.join("parts"))).map_err(failed)?;
        let held = File::create_new(directory.join(DRAFT_LOCK_FILE))
            .and_then(|file| Locked::attempt(file, Sharing::Exclusive))
            .map_err(failed)?;
        let held = held.map_err(|_| failed(io::ErrorKind::ResourceBusy.into()))?;
        Ok(SnapshotDraft { directory, _held: held })
    }

    /// Stores what a backend has put into a draft, and gives it a name.
    pub(crate) fn store(
        &self,
        draft: &SnapshotDraft,
        kind: SnapshotKind,
        walls: (BackendName, Boundary),
        spec: &SandboxSpec,
    ) -> Result<Snapshot> {
        let mut parts = BTreeMap::new();
        for (name, file) in open_parts(&draft.parts())? {
            let failed =
                |error| build_unusable_error("store a snapshot", &draft.parts().join(&name), error);
            let size = file.metadata().map_err(failed)?.len();
            let digest = self.digest(&file).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            parts.insert(name, Part { size: Bytes(size), digest });
        }
        let snapshot = Snapshot::of(fresh_id()?, kind, walls, spec, parts);
        self.keep(draft, &snapshot)?;
        Ok(snapshot)
    }

    /// Gives what a draft holds its place and its name.
    fn keep(&self, draft: &SnapshotDraft, snapshot: &Snapshot) -> Result<()> {
        let failed = |error| build_unusable_error("store a snapshot", &self.objects, error);
        // What has no name yet looks like waste to a collector.
        let _nobody_collects = self.lock_store(Sharing::Shared)?;
        for (name, part) in &snapshot.parts {
            let (from, to) = (draft.parts().join(name), self.object_path(&part.digest));
            fs::set_permissions(&from, Permissions::from_mode(0o400)).map_err(failed)?;
            // One that is there may have been damaged: this one was not.
            fs::rename(&from, &to).map_err(failed)?;
        }
        File::open(&self.objects).and_then(|objects| objects.sync_all()).map_err(failed)?;
        self.name(snapshot)
    }

    fn name(&self, snapshot: &Snapshot) -> Result<()> {
        let failed = |error| build_unusable_error("store a snapshot", self.named.path(), error);
        let draft = draft_name(DRAFT_PREFIX);
        let sealed = snapshot.seal()?;
        let write = |mut file: File| file.write_all(&sealed).and_then(|()| file.sync_all());
        let named = self
            .named
            .open(&draft, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
            .and_then(write)
            .and_then(|()| self.named.rename(&draft, snapshot.id.as_str()));
        if named.is_err() {
            let _ = self.named.remove(&draft);
        }
        named.and_then(|()| self.named.sync()).map_err(failed)
    }

    /// Removes a snapshot and what only it has held. Sandboxes that were made from it do not mind.
    pub fn remove(&self, id: &SnapshotId) -> Result<()> {
        let name = id.as_str();
        let failed =
            |error| build_unusable_error("remove a snapshot", &self.named.path_of(name), error);
        if !self.named.exists(name).map_err(failed)? {
            return Err(build_unknown_error(name));
        }
        self.named.remove(name).and_then(|()| self.named.sync()).map_err(failed)?;
        self.collect()
    }

    /// Removes what no snapshot refers to: of removed ones, and of makers that were killed. Does nothing
    /// while a manifest cannot be read, since the parts that it needs are unknown then.
    pub fn collect(&self) -> Result<()> {
        let _alone = self.lock_store(Sharing::Exclusive)?;
        self.collect_drafts()?;
        let listing = self.list()?;
        if !listing.damaged.is_empty() {
            return Ok(());
        }
        let parts = listing.snapshots.iter().flat_map(|snapshot| snapshot.parts.values());
        let needed: BTreeSet<String> = parts.map(|part| part.digest.to_string()).collect();
        let failed = |error| build_unusable_error("collect", &self.objects, error);
        for entry in fs::read_dir(&self.objects).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !needed.contains(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn collect_drafts(&self) -> Result<()> {
        let failed = |error| build_unusable_error("collect", &self.drafts, error);
        for entry in fs::read_dir(&self.drafts).map_err(failed)? {
            let draft = entry.map_err(failed)?.path();
            let held = match File::open(draft.join(DRAFT_LOCK_FILE)) {
                Ok(file) => Locked::attempt(file, Sharing::Exclusive).map_err(failed)?.is_err(),
                Err(_) => false,
            };
            if !held {
                self.remove_passed(&draft).map_err(failed)?;
                // Its maker may be removing it at this moment.
                let removed = fs::remove_dir_all(&draft);
                removed.or_else(absent_is_fine).map_err(failed)?;
            }
        }
        for name in self.named.names().map_err(failed)? {
            if name.starts_with(&format!(".{DRAFT_PREFIX}-")) {
                self.named.remove(&name).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn lock_store(&self, sharing: Sharing) -> Result<Locked> {
        let failed = |error| build_unusable_error("lock the snapshots", self.top.path(), error);
        let file = self.top.open(LOCK_FILE, OFlags::RDWR | OFlags::CREATE).map_err(failed)?;
        let locked = Locked::within(file, sharing, LOCK_TIMEOUT).map_err(failed)?;
        locked.ok_or_else(|| {
            Error::new(ErrorCode::TooSlow, "lock the snapshots", "another process holds the lock")
                .remedy("try again when it has ended")
        })
    }
}

impl PartFileStamp {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let written = (found.mtime(), found.mtime_nsec());
        Ok(Self { device: found.dev(), inode: found.ino(), size: found.len(), written })
    }
}

/// What a backend has put there: plain files with proper names, or it has gone wrong.
fn open_parts(parts: &Path) -> Result<Vec<(String, File)>> {
    let failed = |error| build_unusable_error("store a snapshot", parts, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(parts).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_part_name(&name) || !entry.file_type().map_err(failed)?.is_file() {
            let message = format!("the backend left `{}`, which is no part", name.escape_debug());
            return Err(Error::new(ErrorCode::Protocol, "store a snapshot", message));
        }
        files.push((name, open_plain(&entry.path()).map_err(failed)?));
    }
    Ok(files)
}

fn open_plain(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file")),
    }
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn build_unknown_error(name: &str) -> Error {
    let message = format!("there is no snapshot `{name}`");
    Error::new(ErrorCode::NotFound, "find snapshot", message)
        .remedy("`stockade snapshot ls` lists the ones there are")
}

fn build_unusable_error(operation: &'static str, path: &Path, error: io::Error) -> Error {
    let message = format!("`{}` cannot be used", path.display());
    let remedy = "make the directory writable for this user, with some space left";
    Error::new(ErrorCode::StateUnavailable, operation, message).remedy(remedy).source(error)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_file_that_is_handed_over_again_is_read_once_until_it_changes() {
        let state = tempfile::tempdir().unwrap();
        let snapshots =
            Snapshots::open(&StateDir::open(state.path().join("state")).unwrap()).unwrap();
        let path = state.path().join("memory");
        fs::write(&path, "before").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let first = snapshots.digest(&open()).unwrap();
        assert!(lock_mutex(&snapshots.read).is_empty(), "its next change could have the same time");
        let long_ago = SystemTime::now() - 2 * MTIME_SETTLE_TIME;
        open().set_modified(long_ago).unwrap();
        assert_eq!(snapshots.digest(&open()).unwrap(), first);
        fs::hard_link(&path, state.path().join("again")).unwrap();
        assert_eq!(
            lock_mutex(&snapshots.read).get(&PartFileStamp::of(&open()).unwrap()),
            Some(&first)
        );
        fs::write(&path, "after!").unwrap();
        assert_ne!(snapshots.digest(&open()).unwrap(), first);
    }
}
