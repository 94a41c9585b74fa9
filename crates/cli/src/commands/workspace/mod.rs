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
