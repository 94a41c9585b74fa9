//! `stockade pause`: sandboxes in which everything is stopped where it is.

use clap::Args;
use serde_json::json;
use stockade_core::{Result, SandboxId};

use crate::config::Settings;
use crate::daemon::message::{SandboxStateRequest, SupervisorReply, SupervisorRequest};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::terminal::printer::Printer;

/// Which.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The sandboxes.
    #[arg(value_name = "SANDBOX", required = true)]
    ids: Vec<SandboxId>,
}

/// Stops everything in them where it is.
pub async fn pause(args: &PauseArgs, printer: &Printer) -> Result<i32> {
    let ids = request_each(args, "pause", SandboxStateRequest::Pause, printer).await?;
    if printer.is_json() {
        printer.json(&json!({ "paused": ids }));
    }
    Ok(0)
}

/// Sends the same request to the supervisors of all of them; answers their whole ids.
pub async fn request_each(
    args: &PauseArgs,
    operation: &'static str,
    request: SandboxStateRequest,
    printer: &Printer,
) -> Result<Vec<SandboxId>> {
    let place = SandboxDirectory::open(&Settings::load(None, printer)?)?;
    let request = SupervisorRequest::State(request);
    let mut ids = Vec::new();
    for id in &args.ids {
        let mut connection = place.reach(id, operation).await?;
        let (SupervisorReply::Done, _) = connection.ask(&request).await? else {
            return Err(out_of_turn(operation));
        };
        ids.push(connection.sandbox);
    }
    Ok(ids)
}
