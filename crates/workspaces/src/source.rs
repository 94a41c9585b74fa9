//! Where the sandboxes of one front end get their workspaces from. An engine acquires each before it builds walls,
//! and releases it when they are gone; one that has changes then is kept until they are applied or discarded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use stockade_core::{
    Error, ErrorCode, HeldWorkspace, Result, Workspace as SpecWorkspace, WorkspaceId,
    WorkspaceSource,
};
use tokio::sync::OnceCell;

use crate::diff::Diff;
use crate::live::Hold;
use crate::request::{ManagedWorkspace, Request};
use crate::workspaces::Workspaces;

/// Which workspace a sandbox gets.
#[derive(Debug, Clone)]
pub enum WorkspaceOrigin {
    /// A new one each time.
    Fresh(Request),
    /// This one.
    Kept(WorkspaceId),
    /// This one, where no other sandbox has it; further sandboxes begin where it stands.
    KeptOrForked(WorkspaceId),
}

/// Hands workspaces out to sandboxes, and remembers which. Clones are the same.
#[derive(Debug, Clone)]
pub struct SandboxWorkspaces {
    workspaces: Workspaces,
    origin: WorkspaceOrigin,
    compared: bool,
    loans: Arc<Mutex<BTreeMap<WorkspaceId, Arc<WorkspaceLoan>>>>,
}

/// A workspace that a sandbox has or had.
#[derive(Debug)]
pub struct WorkspaceLoan {
    workspaces: Workspaces,
    workspace: ManagedWorkspace,
    /// Where the backend does not say for itself that it is in use.
    hold: Mutex<Option<Hold>>,
    compared: bool,
    changes: OnceLock<Result<Diff>>,
    released: OnceCell<Result<()>>,
}

impl SandboxWorkspaces {
    /// Workspaces that are kept there, of this origin.
    pub fn new(workspaces: Workspaces, origin: WorkspaceOrigin) -> Self {
        Self { workspaces, origin, compared: false, loans: Arc::default() }
    }

    /// The same, where the changes of each workspace are read before it is released: one without changes is
    /// removed then.
    #[must_use]
    pub fn compared(self) -> Self {
        Self { compared: true, ..self }
    }

    /// Which workspace a sandbox gets.
    pub fn origin(&self) -> &WorkspaceOrigin {
        &self.origin
    }

    /// Where they are kept.
    pub fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    /// Those that were handed out, in the order of their ids. One that was removed again is there until the
    /// next is handed out.
    pub fn loans(&self) -> Vec<Arc<WorkspaceLoan>> {
        self.lock_loans().values().cloned().collect()
    }

    /// Those that were handed out and are still there: in use, or kept for their changes.
    pub fn left(&self) -> Vec<WorkspaceId> {
        let ids: Vec<_> = self.lock_loans().keys().cloned().collect();
        ids.into_iter().filter(|id| self.workspaces.get(id).is_ok()).collect()
    }

    fn lock_loans(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Arc<WorkspaceLoan>>> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_workspace(&self) -> Result<ManagedWorkspace> {
        match &self.origin {
            WorkspaceOrigin::Fresh(request) => self.workspaces.acquire(request.clone()).await,
            WorkspaceOrigin::Kept(id) => self.workspaces.get(id),
            WorkspaceOrigin::KeptOrForked(id) => {
                let (workspaces, id) = (self.workspaces.clone(), id.clone());
                off_thread(move || match workspaces.claim(&id)? {
                    Some(_) => workspaces.get(&id),
                    None => workspaces.fork(&id),
                })
                .await
            }
        }
    }

    /// Remembers a loan. Those that went again, having no changes, are forgotten.
    fn note_loan(&self, loan: &Arc<WorkspaceLoan>) {
        let mut loans = self.lock_loans();
        loans.retain(|id, _| self.workspaces.get(id).is_ok());
        loans.insert(loan.workspace.id.clone(), Arc::clone(loan));
    }
}

#[async_trait]
impl WorkspaceSource for SandboxWorkspaces {
    async fn acquire(&self) -> Result<Arc<dyn HeldWorkspace>> {
        let workspace = self.take_workspace().await?;
        let loan = Arc::new(WorkspaceLoan {
            workspaces: self.workspaces.clone(),
            workspace,
            hold: Mutex::default(),
            compared: self.compared,
            changes: OnceLock::new(),
            released: OnceCell::new(),
        });
        self.note_loan(&loan);
        *loan.lock_hold() = self.workspaces.hold(&loan.workspace.id)?;
        Ok(loan)
    }
}

impl WorkspaceLoan {
    /// The workspace.
    pub fn workspace(&self) -> &ManagedWorkspace {
        &self.workspace
    }

    /// What was changed in it when it was released, where that was to be read.
    pub fn changes(&self) -> Option<&Result<Diff>> {
        self.changes.get()
    }

    fn lock_hold(&self) -> MutexGuard<'_, Option<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn give_back(&self) -> Result<()> {
        if self.compared {
            let (workspaces, id) = (self.workspaces.clone(), self.workspace.id.clone());
            let _ = self.changes.set(off_thread(move || workspaces.diff(&id)).await);
        }
        drop(self.lock_hold().take());
        self.workspaces.release(&self.workspace.id).await
    }
}

#[async_trait]
impl HeldWorkspace for WorkspaceLoan {
    fn id(&self) -> &WorkspaceId {
        &self.workspace.id
    }

    fn spec(&self) -> SpecWorkspace {
        self.workspace.spec()
    }

    /// Once only: by then another sandbox may have it.
    async fn release(&self) -> Result<()> {
        self.released.get_or_init(|| self.give_back()).await.clone()
    }
}

/// Runs blocking disk work on a thread for it, so that it holds up no other task.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        let message = "the work on the workspace was cut off";
        Err(Error::new(ErrorCode::System, "workspace", message).source(error))
    })
}
