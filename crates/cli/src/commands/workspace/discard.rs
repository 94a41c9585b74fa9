//! `stockade workspace discard`: throws away what was changed.

use clap::Args;
use serde_json::json;
use stockade_core::Result;
use stockade_workspaces::Workspaces;

use super::apply::IN_USE;
use crate::terminal::printer::Printer;
use crate::workspace::{WorkspaceHandle, claim_workspace, off_thread};

const DISCARD_OPERATION: &str = "discard";

/// Which to throw away.
#[derive(Debug, Args)]
pub struct DiscardArgs {
    /// The workspaces; the beginning of an id is enough.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<WorkspaceHandle>,
    /// Also while a sandbox has one.
    #[arg(long)]
    force: bool,
}

/// Throws them away, in order, up to the first that cannot be.
pub async fn discard(args: DiscardArgs, workspaces: Workspaces, printer: &Printer) -> Result<i32> {
    let mut discarded = Vec::new();
    for handle in &args.ids {
        let id = handle.find(&workspaces, DISCARD_OPERATION)?;
        let claim = if args.force {
            None
        } else {
            Some(claim_workspace(&workspaces, &id, DISCARD_OPERATION, IN_USE)?)
        };
        let (from, gone) = (workspaces.clone(), id.clone());
        let removing = off_thread(move || from.discard(&gone));
        printer.patiently("removing the changes", removing).await?;
        drop(claim);
        discarded.push(id);
    }
    if printer.is_json() {
        printer.json(&json!({ "discarded": discarded }));
    }
    Ok(0)
}
