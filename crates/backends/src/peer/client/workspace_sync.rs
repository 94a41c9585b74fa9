//! The workspace's two copies and what keeps them the same. Changes that could not be brought back, and
//! conflicts of changes on both sides, are remembered until they have been reported.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use stockade_core::{Error, ErrorCode, Result};

use super::connection::{PeerLink, Turn, WorkspaceTree};
use super::lock;
use crate::peer::protocol::{PeerEvent, RemoteRequest};
use crate::peer::tree::{Conflict, Tree, TreeError};

/// The workspace's two copies.
pub(crate) struct WorkspaceSync {
    link: RwLock<Arc<PeerLink>>,
    /// The caller's own directory, if the workspace is one.
    tree: Option<WorkspaceTree>,
    /// Whether what the guest changes comes back.
    writable: bool,
    untold: Mutex<Untold>,
}

/// Errors and conflicts that have not been reported yet.
#[derive(Default)]
struct Untold {
    conflicts: BTreeSet<String>,
    /// Why the copies are not the same, and will not be any more.
    parted: Option<Error>,
    /// Whether an execution's end has said so.
    told: bool,
}

impl WorkspaceSync {
    pub fn new(link: Arc<PeerLink>, tree: Option<WorkspaceTree>, writable: bool) -> Self {
        Self { link: RwLock::new(link), tree, writable, untold: Mutex::default() }
    }

