//! The workspaces of one state directory. Any number of processes may work on them at once: each
//! workspace has a lock, and what a process that died left half done is finished or undone by the
//! next one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Bytes, Error, ErrorCode, Result, WorkspaceId, WorkspaceRecorder};
use stockade_fs::{Directory, Sharing, StateDir};
use tokio::sync::oneshot;

use crate::acquire::{self, AcquiredWorkspace};
use crate::apply::{self, Application, ApplyOptions, Trees};
use crate::changes::Layer;
use crate::diff::{Contents, Diff, format_patch, scan_layer};
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::ownership::Owned;
use crate::path::TreePath;
use crate::request::{Hint, Kind, ManagedWorkspace, Request};
use crate::store::{StoreEntry, WorkspaceManifest, WorkspaceStore, open_tree};
use crate::tree::OpenTree;
use crate::walk::visit_tree;
use crate::{git, local};

/// After this long without use a checkout goes when another is made.
const UNUSED_CHECKOUT_AGE: Duration = Duration::from_secs(30 * 86_400);

/// The workspaces of one state directory. Clones are the same workspaces.
///
/// Every call but [`Self::acquire`] and [`Self::release`] blocks while it works on the disk.
#[derive(Debug, Clone)]
pub struct Workspaces(Arc<WorkspacesInner>);

#[derive(Debug)]
struct WorkspacesInner {
    store: WorkspaceStore,
    stores: Directory,
    journal: Box<dyn WorkspaceRecorder>,
    owned: Owned,
}

/// What became of an `apply` that was cut off.
#[derive(Debug)]
pub struct Recovery {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Whether its tree is whole again.
    pub outcome: Result<()>,
}

/// A workspace that is being worked on, and the trees it lies between.
struct OpenedWorkspace {
    entry: StoreEntry,
    manifest: WorkspaceManifest,
    lower: OpenTree,
    layer: Layer,
}

impl Workspaces {
    /// Opens the workspaces of a state directory, and ends what processes that died left half done.
    /// The journal is told of each that is handed out or given back.
    pub fn open(dir: impl AsRef<Path>, journal: impl WorkspaceRecorder + 'static) -> Result<Self> {
        const OPEN_OPERATION: &str = "open the workspaces";
        let state = StateDir::open(dir)?;
        // The trees in it are reached without following any link, those above it included.
        let real = state.path().canonicalize().step("find", state.path().display());
        let state = StateDir::open(real.map_err(|fault| fault.during(OPEN_OPERATION))?)?;
        let store = WorkspaceStore(state.subdirectory("workspaces")?);
        let stores = state.subdirectory("git")?;
        let journal: Box<dyn WorkspaceRecorder> = Box::new(journal);
        let opened =
            Self(Arc::new(WorkspacesInner { store, stores, journal, owned: Owned::default() }));
        opened.0.store.tidy().map_err(|fault| fault.during(OPEN_OPERATION))?;
        opened.recover()?;
        opened.let_go_of_the_dead().map_err(|fault| fault.during(OPEN_OPERATION))?;
        Ok(opened)
    }

    /// The directory the caller stands in, as a hint; refused if it is `/` or a whole home.
    pub fn here() -> Result<Hint> {
        local::resolve_current_directory()
            .map(Hint::Local)
            .map_err(|fault| fault.during("find the workspace"))
    }

    /// Ends every `apply` that was cut off: its tree is brought back to what it was before, unless
    /// all was done. One that another process is at is passed over.
    pub fn recover(&self) -> Result<Vec<Recovery>> {
        const RECOVER_OPERATION: &str = "recover";
        let store = &self.0.store;
        let mut recovered = Vec::new();
        for id in store.ids().map_err(|fault| fault.during(RECOVER_OPERATION))? {
            if !store.0.path_of(id.as_str()).join("intent.json").exists() {
                continue;
            }
            let Ok(entry) = store.enter(&id, Sharing::Exclusive) else { continue };
            let outcome = apply::recover_apply(&entry.ledger())
                .map_err(|fault| fault.during(RECOVER_OPERATION));
            recovered.push(Recovery { workspace: id, outcome });
        }
        Ok(recovered)
    }

