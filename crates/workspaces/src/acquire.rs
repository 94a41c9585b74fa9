//! Makes workspaces. A manifest is written last, so that one that was not finished is known as such.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use stockade_core::{Bytes, HostPath, WorkspaceId};
use stockade_fs::{Directory, Locked, Timestamp};

use crate::changes::{Index, Layer};
use crate::clock::ClockStamp;
use crate::copy::{Copying, copy_mode_and_owner, copy_tree};
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::path::TreePath;
use crate::request::{Hint, Kind, Mechanism, Request};
use crate::store::{StoreEntry, WorkspaceManifest, WorkspaceStore, host_path, open_tree};
use crate::walk::visit_tree;
use crate::{git, local};

/// A workspace that was made, or was there, and what the journal is told of it.
pub(crate) struct AcquiredWorkspace {
    pub(crate) entry: StoreEntry,
    pub(crate) manifest: WorkspaceManifest,
    /// Whether it is new.
    pub(crate) fresh: bool,
    /// The lock by which this process owns it. A directory that stays anyway needs none.
    pub(crate) owner: Option<Locked>,
}

/// Makes what is asked for.
pub(crate) fn acquire_workspace(
    store: &WorkspaceStore,
    stores: &Directory,
    request: Request,
) -> FaultResult<AcquiredWorkspace> {
    match request.hint.clone() {
        Hint::Local(path) => acquire_local(store, &request, local::resolve_directory(&path)?),
        Hint::Overlay(path) => {
            let source = local::resolve_directory(&path)?;
            refuse_own_state(store, &source)?;
            create_view(store, request, Kind::Overlay, source, BTreeMap::new())
        }
        Hint::Git { source, rev } => {
            let checkout = git::prepare_source(stores, &source, rev.as_deref())?;
            create_view(store, request, Kind::Git, host_path(checkout.tree)?, checkout.metadata)
        }
        Hint::Ephemeral { most } => acquire_ephemeral(store, &request, most),
    }
}

/// A tree that holds the layers of its own view would grow by being looked at.
fn refuse_own_state(store: &WorkspaceStore, source: &HostPath) -> FaultResult<()> {
    if !store.0.path().starts_with(source.as_path()) {
        return Ok(());
    }
    Err(WorkspaceFault::Refused {
        path: source.to_string(),
        problem: "holds the state directory",
        remedy: "set STOCKADE_STATE_DIR to a directory elsewhere, or name a smaller tree",
    })
}

fn build_manifest(
    id: WorkspaceId,
    request: &Request,
    kind: Kind,
    source: HostPath,
) -> WorkspaceManifest {
    WorkspaceManifest {
        id,
        kind,
        tenant: request.tenant.clone(),
        writable: request.writable,
        metadata: request.metadata.clone(),
        created: Timestamp::now(),
        start: ClockStamp::start(),
        source,
        mechanism: request.mechanism,
        released: false,
        most: None,
    }
}

fn acquire_local(
    store: &WorkspaceStore,
    request: &Request,
    source: HostPath,
) -> FaultResult<AcquiredWorkspace> {
    let id = id_of(&source)?;
    let entry = store.enter_or_make(&id)?;
    let (created, fresh) = match entry.manifest(&id) {
        Ok(known) => (known.created, known.released),
        Err(WorkspaceFault::Unknown(_)) => (Timestamp::now(), true),
        Err(fault) => return Err(fault),
    };
    let manifest =
        WorkspaceManifest { created, ..build_manifest(id, request, Kind::Local, source) };
    entry.save(&manifest)?;
    Ok(AcquiredWorkspace { entry, manifest, fresh, owner: None })
}

/// The id of a directory, always the same: letters and digits of a hash of its path.
fn id_of(path: &HostPath) -> FaultResult<WorkspaceId> {
    let hash = Sha256::digest(path.as_path().as_os_str().as_encoded_bytes());
    let text = hash
        .iter()
        .take(20)
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]));
    text.collect::<String>().parse().map_err(|_| WorkspaceFault::Damaged {
        path: path.to_string(),
        problem: "its hash makes no id".to_owned(),
    })
}

fn create_entry(store: &WorkspaceStore) -> FaultResult<(WorkspaceId, StoreEntry, Option<Locked>)> {
    let id: WorkspaceId =
        stockade_fs::fresh_id().map_err(std::io::Error::other).step("make", "an id")?;
    let entry = store.enter_or_make(&id)?;
    let owner = entry.own()?;
    Ok((id, entry, Some(owner)))
}

fn create_view(
    store: &WorkspaceStore,
    request: Request,
    kind: Kind,
    source: HostPath,
    found: BTreeMap<String, String>,
) -> FaultResult<AcquiredWorkspace> {
    let (id, entry, owner) = create_entry(store)?;
    let mut manifest = build_manifest(id.clone(), &request, kind, source);
    manifest.metadata.extend(found);
    let made = fill_entry(&entry, &manifest).and_then(|()| entry.save(&manifest));
    match made {
        Ok(()) => Ok(AcquiredWorkspace { entry, manifest, fresh: true, owner }),
        Err(fault) => {
            let _ = store.remove(&id, &entry);
            Err(fault)
        }
    }
}

