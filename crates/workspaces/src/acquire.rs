//! Makes workspaces. A manifest is written last, so that one that was not finished is known as such.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use stockade_core::{Bytes, HostPath, WorkspaceId};
use stockade_engine::{Directory, Locked, Timestamp};

use crate::clock::Stamp;
use crate::copy::{Copying, copy_tree, resemble};
use crate::fault::{Fault, Outcome, Step};
use crate::layer::{Index, Layer};
use crate::path::TreePath;
use crate::request::{Hint, Kind, Mechanism, Request};
use crate::store::{Entry, Manifest, Store, host_path, tree};
use crate::walk::visit;
use crate::{git, local};

/// A workspace that was made, or was there, and what the journal is told of it.
pub(crate) struct Made {
    pub(crate) entry: Entry,
    pub(crate) manifest: Manifest,
    /// Whether it is new.
    pub(crate) fresh: bool,
    /// That this process has it. A directory that stays whoever has it needs none.
    pub(crate) owner: Option<Locked>,
}

/// Makes what is asked for.
pub(crate) fn make(store: &Store, stores: &Directory, request: Request) -> Outcome<Made> {
    match request.hint.clone() {
        Hint::Local(path) => local(store, &request, local::directory(&path)?),
        Hint::Overlay(path) => {
            let source = local::directory(&path)?;
            refuse_own_state(store, &source)?;
            create_view(store, request, Kind::Overlay, source, BTreeMap::new())
        }
        Hint::Git { source, rev } => {
            let checkout = git::prepare(stores, &source, rev.as_deref())?;
            create_view(store, request, Kind::Git, host_path(checkout.tree)?, checkout.metadata)
        }
        Hint::Ephemeral { most } => ephemeral(store, &request, most),
    }
}

/// A tree that holds the layers of its own view would grow by being looked at.
fn refuse_own_state(store: &Store, source: &HostPath) -> Outcome<()> {
    if !store.0.path().starts_with(source.as_path()) {
        return Ok(());
    }
    Err(Fault::Refused {
        path: source.to_string(),
        problem: "holds the state directory",
        remedy: "set STOCKADE_STATE_DIR to a directory elsewhere, or name a smaller tree",
    })
}

fn manifest(id: WorkspaceId, request: &Request, kind: Kind, source: HostPath) -> Manifest {
    Manifest {
        id,
        kind,
        tenant: request.tenant.clone(),
        writable: request.writable,
        metadata: request.metadata.clone(),
        created: Timestamp::now(),
        start: Stamp::start(),
        source,
        mechanism: request.mechanism,
        released: false,
        most: None,
    }
}

fn local(store: &Store, request: &Request, source: HostPath) -> Outcome<Made> {
    let id = id_of(&source)?;
    let entry = store.enter_or_make(&id)?;
    let (created, fresh) = match entry.manifest(&id) {
        Ok(known) => (known.created, known.released),
        Err(Fault::Unknown(_)) => (Timestamp::now(), true),
        Err(fault) => return Err(fault),
    };
    let manifest = Manifest { created, ..manifest(id, request, Kind::Local, source) };
    entry.save(&manifest)?;
    Ok(Made { entry, manifest, fresh, owner: None })
}

/// The id of a directory, always the same: letters and digits of a hash of its path.
fn id_of(path: &HostPath) -> Outcome<WorkspaceId> {
    let hash = Sha256::digest(path.as_path().as_os_str().as_encoded_bytes());
    let text = hash
        .iter()
        .take(20)
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]));
    text.collect::<String>().parse().map_err(|_| Fault::Damaged {
        path: path.to_string(),
        problem: "its hash makes no id".to_owned(),
    })
}

fn create_entry(store: &Store) -> Outcome<(WorkspaceId, Entry, Option<Locked>)> {
    let id: WorkspaceId =
        stockade_engine::fresh_id().map_err(std::io::Error::other).step("make", "an id")?;
    let entry = store.enter_or_make(&id)?;
    let owner = entry.own()?;
    Ok((id, entry, Some(owner)))
}

fn create_view(
    store: &Store,
    request: Request,
    kind: Kind,
    source: HostPath,
    found: BTreeMap<String, String>,
) -> Outcome<Made> {
    let (id, entry, owner) = create_entry(store)?;
    let mut manifest = manifest(id.clone(), &request, kind, source);
    manifest.metadata.extend(found);
    let made = fill(&entry, &manifest).and_then(|()| entry.save(&manifest));
    match made {
        Ok(()) => Ok(Made { entry, manifest, fresh: true, owner }),
        Err(fault) => {
            let _ = store.remove(&id, &entry);
            Err(fault)
        }
    }
}