    /// Every workspace that is in use or kept for its changes, by id.
    pub fn list(&self) -> Result<Vec<ManagedWorkspace>> {
        self.list_workspaces().map_err(|fault| fault.during("list the workspaces"))
    }

    fn list_workspaces(&self) -> FaultResult<Vec<ManagedWorkspace>> {
        let mut all = Vec::new();
        for id in self.0.store.ids()? {
            match self.read_workspace(&id) {
                Ok(workspace) if workspace.released && !workspace.is_transaction() => {}
                Ok(workspace) => all.push(workspace),
                Err(WorkspaceFault::Unknown(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(all)
    }

    /// One workspace.
    pub fn get(&self, id: &WorkspaceId) -> Result<ManagedWorkspace> {
        self.read_workspace(id).map_err(|fault| fault.during("find the workspace"))
    }

    /// Reads a manifest without its lock: it is always whole.
    fn read_workspace(&self, id: &WorkspaceId) -> FaultResult<ManagedWorkspace> {
        let entry = self.0.store.peek(id);
        let manifest = entry.manifest(id)?;
        entry.workspace(manifest)
    }

    /// What was changed in a workspace, with digests of the new contents. The work is proportional to
    /// that, unless it is a copy.
    pub fn diff(&self, id: &WorkspaceId) -> Result<Diff> {
        let found = self
            .open_workspace(id, Sharing::Shared)
            .and_then(|at| scan_changes(&at.entry, &at.lower, &at.layer, Contents::Digested));
        found.map_err(|fault| fault.during("diff"))
    }

    /// What was changed, as unified text. It holds any bytes that the guest wrote: show it on a terminal
    /// only by way of [`printable`](crate::printable).
    pub fn patch(&self, id: &WorkspaceId) -> Result<String> {
        let text = self.open_workspace(id, Sharing::Shared).and_then(|at| {
            let diff = scan_changes(&at.entry, &at.lower, &at.layer, Contents::Compared)?;
            format_patch(&diff, &at.lower, &at.layer)
        });
        text.map_err(|fault| fault.during("diff"))
    }

    /// The text of changes that were looked at before. If a content is not the one that the diff has
    /// the digest of, it is an error: what a person reads is what an `apply` of the diff takes (C-23).
    pub fn patch_of(&self, id: &WorkspaceId, diff: &Diff) -> Result<String> {
        let text = self
            .open_workspace(id, Sharing::Shared)
            .and_then(|at| format_patch(diff, &at.lower, &at.layer));
        text.map_err(|fault| fault.during("diff"))
    }

    /// Puts a workspace's changes into its tree, or into another: all that are not held back, or
    /// none.
    ///
    /// - A path that is not what it was when the workspace began is a conflict, and nothing is done.
    /// - If this process is killed, the next one to open the workspaces brings the tree back to what
    ///   it was, unless all was done.
    /// - A workspace that was released and has nothing left to apply is removed.
    pub fn apply(&self, id: &WorkspaceId, options: &ApplyOptions) -> Result<Application> {
        self.applied(id, options).map_err(|fault| fault.during("apply"))
    }

    fn applied(&self, id: &WorkspaceId, options: &ApplyOptions) -> FaultResult<Application> {
        let at = self.open_workspace(id, Sharing::Exclusive)?;
        let elsewhere = self.open_target(&at.manifest, options)?;
        let target = elsewhere.as_ref().unwrap_or(&at.lower);
        let contents = match options.seen {
            Some(_) => Contents::Digested,
            None => Contents::Compared,
        };
        let all = scan_layer(&at.lower, &at.layer, contents)?;
        let found = all.changes.len();
        let diff = leave_out_applied(&at.entry, &at.layer, all)?;
        // The user may have undone what was applied: then only the layer has it.
        let is_whole = diff.changes.len() == found;
        if options.seen.as_ref().is_some_and(|seen| *seen != diff) {
            return Err(WorkspaceFault::changed_meanwhile(id));
        }
        let trees = Trees {
            lower: &at.lower,
            layer: &at.layer,
            target,
            elsewhere: elsewhere.is_some(),
            // Only this crate writes to a checkout.
            start: (at.manifest.kind != Kind::Git).then_some(at.manifest.start),
            settled: at.entry.ledger().settled()?,
            bases: at.entry.ledger().bases(),
        };
        let done = apply::apply_diff(&trees, &diff, &options.include, &at.entry.ledger())?;
        if let Application::Applied(applied) = &done
            && applied.held.is_empty()
            && is_whole
            && at.manifest.released
        {
            self.0.store.remove(id, &at.entry)?;
        }
        Ok(done)
    }

    /// The tree to change, where it is another than the one beneath.
    fn open_target(
        &self,
        manifest: &WorkspaceManifest,
        options: &ApplyOptions,
    ) -> FaultResult<Option<OpenTree>> {
        let refused =
            |path: String, problem, remedy| Err(WorkspaceFault::Refused { path, problem, remedy });
        let Some(to) = &options.to else {
            return match manifest.kind {
                Kind::Git => refused(
                    manifest.id.to_string(),
                    "is a checkout, which has no tree of yours beneath",
                    "name the tree to change with --to DIR",
                ),
                Kind::Overlay | Kind::Local | Kind::Ephemeral => Ok(None),
            };
        };
        let real = to.canonicalize().step("find", to.display())?;
        let state = self.0.store.0.path().parent().unwrap_or(Path::new("/")).to_owned();
        if real.starts_with(&state) {
            return refused(
                real.display().to_string(),
                "is in the state directory",
                "name a tree of yours",
            );
        }
        Ok(Some(open_tree(&real)?).filter(|_| real != manifest.source.as_path()))
    }

    /// Throws a workspace's changes away. One that is not there is an error.
    pub fn discard(&self, id: &WorkspaceId) -> Result<()> {
        self.discard_workspace(id).map_err(|fault| fault.during("discard"))?
    }

    fn discard_workspace(&self, id: &WorkspaceId) -> FaultResult<Result<()>> {
        let entry = self.0.store.enter(id, Sharing::Exclusive)?;
        let released = entry.manifest(id).map(|manifest| manifest.released);
        if let Err(fault @ WorkspaceFault::Unknown(_)) = released {
            return Err(fault);
        }
        // What cannot be recovered must not keep its workspace for ever.
        let _ = apply::recover_apply(&entry.ledger());
        self.0.store.remove(id, &entry)?;
        self.0.owned.forget(id);
        Ok(if matches!(released, Ok(true)) { Ok(()) } else { self.record_release(id) })
    }

    /// A second workspace that begins where this one stands.
    pub fn fork(&self, id: &WorkspaceId) -> Result<ManagedWorkspace> {
        const FORK_OPERATION: &str = "fork";
        let made = self
            .open_workspace(id, Sharing::Shared)
            .and_then(|at| acquire::fork_workspace(&self.0.store, &at.entry, &at.manifest));
        self.handed_out(made.map_err(|fault| fault.during(FORK_OPERATION))?, FORK_OPERATION)
    }

    /// How much an ephemeral workspace's own directory holds. More than it may is an error.
    pub fn measure(&self, id: &WorkspaceId) -> Result<Bytes> {
        const MEASURE_OPERATION: &str = "measure the workspace";
        let measured =
            self.measure_workspace(id).map_err(|fault| fault.during(MEASURE_OPERATION))?;
        match measured {
            (held, Some(most)) if held > most => {
                let message = format!("the workspace holds {held} of at most {most}");
                Err(Error::new(ErrorCode::TooLarge, MEASURE_OPERATION, message)
                    .remedy("remove something"))
            }
            (held, _) => Ok(held),
        }
    }

    fn measure_workspace(&self, id: &WorkspaceId) -> FaultResult<(Bytes, Option<Bytes>)> {
        let entry = self.0.store.peek(id);
        let manifest = entry.manifest(id)?;
        let mut blocks = 0;
        visit_tree(&open_tree(manifest.source.as_path())?, &TreePath::root(), |_, stat| {
            blocks += stat.st_blocks as u64;
            Ok(())
        })?;
        Ok((Bytes(blocks * 512), manifest.most))
    }

    /// A transaction with its trees, whole again if an `apply` was cut off.
    fn open_workspace(&self, id: &WorkspaceId, sharing: Sharing) -> FaultResult<OpenedWorkspace> {
        let mut entry = self.0.store.enter(id, sharing)?;
        if entry.ledger().read()?.is_some() {
            drop(entry);
            entry = self.0.store.enter(id, Sharing::Exclusive)?;
            apply::recover_apply(&entry.ledger())?;
        }
        let manifest = entry.manifest(id)?;
        match manifest.kind {
            Kind::Overlay | Kind::Git => {}
            Kind::Local | Kind::Ephemeral => {
                return Err(WorkspaceFault::Refused {
                    path: id.to_string(),
                    problem: "is neither an overlay nor a git workspace",
                    remedy: "use an overlay or a git workspace",
                });
            }
        }
        let lower = open_tree(manifest.source.as_path())?;
        let layer = entry.layer(&manifest)?;
        Ok(OpenedWorkspace { entry, manifest, lower, layer })
    }

    /// Removes checkouts of repositories that no workspace is a view of, if no request has named them
    /// within this time, an hour at least; answers how many.
    pub fn prune(&self, unused: Duration) -> Result<usize> {
        let prune = || -> FaultResult<usize> {
            let mut viewed = BTreeSet::new();
            for id in self.0.store.ids()? {
                match self.0.store.peek(&id).manifest(&id) {
                    Ok(manifest) => drop(viewed.insert(manifest.source.as_path().to_owned())),
                    Err(WorkspaceFault::Unknown(_)) => {}
                    Err(fault) => return Err(fault),
                }
            }
            git::prune_checkouts(&self.0.stores, &viewed, unused)
        };
        prune().map_err(|fault| fault.during("prune"))
    }

    fn acquire_now(&self, request: Request) -> Result<ManagedWorkspace> {
        const ACQUIRE_OPERATION: &str = "acquire the workspace";
        if let Hint::Git { .. } = &request.hint {
            // What cannot be removed is no reason not to work.
            let _ = self.prune(UNUSED_CHECKOUT_AGE);
        }
        let made = acquire::acquire_workspace(&self.0.store, &self.0.stores, request);
        self.handed_out(made.map_err(|fault| fault.during(ACQUIRE_OPERATION))?, ACQUIRE_OPERATION)
    }

    /// Records a workspace and hands it out. What cannot be recorded is not handed out.
    fn handed_out(
        &self,
        made: AcquiredWorkspace,
        operation: &'static str,
    ) -> Result<ManagedWorkspace> {
        let AcquiredWorkspace { entry, manifest, fresh, owner } = made;
        let root = manifest.metadata.get("git.remote").filter(|_| manifest.kind == Kind::Git);
        let root = root.cloned().unwrap_or_else(|| manifest.source.to_string());
        let kind = manifest.kind.to_string();
        let recorded = self.0.journal.record_acquired(&manifest.id, &kind, &manifest.tenant, &root);
        if let Err(error) = recorded {
            if fresh {
                let _ = self.0.store.remove(&manifest.id, &entry);
            }
            return Err(error);
        }
        self.0.owned.note(&manifest.id, owner);
        entry.workspace(manifest).map_err(|fault| fault.during(operation))
    }

    pub(crate) fn release_now(&self, id: &WorkspaceId) -> Result<()> {
        let gone = self.let_go(id);
        self.0.owned.forget(id);
        match gone {
            Ok(true) => self.record_release(id),
            Ok(false) | Err(WorkspaceFault::Unknown(_)) => Ok(()),
            Err(fault) => Err(fault.during("release the workspace")),
        }
    }

    /// Whether it was in use until now.
    fn let_go(&self, id: &WorkspaceId) -> FaultResult<bool> {
        let entry = self.0.store.enter(id, Sharing::Exclusive)?;
        let mut manifest = entry.manifest(id)?;
        let held = !manifest.released;
        let remove = match manifest.kind {
            Kind::Local => false,
            Kind::Ephemeral => true,
            Kind::Overlay | Kind::Git => is_unchanged(&entry, &manifest),
        };
        if remove {
            self.0.store.remove(id, &entry)?;
        } else if held {
            manifest.released = true;
            entry.save(&manifest)?;
        }
        Ok(held)
    }

    pub(crate) fn record_release(&self, id: &WorkspaceId) -> Result<()> {
        self.0.journal.record_released(id)
    }
}

/// What a guest changed, but for what was applied and it has not touched since.
fn scan_changes(
    entry: &StoreEntry,
    lower: &OpenTree,
    layer: &Layer,
    contents: Contents,
) -> FaultResult<Diff> {
    leave_out_applied(entry, layer, scan_layer(lower, layer, contents)?)
}

fn leave_out_applied(entry: &StoreEntry, layer: &Layer, mut diff: Diff) -> FaultResult<Diff> {
    entry.ledger().settled()?.remove_applied_changes(layer, &mut diff)?;
    Ok(diff)
}

/// Whether there is certainly nothing to keep. Else notes what is beneath the changes, for an `apply` later.
fn is_unchanged(entry: &StoreEntry, manifest: &WorkspaceManifest) -> bool {
    let look = || -> FaultResult<Diff> {
        apply::recover_apply(&entry.ledger())?;
        let lower = open_tree(manifest.source.as_path())?;
        // With what was applied: the user may have undone it, and then only the layer has it.
        let diff = scan_layer(&lower, &entry.layer(manifest)?, Contents::Compared)?;
        // Without a note an `apply` goes by change times, which is never wrong.
        let _ = entry.ledger().note_bases(&lower, &diff, manifest.start);
        Ok(diff)
    };
    look().is_ok_and(|diff| diff.is_empty())
}

impl Workspaces {
    /// Hands out a workspace. Any number of calls may be under way at once.
    pub async fn acquire(&self, request: Request) -> Result<ManagedWorkspace> {
        let this = self.clone();
        let (hand, taken) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            // The caller may have gone away meanwhile: then the workspace has no owner and is released.
            if let Err(Ok(workspace)) = hand.send(this.acquire_now(request)) {
                let _ = this.release_now(&workspace.id);
            }
        });
        taken.await.unwrap_or_else(|gone| Err(cut_off(gone)))
    }

    /// Takes one back. Again, or of one that is not there, is no error.
    ///
    /// - `local`: the directory is left alone.
    /// - `overlay`, `git`: kept while it has changes, until they are applied or discarded.
    /// - `ephemeral`: removed.
    pub async fn release(&self, id: &WorkspaceId) -> Result<()> {
        let (this, id) = (self.clone(), id.clone());
        let done = tokio::task::spawn_blocking(move || this.release_now(&id)).await;
        done.unwrap_or_else(|gone| Err(cut_off(gone)))
    }
}

fn cut_off(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorCode::System, "work on the workspace", "the work was cut off").source(error)
}

impl Workspaces {
    pub(crate) fn directory(&self) -> &Directory {
        &self.0.store.0
    }

    pub(crate) fn store(&self) -> &WorkspaceStore {
        &self.0.store
    }

    pub(crate) fn owned(&self) -> &Owned {
        &self.0.owned
    }

    pub(crate) fn peek(&self, id: &WorkspaceId) -> StoreEntry {
        self.0.store.peek(id)
    }

    /// Where the state is.
    pub fn state_dir(&self) -> PathBuf {
        self.0.store.0.path().parent().unwrap_or(Path::new("/")).to_owned()
    }
}
