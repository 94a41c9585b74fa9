//! Workspaces whose changes are kept apart: taken for a command, looked at, applied or discarded.
//!
//! Decides nothing about files: what was changed, what is held back and what is in conflict is for the
//! library of workspaces to say.

mod apply;
mod diff;
mod discard;
mod fork;
mod handle;
mod ls;
mod prune;
pub mod review;
mod taken;
mod wanted;

use clap::{Args, Subcommand};
use stockade_core::{Error, ErrorCode, Result};
use stockade_engine::Journal;
use stockade_workspaces::Workspaces;

pub use handle::WorkspaceHandle;
pub use taken::{
    SettledWorkspace, Taken, WorkspaceSummary, build_view_source, take_view, take_view_ahead,
};
pub use wanted::{Configured, GitArg, WantedWorkspace};

use crate::config::Settings;
use crate::printer::Printer;

/// What to do with changes that were kept apart.
#[derive(Debug, Args)]
pub struct WorkspaceArgs {
    #[command(subcommand)]
    verb: WorkspaceVerb,
}

#[derive(Debug, Subcommand)]
enum WorkspaceVerb {
    /// List the workspaces whose changes are kept apart.
    Ls(ls::LsArgs),
    /// Show what was changed in one.
    Diff(diff::DiffArgs),
    /// Put what was changed into the directory it was made from: all of it, or nothing.
    ///
    /// What would make a program of yours run code later is held back unless it is named: hooks,
    /// settings of editors and agents, files of CI, and more.
    Apply(apply::ApplyArgs),
    /// Throw away what was changed.
    Discard(discard::DiscardArgs),
    /// Make a second one that begins where this one stands, and print its id.
    Fork(fork::ForkWorkspaceArgs),
    /// Remove checkouts of repositories that no workspace is a view of.
    Prune(prune::PruneArgs),
}

/// Does what is asked; answers the exit code.
pub async fn workspace(args: WorkspaceArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let workspaces = open_workspaces(&settings)?;
    match args.verb {
        WorkspaceVerb::Ls(args) => ls::ls(&args, workspaces, printer).await,
        WorkspaceVerb::Diff(args) => diff::diff(args, workspaces, printer).await,
        WorkspaceVerb::Apply(args) => apply::apply(args, workspaces, printer).await,
        WorkspaceVerb::Discard(args) => discard::discard(args, workspaces, printer).await,
        WorkspaceVerb::Fork(args) => fork::fork(args, workspaces, printer).await,
        WorkspaceVerb::Prune(args) => prune::prune(args, workspaces, printer).await,
    }
}

/// The workspaces of this user. Opening them repairs what a dead process left half done.
pub fn open_workspaces(settings: &Settings) -> Result<Workspaces> {
    let state = settings.state_dir()?;
    let journal = Journal::open_in(&state, settings.engine()?.journal)?;
    Workspaces::open(state, journal)
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
