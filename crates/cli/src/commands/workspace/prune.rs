//! `stockade workspace prune`: removes checkouts of repositories that are not in use.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use stockade_core::{Result, Span};
use stockade_workspaces::Workspaces;

use crate::terminal::printer::Printer;
use crate::workspace::off_thread;

/// Which of them.
#[derive(Debug, Args)]
pub struct WorkspacePruneArgs {
    /// Only those that were not used within this time, at least an hour. [default: 1h]
    #[arg(long, value_name = "TIME")]
    unused: Option<Span>,
}

/// Removes them, and says how many there were.
pub async fn prune(
    args: WorkspacePruneArgs,
    workspaces: Workspaces,
    printer: &Printer,
) -> Result<i32> {
    let unused = args.unused.map_or(Duration::ZERO, Duration::from);
    let removing = off_thread(move || workspaces.prune(unused));
    let removed = printer.patiently("removing checkouts", removing).await?;
    if printer.is_json() {
        printer.json(&json!({ "checkouts": removed }));
    } else {
        let s = if removed == 1 { "" } else { "s" };
        printer.note(&format!("{removed} checkout{s} removed"));
    }
    Ok(0)
}
