//! Workspaces whose changes are kept apart, one for each sandbox, taken before its walls stand and given
//! back after they fell. One that has changes then is kept until they are applied or discarded.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_core::{Error, ErrorCode, Result, SandboxSpec, Workspace, WorkspaceId};
use stockade_workspaces::{
    Application, ApplyOptions, Diff, Hold, Request, Workspace as Taken, Workspaces,
};

/// Where each sandbox gets its view from. Clones are the same.
#[derive(Debug, Clone)]
pub struct Views {
    workspaces: Workspaces,
    source: ViewSource,
    taken: Arc<Mutex<BTreeSet<WorkspaceId>>>,
}

/// What views are of.
#[derive(Debug, Clone)]
pub enum ViewSource {
    /// A new one each time.
    Fresh(Request),
    /// This one; further sandboxes begin where it stands.
    Kept(WorkspaceId),
}

/// The view that a sandbox has.
#[derive(Debug)]
pub(crate) struct WorkspaceView {
    workspaces: Workspaces,
    pub id: WorkspaceId,
    /// Where the backend does not say for itself that it is in use.
    hold: Mutex<Option<Hold>>,
}

impl Views {
    /// Views that are kept there, of this.
    pub fn new(workspaces: Workspaces, source: ViewSource) -> Self {
        Self { workspaces, source, taken: Arc::default() }
    }

    /// Those that were taken and are still there: in use, or kept for their changes.
    pub fn left(&self) -> Vec<WorkspaceId> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.iter().filter(|id| self.workspaces.get(id).is_ok()).cloned().collect()
    }

    /// Takes one and puts it into the spec. Nothing for a spec that wants no view.
    pub(crate) async fn take(&self, spec: &mut SandboxSpec) -> Result<Option<WorkspaceView>> {
        match &spec.workspace {
            Workspace::Overlay(_) => {}
            Workspace::Local(_) | Workspace::Ephemeral => return Ok(None),
        }
        let taken = self.acquire_view().await?;
        self.note_taken(&taken.id);
        spec.workspace = taken.spec();
        let hold = Mutex::new(self.workspaces.hold(&taken.id)?);
        Ok(Some(WorkspaceView { workspaces: self.workspaces.clone(), id: taken.id, hold }))
    }

    /// Those that went again, having no changes, are forgotten.
    fn note_taken(&self, id: &WorkspaceId) {
        let left = self.left();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = left.into_iter().chain([id.clone()]).collect();
    }

    async fn acquire_view(&self) -> Result<Taken> {
        match &self.source {
            ViewSource::Fresh(request) => self.workspaces.acquire(request.clone()).await,
            ViewSource::Kept(id) => {
                let (workspaces, id) = (self.workspaces.clone(), id.clone());
                off_thread(move || match workspaces.claim(&id)? {
                    Some(_) => workspaces.get(&id),
                    None => workspaces.fork(&id),
                })
                .await
            }
        }
    }
}

impl WorkspaceView {
    /// Gives it back. Idempotent.
    pub(crate) async fn give_back(&self) -> Result<()> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.workspaces.release(&self.id).await
    }

    pub(crate) async fn diff(&self) -> Result<Diff> {
        let (workspaces, id) = (self.workspaces.clone(), self.id.clone());
        off_thread(move || workspaces.diff(&id)).await
    }

    pub(crate) async fn patch(&self) -> Result<String> {
        let (workspaces, id) = (self.workspaces.clone(), self.id.clone());
        off_thread(move || workspaces.patch(&id)).await
    }

    pub(crate) async fn apply(&self, options: ApplyOptions) -> Result<Application> {
        let (workspaces, id) = (self.workspaces.clone(), self.id.clone());
        off_thread(move || workspaces.apply(&id, &options)).await
    }
}

/// Runs blocking disk work on a thread for it, so that it holds up no other task.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        let message = "the work on the workspace was cut off";
        Err(Error::new(ErrorCode::System, "workspace", message).source(error))
    })
}
