//! `stockade resume`: paused sandboxes go on.

use serde_json::json;
use stockade_core::Result;

use super::pause::{PauseArgs, request_each};
use crate::daemon::message::SandboxStateRequest;
use crate::terminal::printer::Printer;

/// Lets everything in them go on.
pub async fn resume(args: &PauseArgs, printer: &Printer) -> Result<i32> {
    let ids = request_each(args, "resume", SandboxStateRequest::Resume, printer).await?;
    if printer.is_json() {
        printer.json(&json!({ "resumed": ids }));
    }
    Ok(0)
}
