//! Captured states: taken of a live sandbox, brought back in place, and made into further sandboxes.
//! Each runs to its end in a task of its own, whether or not its caller waits.

use std::path::Path;
use std::sync::Arc;

use stockade_core::{
    BackendChoice, Command, Error, ErrorCode, Feature, RenewalCause, Result, SandboxId,
    SandboxPath, SandboxSpec, SnapshotFiles, SnapshotId, SnapshotKind, Workspace,
};

use crate::engine::{Engine, EngineInner};
use crate::execution::Execution;
use crate::history::Subscription;
use crate::host_views::WorkspaceBy;
use crate::journal::Event;
use crate::lifecycle::{
    CAPTURE_TIMEOUT, Origin, RunningSandbox, SandboxOrder, in_a_task, too_slow,
};
use crate::pipeline::follow_from_start;
use crate::quota::check_copied_executions;
use crate::request::SandboxRequest;
use crate::snapshots::{Snapshot, Snapshots};
use crate::workspace_guard::WorkspaceGuard;

/// Copies that a fork makes at the same time: more would only wait for each other.
pub const FORK_CONCURRENCY: usize = 8;
/// Copies of one fork: more than is ever intended.
pub const MAX_FORK_COPIES: u16 = 1000;

impl Engine {
    /// The stored snapshots of every engine that shares this state directory.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.inner.snapshots
    }

    /// Captures the state of a live sandbox, which goes on meanwhile, and stores it.
    pub async fn snapshot(&self, id: &SandboxId, kind: SnapshotKind) -> Result<Snapshot> {
        let live = self.inner.live(id)?;
        let inner = Arc::clone(&self.inner);
        in_a_task(async move { inner.capture_sandbox(&live, kind).await }).await
    }

    /// Writes the tree at a path of a live sandbox, which goes on meanwhile, as a tar archive into a new file, refused
    /// where it has more than `most` bytes. What the archive says is guest input.
    pub async fn archive_tree(
        &self,
        id: &SandboxId,
        path: &SandboxPath,
        into: &Path,
        most: u64,
    ) -> Result<()> {
        let live = self.inner.live(id)?;
        let archived =
            tokio::time::timeout(CAPTURE_TIMEOUT, live.sandbox.archive_tree(path, into, most));
        archived.await.unwrap_or_else(|_| Err(too_slow("archive", live.order.backend.as_ref())))
    }

    /// Brings a captured state back into a live sandbox of the same kind.
    pub async fn restore(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<()> {
        let live = self.inner.live(id)?;
        let stored = self.inner.snapshots.get(snapshot)?;
        same_backend(&stored, live.order.admitted.backend().as_str())?;
        let inner = Arc::clone(&self.inner);
        in_a_task(async move {
            let parts = inner.read_checked_parts(&stored).await?;
            let sandbox = live.sandbox.id().clone();
            inner.record(Event::Restored { sandbox, snapshot: stored.id }).await?;
            live.mark_secrets_stale(RenewalCause::Restored);
            let restored =
                tokio::time::timeout(CAPTURE_TIMEOUT, live.sandbox.restore(&parts)).await;
            restored.unwrap_or_else(|_| Err(too_slow("restore", live.order.backend.as_ref())))?;
            match parts.kind {
                SnapshotKind::Files => live.restore_bundle().await,
                // Addresses that were invented belong to the state that is gone.
                SnapshotKind::Full => Box::pin(inner.reopen_network(&live)).await,
            }
        })
        .await
    }

    /// Builds a sandbox that starts with a captured state. What the spec leaves to automatic choice is
    /// taken from where the state was captured.
    pub async fn create_from(&self, snapshot: &SnapshotId, spec: SandboxSpec) -> Result<SandboxId> {
        let from = Some(snapshot.clone());
        let request = SandboxRequest { from, ..SandboxRequest::from(spec) };
        Arc::clone(&self.inner).create(request).await
    }

    /// Runs a command in a sandbox of its own that starts with a captured state, with a follower who is
    /// there from the first byte on.
    pub async fn run_from_followed(
        &self,
        snapshot: &SnapshotId,
        spec: SandboxSpec,
        command: Command,
    ) -> Result<(Execution, Subscription)> {
        let from = Some(snapshot.clone());
        let request = SandboxRequest { from, ..SandboxRequest::from(spec) };
        Arc::clone(&self.inner).run_once(request, command, follow_from_start).await
    }

    /// Makes this many copies of a live sandbox, memory and all where its backend can. Each has a
    /// workspace of its own with the same content; the one that is copied goes on. All or none.
    pub async fn fork(&self, id: &SandboxId, count: usize) -> Result<Vec<SandboxId>> {
        if !(1..=usize::from(MAX_FORK_COPIES)).contains(&count) {
            let message =
                format!("between 1 and {MAX_FORK_COPIES} copies can be made, not {count}");
            return Err(Error::new(ErrorCode::Invalid, "fork", message));
        }
        let live = self.inner.live(id)?;
        live.check_copyable()?;
        let spec = spec_of_a_copy(&live.current_spec());
        let by = live.order.workspace_by;
        let (engine, of) = (self.clone(), live.order.admitted.backend().clone());
        in_a_task(async move {
            let kind = engine.inner.find_fullest_kind(&of).await;
            engine.inner.check_copied_programs(&live, kind, count)?;
            let snapshot = engine.inner.capture_sandbox(&live, kind).await?;
            let transient = engine.inner.snapshots.hold_transient(snapshot)?;
            let copies = engine.make_copies(transient.snapshot(), (&spec, by), count).await?;
            transient.end().map(|()| copies)
        })
        .await
    }

    async fn make_copies(
        &self,
        snapshot: &Snapshot,
        (spec, workspace_by): (&SandboxSpec, WorkspaceBy),
        count: usize,
    ) -> Result<Vec<SandboxId>> {
        let origin = self.inner.read_origin(snapshot).await?;
        let (mut made, mut failed) = (Vec::new(), None);
        let mut making = tokio::task::JoinSet::new();
        let mut begun = 0;
        while failed.is_none() && made.len() < count {
            while begun < count && making.len() < FORK_CONCURRENCY {
                let (engine, origin) = (self.clone(), origin.clone());
                let (snapshot, spec) = (snapshot.clone(), spec.clone());
                making.spawn(async move {
                    let order =
                        engine.inner.admit_restored(&snapshot, spec, workspace_by, None).await?;
                    let order = order.beginning_with(origin);
                    let workspace = WorkspaceGuard::none(&engine.inner);
                    Arc::clone(&engine.inner).create_admitted(order, workspace).await
                });
                begun += 1;
            }
            record_copy_result(making.join_next().await, &mut made, &mut failed);
        }
        while let Some(last) = making.join_next().await {
            record_copy_result(Some(last), &mut made, &mut failed);
        }
        let Some(error) = failed else { return Ok(made) };
        for id in made {
            self.destroy(&id).await?;
        }
        Err(error)
    }
}

