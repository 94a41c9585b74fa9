//! Workspaces on disk: a private directory each, with a manifest that appears whole or not at all,
//! under a lock that its holder's death frees.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_core::{Bytes, HostPath, OverlayDirs, TenantName, WorkspaceId};
use stockade_fs::{
    ClosedDirs, Directory, LOCK_TIMEOUT, Locked, Sharing, Survives, Timestamp, draft_name,
    remove_entry,
};

use crate::apply::ApplyLedger;
use crate::changes::{Index, Layer};
use crate::clock::ClockStamp;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::json::write_json;
use crate::request::{Kind, ManagedWorkspace, Mechanism, View};
use crate::tree::OpenTree;

const MANIFEST_FILE: &str = "manifest.json";
/// Lock file that every process holds which has the workspace; the kernel frees it when the process ends.
const OWNER_LOCK_FILE: &str = "owner";
/// Attempts to create a directory: a janitor may remove one that its maker has not locked yet.
const MAX_CREATE_ATTEMPTS: usize = 8;

/// What is known about a workspace.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WorkspaceManifest {
    pub(crate) id: WorkspaceId,
    pub(crate) kind: Kind,
    pub(crate) tenant: TenantName,
    pub(crate) writable: bool,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) created: Timestamp,
    /// Since when changes beneath count as another process's.
    pub(crate) start: ClockStamp,
    /// The directory it is about.
    pub(crate) source: HostPath,
    pub(crate) mechanism: Mechanism,
    pub(crate) released: bool,
    /// The most an ephemeral one may hold.
    pub(crate) most: Option<Bytes>,
}

/// The workspaces of one state directory.
#[derive(Debug)]
pub(crate) struct WorkspaceStore(pub(crate) Directory);

/// One workspace's directory, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct StoreEntry {
    pub(crate) path: PathBuf,
    _lock: Option<Locked>,
}

