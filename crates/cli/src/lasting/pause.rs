//! `stockade pause` and `stockade resume`: sandboxes that stand still, and go on.

use clap::Args;
use serde_json::json;
use stockade_core::{Result, SandboxId};

use super::fault::out_of_turn;
use super::message::{SupervisorReply, SupervisorRequest};
use super::place::SandboxDirectory;
use crate::config::Settings;
use crate::printer::Printer;

/// Which.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The sandboxes.
    #[arg(value_name = "SANDBOX", required = true)]
    ids: Vec<SandboxId>,
}

/// Stops everything in them where it is.
pub async fn pause(args: &PauseArgs, printer: &Printer) -> Result<i32> {
    let ids = request_each(args, "pause", &SupervisorRequest::Pause, printer).await?;
    if printer.is_json() {
        printer.json(&json!({ "paused": ids }));
    }
    Ok(0)
}

/// Lets it go on.
pub async fn resume(args: &PauseArgs, printer: &Printer) -> Result<i32> {
    let ids = request_each(args, "resume", &SupervisorRequest::Resume, printer).await?;
    if printer.is_json() {
        printer.json(&json!({ "resumed": ids }));
    }
    Ok(0)
}

async fn request_each(
    args: &PauseArgs,
    operation: &'static str,
    request: &SupervisorRequest,
    printer: &Printer,
) -> Result<Vec<SandboxId>> {
    let place = SandboxDirectory::open(&Settings::load(None, printer)?)?;
    let mut ids = Vec::new();
    for id in &args.ids {
        let mut connection = place.reach(id, operation).await?;
        let (SupervisorReply::Done, _) = connection.ask(request).await? else {
            return Err(out_of_turn(operation));
        };
        ids.push(connection.sandbox);
    }
    Ok(ids)
}
