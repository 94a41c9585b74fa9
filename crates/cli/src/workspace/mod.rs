//! Workspaces of commands: which one the flags mean, and the guard that holds it for one sandbox.

mod args;
mod directory;
mod guard;
mod handle;

use stockade_core::{Error, ErrorCode, Result, WorkspaceId};
use stockade_engine::Journal;
use stockade_workspaces::{Hold, Workspaces};

use crate::config::Settings;

pub use args::{Configured, GitArg, WantedWorkspace};
pub use directory::{AskedWorkspace, check_views, refuse_state, resolve_workspace};
pub use guard::{
    SettledWorkspace, WorkspaceGuard, WorkspaceSummary, build_view_source, take_view,
    take_view_ahead,
};
pub use handle::WorkspaceHandle;

/// The right to a workspace that no sandbox has.
pub fn claim_workspace(
    workspaces: &Workspaces,
    id: &WorkspaceId,
    operation: &'static str,
    remedy: &str,
) -> Result<Hold> {
    workspaces.claim(id)?.ok_or_else(|| {
        let message = format!("a sandbox has workspace {id}");
        Error::new(ErrorCode::Denied, operation, message).remedy(remedy)
    })
}

/// The workspaces of this user. Opening them repairs what a dead process left half done.
pub fn open_workspaces(settings: &Settings) -> Result<Workspaces> {
    let state = settings.state_dir()?;
    let journal = Journal::open_in(&state, settings.engine()?.journal)?;
    Workspaces::open(state, journal)
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