impl WorkspaceStore {
    /// A new directory, or the one that is there, locked.
    pub(crate) fn enter_or_make(&self, id: &WorkspaceId) -> FaultResult<StoreEntry> {
        for _ in 0..MAX_CREATE_ATTEMPTS {
            match rustix::fs::mkdirat(&self.0, id.as_str(), Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).step("make", self.path(id).display()),
            }
            match self.enter(id, Sharing::Exclusive) {
                Err(WorkspaceFault::Unknown(_)) => {}
                entered => return entered,
            }
        }
        Err(WorkspaceFault::Busy(id.clone()))
    }

    /// The directory that is there, locked.
    pub(crate) fn enter(&self, id: &WorkspaceId, sharing: Sharing) -> FaultResult<StoreEntry> {
        let name = || self.path(id).display().to_string();
        let file = match self.0.open(id.as_str(), OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(WorkspaceFault::Unknown(id.clone()));
            }
            opened => opened.step("open", name())?,
        };
        let lock = Locked::within(file, sharing, LOCK_TIMEOUT).step("lock", name())?;
        let lock = lock.ok_or_else(|| WorkspaceFault::Busy(id.clone()))?;
        // It may have been removed, and made anew, while this waited.
        let mine = rustix::fs::fstat(lock.file()).step("look at", name())?.st_ino;
        let there = rustix::fs::statat(&self.0, id.as_str(), AtFlags::SYMLINK_NOFOLLOW);
        match there {
            Ok(stat) if stat.st_ino == mine => {
                Ok(StoreEntry { path: self.path(id), _lock: Some(lock) })
            }
            Ok(_) | Err(_) => Err(WorkspaceFault::Unknown(id.clone())),
        }
    }

    /// The directory without its lock, for reading what is always whole.
    pub(crate) fn peek(&self, id: &WorkspaceId) -> StoreEntry {
        StoreEntry { path: self.path(id), _lock: None }
    }

    fn path(&self, id: &WorkspaceId) -> PathBuf {
        self.0.path_of(id.as_str())
    }

    /// Every id there is a directory for.
    pub(crate) fn ids(&self) -> FaultResult<Vec<WorkspaceId>> {
        let mut names = self.0.names().step("list", self.0.path().display())?;
        names.sort_unstable();
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Removes a workspace. It is gone from the listing at once.
    pub(crate) fn remove(&self, id: &WorkspaceId, _entry: &StoreEntry) -> FaultResult<()> {
        let gone = draft_name("gone");
        self.0.rename(id.as_str(), &gone).step("remove", self.path(id).display())?;
        remove_entry(&self.0, gone.as_bytes(), ClosedDirs::Open)
            .step("remove", self.path(id).display())
    }

    /// Clears away what was being removed, or made, when its process died.
    pub(crate) fn tidy(&self) -> FaultResult<()> {
        for name in self.0.names().step("list", self.0.path().display())? {
            if name.starts_with(".gone-") {
                self.tidy_gone(&name)?;
            }
        }
        for id in self.ids()? {
            self.tidy_one(&id)?;
        }
        Ok(())
    }

    /// Goes on with a removal, unless its remover is at it still.
    fn tidy_gone(&self, name: &str) -> FaultResult<()> {
        let path = self.0.path_of(name);
        let Ok(file) = self.0.open(name, OFlags::RDONLY | OFlags::DIRECTORY) else { return Ok(()) };
        match Locked::attempt(file, Sharing::Exclusive).step("lock", path.display())? {
            Ok(_lock) => remove_entry(&self.0, name.as_bytes(), ClosedDirs::Open)
                .step("remove", path.display()),
            Err(_) => Ok(()),
        }
    }

    fn tidy_one(&self, id: &WorkspaceId) -> FaultResult<()> {
        let Ok(file) = self.0.open(id.as_str(), OFlags::RDONLY | OFlags::DIRECTORY) else {
            return Ok(());
        };
        let name = self.path(id).display().to_string();
        let Ok(lock) = Locked::attempt(file, Sharing::Exclusive).step("lock", &name)? else {
            return Ok(());
        };
        let entry = StoreEntry { path: self.path(id), _lock: Some(lock) };
        match entry.manifest(id) {
            Err(WorkspaceFault::Unknown(_)) => self.remove(id, &entry),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl StoreEntry {
    pub(crate) fn manifest(&self, id: &WorkspaceId) -> FaultResult<WorkspaceManifest> {
        let path = self.path.join(MANIFEST_FILE);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(WorkspaceFault::Unknown(id.clone()));
            }
            read => read.step("read", path.display())?,
        };
        serde_json::from_slice(&bytes).map_err(|error| WorkspaceFault::Damaged {
            path: path.display().to_string(),
            problem: error.to_string(),
        })
    }

    /// Writes the manifest. Only once there is something to keep does it matter whether it survives a
    /// loss of power.
    pub(crate) fn save(&self, manifest: &WorkspaceManifest) -> FaultResult<()> {
        let survives = if manifest.released { Survives::Power } else { Survives::Process };
        write_json(&self.path.join(MANIFEST_FILE), manifest, survives)
    }

    /// Says that this process has the workspace, until the lock is dropped. Comes before the manifest:
    /// what has one and no owner was left behind.
    pub(crate) fn own(&self) -> FaultResult<Locked> {
        let file = self.owner(OFlags::CREATE).step("create", self.path.display())?;
        let lock = Locked::within(file, Sharing::Shared, LOCK_TIMEOUT);
        let lock = lock.step("lock", self.path.display())?;
        lock.ok_or_else(|| WorkspaceFault::Held(self.path.display().to_string()))
    }

    /// A lock that keeps owners out, if there is none.
    pub(crate) fn disown(&self) -> Option<Locked> {
        let file = self.owner(OFlags::empty()).ok()?;
        Locked::attempt(file, Sharing::Exclusive).ok()?.ok()
    }

    fn owner(&self, create: OFlags) -> rustix::io::Result<std::fs::File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | create;
        let path = self.path.join(OWNER_LOCK_FILE);
        Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into())
    }

    pub(crate) fn ledger(&self) -> ApplyLedger {
        ApplyLedger::new(&self.path)
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.path.join("upper")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    pub(crate) fn copy(&self) -> PathBuf {
        self.path.join("copy")
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.path.join("index.jsonl")
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// The layer that the guest writes to.
    pub(crate) fn layer(&self, manifest: &WorkspaceManifest) -> FaultResult<Layer> {
        match manifest.mechanism {
            Mechanism::Kernel => Ok(Layer::Upper(open_tree(&self.upper())?)),
            Mechanism::Copy => {
                let mut index = Index::load(&self.index())?;
                // What was applied is in the tree beneath too now, or gone from it.
                let settled = self.ledger().settled()?;
                index.forget(|path| settled.has_removed(path));
                settled.existing_paths().for_each(|path| index.know(path));
                Ok(Layer::Copy(open_tree(&self.copy())?, index))
            }
        }
    }

    /// The workspace as callers see it.
    pub(crate) fn workspace(&self, manifest: WorkspaceManifest) -> FaultResult<ManagedWorkspace> {
        let view = self.view(&manifest)?;
        let root = match &view {
            View::Directory(path) => path.as_path().to_owned(),
            View::Layers(layers) => layers.lower.as_path().to_owned(),
            View::Nothing => self.scratch(),
        };
        Ok(ManagedWorkspace {
            id: manifest.id,
            root,
            source: manifest.source.as_path().to_owned(),
            kind: manifest.kind,
            writable: manifest.writable,
            metadata: manifest.metadata,
            tenant: manifest.tenant,
            created: manifest.created,
            released: manifest.released,
            view,
        })
    }

    fn view(&self, manifest: &WorkspaceManifest) -> FaultResult<View> {
        match (manifest.kind, manifest.mechanism) {
            (Kind::Ephemeral, _) => Ok(View::Nothing),
            (Kind::Local, _) => Ok(View::Directory(manifest.source.clone())),
            (Kind::Overlay | Kind::Git, Mechanism::Copy) => {
                Ok(View::Directory(host_path(self.copy())?))
            }
            (Kind::Overlay | Kind::Git, Mechanism::Kernel) => Ok(View::Layers(OverlayDirs {
                lower: manifest.source.clone(),
                upper: host_path(self.upper())?,
                work: host_path(self.work())?,
            })),
        }
    }
}

pub(crate) fn open_tree(path: &Path) -> FaultResult<OpenTree> {
    OpenTree::open(path).step("open", path.display())
}

pub(crate) fn host_path(path: PathBuf) -> FaultResult<HostPath> {
    let shown = path.display().to_string();
    HostPath::try_from(path).map_err(|_| WorkspaceFault::Refused {
        path: shown,
        problem: "is not a path that a sandbox can be given",
        remedy: "use a state directory whose path is absolute, plain and valid UTF-8",
    })
}
