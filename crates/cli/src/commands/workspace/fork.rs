//! `stockade workspace fork`: a second workspace that begins where one stands.

use clap::Args;
use serde_json::json;
use stockade_core::Result;
use stockade_workspaces::Workspaces;

use crate::terminal::printer::Printer;
use crate::workspace::{WorkspaceHandle, off_thread};

/// Which to fork.
#[derive(Debug, Args)]
pub struct ForkWorkspaceArgs {
    /// The workspace; the beginning of its id is enough.
    #[arg(value_name = "ID")]
    id: WorkspaceHandle,
}

/// Makes the second one and prints its id.
pub async fn fork(
    args: ForkWorkspaceArgs,
    workspaces: Workspaces,
    printer: &Printer,
) -> Result<i32> {
    let copying = off_thread(move || {
        let id = args.id.find(&workspaces, "fork")?;
        let fork = workspaces.fork(&id)?;
        // Kept explicitly: it has no owner when this command ends, and it is there to be used.
        workspaces.keep(&fork.id)?;
        Ok(fork)
    });
    let fork = printer.patiently("copying the changes", copying).await?;
    if printer.is_json() {
        printer.json(&json!({ "workspace": fork }));
    } else {
        printer.data(&format!("{}\n", fork.id));
    }
    Ok(0)
}