type MadeCopy = Result<Result<SandboxId>, tokio::task::JoinError>;

fn record_copy_result(
    one: Option<MadeCopy>,
    made: &mut Vec<SandboxId>,
    failed: &mut Option<Error>,
) {
    match one {
        Some(Ok(Ok(id))) => made.push(id),
        Some(Ok(Err(error))) => *failed = Some(error),
        Some(Err(_)) | None => {
            *failed = Some(Error::new(ErrorCode::System, "fork", "a copy was not finished"));
        }
    }
}

impl EngineInner {
    /// Admits what is to be built where a snapshot goes on, before that is read.
    pub(crate) async fn admit_restored(
        &self,
        stored: &Snapshot,
        mut spec: SandboxSpec,
        workspace_by: WorkspaceBy,
        command: Option<&Command>,
    ) -> Result<SandboxOrder> {
        if spec.backend == BackendChoice::Auto {
            spec.backend = BackendChoice::Named(stored.backend.clone());
        }
        if let BackendChoice::Named(name) = &spec.backend {
            same_backend(stored, name.as_str())?;
        }
        stored.fits_this_host()?;
        self.admit_spec(&spec, workspace_by, command).await
    }

    /// Refuses copies that can never have all programs of their original. What the tenant runs elsewhere is counted when
    /// each copy is made.
    fn check_copied_programs(
        &self,
        live: &RunningSandbox,
        kind: SnapshotKind,
        copies: usize,
    ) -> Result<()> {
        let tenant = &live.order.admitted.spec().tenant;
        let running = match kind {
            SnapshotKind::Files => 0,
            SnapshotKind::Full => live.executions().iter().filter(|it| !it.is_finished()).count(),
        };
        check_copied_executions(tenant, self.quota(tenant), running, copies)
    }