fn fill(entry: &Entry, manifest: &Manifest) -> Outcome<()> {
    let lower = tree(manifest.source.as_path())?;
    match manifest.mechanism {
        Mechanism::Kernel => create_layers(entry, &lower),
        Mechanism::Copy => {
            directory(&entry.copy())?;
            let copy = tree(&entry.copy())?;
            let index = copy_tree(&lower, &copy, Copying::Plain)?;
            copy_root_mode(&copy, &lower)?;
            index.save(&entry.index())
        }
    }
}

fn create_layers(entry: &Entry, lower: &crate::tree::Tree) -> Outcome<()> {
    directory(&entry.upper())?;
    directory(&entry.work())?;
    // The upper's own mode is the one that the view's root shows, and root's guest is whoever owns it.
    copy_root_mode(&tree(&entry.upper())?, lower)?;
    copy_root_mode(&tree(&entry.work())?, lower)
}

fn copy_root_mode(dir: &crate::tree::Tree, other: &crate::tree::Tree) -> Outcome<()> {
    let stat = rustix::fs::fstat(other).step("look at", other.path().display())?;
    let fd = dir.dir(&TreePath::root()).step("open", dir.path().display())?;
    resemble(&fd, &stat).step("set the mode of", dir.path().display())
}

fn directory(path: &Path) -> Outcome<()> {
    DirBuilder::new().mode(0o700).create(path).step("make", path.display())
}

fn ephemeral(store: &Store, request: &Request, most: Bytes) -> Outcome<Made> {
    let (id, entry, owner) = create_entry(store)?;
    let source = host_path(entry.scratch())?;
    let manifest = Manifest { most: Some(most), ..manifest(id, request, Kind::Ephemeral, source) };
    directory(&entry.scratch())?;
    entry.save(&manifest)?;
    Ok(Made { entry, manifest, fresh: true, owner })
}

/// A second workspace with the same beginning and the same changes so far.
pub(crate) fn fork(store: &Store, from: &Entry, original: &Manifest) -> Outcome<Made> {
    let (id, entry, owner) = create_entry(store)?;
    let manifest =
        Manifest { id: id.clone(), created: Timestamp::now(), released: false, ..original.clone() };
    let made = refill(from, &entry, &manifest).and_then(|()| entry.save(&manifest));
    match made {
        Ok(()) => Ok(Made { entry, manifest, fresh: true, owner }),
        Err(fault) => {
            let _ = store.remove(&id, &entry);
            Err(fault)
        }
    }
}

fn refill(from: &Entry, entry: &Entry, manifest: &Manifest) -> Outcome<()> {
    from.ledger().hand_on(&entry.ledger())?;
    match from.layer(manifest)? {
        Layer::Upper(upper) => {
            directory(&entry.upper())?;
            directory(&entry.work())?;
            let copy = tree(&entry.upper())?;
            copy_tree(&upper, &copy, Copying::Layer)?;
            copy_root_mode(&copy, &upper)?;
            copy_root_mode(&tree(&entry.work())?, &upper)
        }
        Layer::Copy(old, index) => {
            directory(&entry.copy())?;
            let copy = tree(&entry.copy())?;
            let copied = copy_tree(&old, &copy, Copying::Plain)?;
            copy_root_mode(&copy, &old)?;
            carry_index(&old, &index, copied)?.save(&entry.index())
        }
    }
}

/// The index of a copy of a copy: what was untouched in the first is so in the second, and what was
/// changed or gone still is.
fn carry_index(old: &crate::tree::Tree, index: &Index, copied: Index) -> Outcome<Index> {
    let mut carried = Index::default();
    for path in index.paths() {
        if let Some(known) = index.get(path) {
            carried.insert(path.clone(), known.clone().changed());
        }
    }
    visit(old, &TreePath::root(), |path, stat| {
        let untouched = index.get(path).filter(|known| known.untouched(stat));
        if let (Some(_), Some(now)) = (untouched, copied.get(path)) {
            carried.insert(path.clone(), now.clone());
        }
        Ok(())
    })?;
    Ok(carried)
}
