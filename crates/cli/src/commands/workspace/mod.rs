//! `stockade workspace`: changes that were kept apart are listed, shown, applied or discarded.
//!
//! Decides nothing about files: what was changed, what is held back and what is in conflict is for the
//! library of workspaces to say.

mod apply;
mod diff;
mod discard;
mod fork;
mod ls;
mod prune;
pub mod review;

use clap::{Args, Subcommand};
use stockade_core::Result;

use crate::config::Settings;
use crate::terminal::printer::Printer;
use crate::workspace::open_workspaces;

/// What to do with changes that were kept apart.
#[derive(Debug, Args)]
pub struct WorkspaceArgs {
    #[command(subcommand)]
    verb: WorkspaceVerb,
}

#[derive(Debug, Subcommand)]
enum WorkspaceVerb {
    /// List workspaces with changes.
    Ls(ls::WorkspaceLsArgs),
    /// Show the changes of a workspace.
    Diff(diff::DiffArgs),
    /// Apply the changes to the directory that the workspace was made from, all or nothing.
    ///
    /// Files that would make a program of yours run code later are held back unless they are named: hooks,
    /// settings of editors and agents, CI files, and more.
    Apply(apply::ApplyArgs),
    /// Discard the changes.
    Discard(discard::DiscardArgs),
    /// Copy a workspace with its changes, and print the id of the copy.
    Fork(fork::ForkWorkspaceArgs),
    /// Remove cached git checkouts that no workspace uses.
    Prune(prune::WorkspacePruneArgs),
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