    async fn capture_sandbox(&self, live: &RunningSandbox, kind: SnapshotKind) -> Result<Snapshot> {
        let store = Arc::clone(&self.snapshots);
        let draft = store.draft()?;
        let captured =
            tokio::time::timeout(CAPTURE_TIMEOUT, live.sandbox.snapshot(kind, &draft.parts()))
                .await;
        captured.unwrap_or_else(|_| Err(too_slow("snapshot", live.order.backend.as_ref())))?;
        let admitted = &live.order.admitted;
        let walls = (admitted.backend().clone(), admitted.boundary());
        let spec = live.current_spec();
        let stored = run_blocking(move || store.store(&draft, kind, walls, &spec)).await?;
        let sandbox = live.sandbox.id().clone();
        let snapshot = stored.id.clone();
        self.record(Event::Captured { sandbox, snapshot, what: kind }).await?;
        Ok(stored)
    }

    /// The parts of a snapshot, each byte of which was found right.
    async fn read_checked_parts(&self, snapshot: &Snapshot) -> Result<SnapshotFiles> {
        let (store, snapshot) = (Arc::clone(&self.snapshots), snapshot.clone());
        run_blocking(move || store.parts(&snapshot)).await
    }

    pub(crate) async fn read_origin(&self, stored: &Snapshot) -> Result<Origin> {
        let parts = Arc::new(self.read_checked_parts(stored).await?);
        Ok(Origin { snapshot: stored.id.clone(), parts })
    }

    async fn find_fullest_kind(&self, backend: &stockade_core::BackendName) -> SnapshotKind {
        let measured = self.registry.capabilities(backend).await;
        let full = measured.is_some_and(|it| it.has(Feature::FullSnapshot));
        if full { SnapshotKind::Full } else { SnapshotKind::Files }
    }
}

/// Work on files that may take a while.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|join| {
        Err(Error::new(ErrorCode::System, "snapshot", "the work on files ended").source(join))
    })
}

/// Files are the same everywhere; memory is not.
fn same_backend(snapshot: &Snapshot, backend: &str) -> Result<()> {
    if snapshot.kind == SnapshotKind::Files || snapshot.backend.as_str() == backend {
        return Ok(());
    }
    let message = format!(
        "the memory in it was captured by backend `{}`; `{backend}` cannot continue it",
        snapshot.backend
    );
    Err(Error::new(ErrorCode::Unsupported, "restore", message)
        .remedy(format!("use backend `{}`", snapshot.backend)))
}

/// What a copy of a sandbox is asked to be: what can be written to is not shared.
pub fn spec_of_a_copy(spec: &SandboxSpec) -> SandboxSpec {
    let mut copy = spec.clone();
    if !spec.read_only {
        copy.workspace = Workspace::Ephemeral;
        copy.make_git_read_only();
    }
    copy
}

#[cfg(test)]
mod tests {
    use stockade_core::{HostTree, Mount};

    use super::*;

    #[test]
    fn a_copy_writes_to_no_repository_of_the_original() {
        let tree = |part_of: &str| {
            let (source, target) = ("/srv/x".parse().unwrap(), "/srv/x".parse().unwrap());
            let mount = Mount { source, target, read_only: false };
            HostTree { part_of: part_of.into(), mount, required: false }
        };
        let trees = vec![tree(HostTree::GIT_PART), tree(HostTree::CACHE_PART)];
        let copy = spec_of_a_copy(&SandboxSpec { trees, ..SandboxSpec::default() });
        let read_only: Vec<_> = copy.trees.iter().map(|tree| tree.mount.read_only).collect();
        assert_eq!(read_only, [true, false]);
    }
}