    /// The connection.
    pub fn link(&self) -> Arc<PeerLink> {
        Arc::clone(&self.link.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins to ask, over the connection that there is when it can.
    pub async fn take_turn(&self) -> Turn {
        loop {
            let turn = self.link().take_turn().await;
            // Another may have taken its place meanwhile.
            if Arc::ptr_eq(turn.link(), &self.link()) {
                return turn;
            }
        }
    }

    /// Continues over another connection. Callers that wait for their turn get it there, and not before the
    /// copies have been synchronized again.
    pub async fn replace_link(&self, before: Turn, link: Arc<PeerLink>) -> Result<()> {
        let first = link.take_turn().await;
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = link;
        drop(before);
        self.meet_again(first).await
    }

    /// Whether the peer has a copy of something that is here too.
    pub fn is_shared(&self) -> bool {
        self.tree.is_some()
    }

    /// The caller's own directory, if anything comes back to it.
    fn returning_tree(&self) -> Option<&WorkspaceTree> {
        self.tree.as_ref().filter(|_| self.writable)
    }

    fn note_conflicts(&self, found: impl IntoIterator<Item = String>) {
        lock(&self.untold).conflicts.extend(found);
    }

    /// The copies are no longer the same, and nothing more can come back.
    pub fn mark_parted(&self, error: Error) {
        if self.returning_tree().is_some() {
            lock(&self.untold).parted.get_or_insert(error);
        }
    }

    /// Whether the copies can still be made the same.
    pub fn check_together(&self) -> Result<()> {
        lock(&self.untold).parted.clone().map_or(Ok(()), Err)
    }

    /// An execution was reported as lost: its caller knows.
    pub fn mark_told(&self) {
        lock(&self.untold).told = true;
    }

    /// Reports what has not been reported yet, once.
    pub fn report_conflicts(&self) -> Result<()> {
        let Untold { conflicts, parted, told } = std::mem::take(&mut *lock(&self.untold));
        match parted.filter(|_| !told) {
            Some(error) => {
                let message = format!("not all changes were copied back: {}", error.message());
                Err(self.link().peer().error(error.code(), "destroy", message).source(error))
            }
            None => self.check_no_conflicts(&conflicts),
        }
    }

    /// Waits until no thread writes to the caller's directory any more. The connection is closed.
    pub async fn wait_until_still(&self) {
        if let Some(tree) = self.tree.clone() {
            let _ = tokio::task::spawn_blocking(move || drop(lock(&tree))).await;
        }
    }

    /// Asks, and takes the guest's changes over.
    pub async fn ask(&self, operation: &'static str, ask: &RemoteRequest) -> Result<PeerEvent> {
        let turn = self.take_turn().await;
        self.ask_in(turn, operation, ask).await
    }

    /// The same, for a caller that already has the turn.
    pub async fn ask_in(
        &self,
        turn: Turn,
        operation: &'static str,
        ask: &RemoteRequest,
    ) -> Result<PeerEvent> {
        let (tell, taken) = turn.ask(operation, ask, self.returning_tree()).await?;
        match taken {
            Ok(conflicts) => {
                self.note_conflicts(conflicts.into_iter().map(|conflict| conflict.path))
            }
            // The peer takes it for done, and would not send it again.
            Err(error) => self.mark_parted(error),
        }
        Ok(tell)
    }

    /// Sends what has changed here meanwhile.
    pub async fn push_changes(&self) -> Result<()> {
        self.check_together()?;
        let Some(tree) = &self.tree else { return Ok(()) };
        let mut turn = self.take_turn().await;
        if !turn.send_tree(tree).await? {
            return Ok(());
        }
        let (tell, _) = turn.ask("copy the workspace", &RemoteRequest::Push, None).await?;
        match tell {
            // What had changed there too comes back with the next command, and stays as it is here.
            PeerEvent::Done { conflicts } => self.note_conflicts(lock(tree).agreed(&conflicts)),
            PeerEvent::Judged(_) | PeerEvent::Failed(_) | PeerEvent::Kill { .. } => {}
        }
        Ok(())
    }

    /// Takes over what has changed there.
    pub async fn pull_changes(&self) -> Result<()> {
        if self.returning_tree().is_none() {
            return Ok(());
        }
        let turn = self.take_turn().await;
        self.pull_in(turn).await
    }

    async fn pull_in(&self, turn: Turn) -> Result<()> {
        self.ask_in(turn, "copy the workspace", &RemoteRequest::Pull).await?;
        self.check_together()
    }

    /// The peer is a copy that nothing is known of: what can be written becomes as it is there, and
    /// what cannot stays as it is here.
    pub async fn meet_again(&self, turn: Turn) -> Result<()> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        if !self.writable {
            lock(&tree).forget();
            return Ok(());
        }
        self.check_together()?;
        self.run_on_tree(tree.clone(), |tree| tree.give_way().map(|()| Vec::new())).await?;
        self.pull_in(turn).await?;
        // Nothing came: there is nothing.
        let empty = |tree: &mut Tree| match tree.gives_way() {
            true => tree.take(std::io::empty()),
            false => Ok(Vec::new()),
        };
        self.run_on_tree(tree, empty).await
    }

    /// Works on the caller's directory, in a thread that may wait for it.
    async fn run_on_tree(
        &self,
        tree: WorkspaceTree,
        work: impl FnOnce(&mut Tree) -> Result<Vec<Conflict>, TreeError> + Send + 'static,
    ) -> Result<()> {
        let worked = tokio::task::spawn_blocking(move || work(&mut lock(&tree))).await;
        let failed = |message: String| {
            self.link().peer().error(ErrorCode::Denied, "copy the workspace", message)
        };
        let worked = worked.map_err(|error| failed(error.to_string()))?;
        let conflicts = worked.map_err(|error| failed(error.to_string()))?;
        self.note_conflicts(conflicts.into_iter().map(|conflict| conflict.path));
        Ok(())
    }

    fn check_no_conflicts(&self, conflicts: &BTreeSet<String>) -> Result<()> {
        if conflicts.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = conflicts.iter().take(10).map(|path| format!("`{path}`")).collect();
        let more = if conflicts.len() > named.len() { " and others" } else { "" };
        let message = format!(
            "changed here and in the sandbox, and left as here: {}{more}",
            named.join(", ")
        );
        let error = self.link().peer().error(ErrorCode::Denied, "destroy", message);
        Err(error.remedy("do not change files that a sandbox works on a copy of"))
    }
}
