//! Workspaces of commands: which one the flags mean, and where the engine gets it from.

mod args;
mod directory;
mod handle;
mod source;

use stockade_core::{Error, ErrorCode, Result, WorkspaceId};
use stockade_engine::Journal;
use stockade_workspaces::{Hold, Workspaces};

use crate::config::Settings;

pub use args::{Configured, GitArg, WantedWorkspace};
pub use directory::{AskedWorkspace, check_views, refuse_state, resolve_workspace};
pub use handle::WorkspaceHandle;
pub use source::{
    SettledWorkspace, WorkspaceSummary, acquire_ahead, build_shared_source, build_source,
    describe_wait, reopen_source,
};
pub use stockade_workspaces::off_thread;

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