fn fill_entry(entry: &StoreEntry, manifest: &WorkspaceManifest) -> FaultResult<()> {
    let lower = open_tree(manifest.source.as_path())?;
    match manifest.mechanism {
        Mechanism::Kernel => create_layers(entry, &lower),
        Mechanism::Copy => {
            create_directory(&entry.copy())?;
            let copy = open_tree(&entry.copy())?;
            let index = copy_tree(&lower, &copy, Copying::Plain)?;
            copy_root_mode(&copy, &lower)?;
            index.save(&entry.index())
        }
    }
}

fn create_layers(entry: &StoreEntry, lower: &crate::tree::OpenTree) -> FaultResult<()> {
    create_directory(&entry.upper())?;
    create_directory(&entry.work())?;
    // The view's root shows the upper's own mode, and root's guest runs as the upper's owner.
    copy_root_mode(&open_tree(&entry.upper())?, lower)?;
    copy_root_mode(&open_tree(&entry.work())?, lower)
}

fn copy_root_mode(dir: &crate::tree::OpenTree, other: &crate::tree::OpenTree) -> FaultResult<()> {
    let stat = rustix::fs::fstat(other).step("look at", other.path().display())?;
    let fd = dir.dir(&TreePath::root()).step("open", dir.path().display())?;
    copy_mode_and_owner(&fd, &stat).step("set the mode of", dir.path().display())
}

fn create_directory(path: &Path) -> FaultResult<()> {
    DirBuilder::new().mode(0o700).create(path).step("make", path.display())
}

fn acquire_ephemeral(
    store: &WorkspaceStore,
    request: &Request,
    most: Bytes,
) -> FaultResult<AcquiredWorkspace> {
    let (id, entry, owner) = create_entry(store)?;
    let source = host_path(entry.scratch())?;
    let manifest = WorkspaceManifest {
        most: Some(most),
        ..build_manifest(id, request, Kind::Ephemeral, source)
    };
    create_directory(&entry.scratch())?;
    entry.save(&manifest)?;
    Ok(AcquiredWorkspace { entry, manifest, fresh: true, owner })
}

/// A second workspace with the same beginning and the same changes so far.
pub(crate) fn fork_workspace(
    store: &WorkspaceStore,
    from: &StoreEntry,
    original: &WorkspaceManifest,
) -> FaultResult<AcquiredWorkspace> {
    let (id, entry, owner) = create_entry(store)?;
    let manifest = WorkspaceManifest {
        id: id.clone(),
        created: Timestamp::now(),
        released: false,
        ..original.clone()
    };
    let made = copy_changes(from, &entry, &manifest).and_then(|()| entry.save(&manifest));
    match made {
        Ok(()) => Ok(AcquiredWorkspace { entry, manifest, fresh: true, owner }),
        Err(fault) => {
            let _ = store.remove(&id, &entry);
            Err(fault)
        }
    }
}

fn copy_changes(
    from: &StoreEntry,
    entry: &StoreEntry,
    manifest: &WorkspaceManifest,
) -> FaultResult<()> {
    from.ledger().hand_on(&entry.ledger())?;
    match from.layer(manifest)? {
        Layer::Upper(upper) => {
            create_directory(&entry.upper())?;
            create_directory(&entry.work())?;
            let copy = open_tree(&entry.upper())?;
            copy_tree(&upper, &copy, Copying::Layer)?;
            copy_root_mode(&copy, &upper)?;
            copy_root_mode(&open_tree(&entry.work())?, &upper)
        }
        Layer::Copy(old, index) => {
            create_directory(&entry.copy())?;
            let copy = open_tree(&entry.copy())?;
            let copied = copy_tree(&old, &copy, Copying::Plain)?;
            copy_root_mode(&copy, &old)?;
            carry_index(&old, &index, copied)?.save(&entry.index())
        }
    }
}

/// The index of a copy of a copy: what was untouched in the first is so in the second, and what was
/// changed or gone still is.
fn carry_index(old: &crate::tree::OpenTree, index: &Index, copied: Index) -> FaultResult<Index> {
    let mut carried = Index::default();
    for path in index.paths() {
        if let Some(known) = index.get(path) {
            carried.insert(path.clone(), known.clone().changed());
        }
    }
    visit_tree(old, &TreePath::root(), |path, stat| {
        let untouched = index.get(path).filter(|known| known.untouched(stat));
        if let (Some(_), Some(now)) = (untouched, copied.get(path)) {
            carried.insert(path.clone(), now.clone());
        }
        Ok(())
    })?;
    Ok(carried)
}
