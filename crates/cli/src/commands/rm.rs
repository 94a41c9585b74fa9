//! `stockade rm`: removes sandboxes that are not in use. One that does not exist needs no removal.

use clap::Args;
use serde_json::json;
use stockade_core::{Error, ErrorCode, Result, SandboxId};

use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::end::{FoundSandbox, end_sandbox};
use crate::daemon::message::{SupervisorReply, SupervisorRequest};
use crate::daemon::sandbox_directory::{SandboxDirectory, taken_sandbox_error};
use crate::daemon::wire_error::out_of_turn;
use crate::terminal::printer::Printer;

const RM_OPERATION: &str = "rm";

/// Which to clear away.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The sandboxes.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<SandboxId>,
    /// Remove those in which something runs, too.
    #[arg(long)]
    force: bool,
}

/// Clears them away, in order, up to the first that cannot be.
pub async fn rm(args: &RmArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let mut removed = Vec::new();
    for given in &args.ids {
        let id = &place.resolve(given, RM_OPERATION)?;
        if !args.force {
            let remedy = "`stockade kill` ends it, and so does `stockade rm --force`";
            refuse_busy(&place, id, RM_OPERATION, remedy).await?;
        }
        let found = end_sandbox(&place, &settings, id, RM_OPERATION).await?;
        if !printer.is_json() {
            show_removed(id, found, printer);
        }
        if found != FoundSandbox::Nothing {
            removed.push(id.clone());
        }
    }
    if printer.is_json() {
        printer.json(&json!({ "removed": removed }));
    }
    Ok(0)
}

/// Shown before the next is tried, whose failure ends the command.
fn show_removed(id: &SandboxId, found: FoundSandbox, printer: &Printer) {
    match found {
        FoundSandbox::Alive | FoundSandbox::Stale => printer.data(&format!("{id}\n")),
        FoundSandbox::Nothing => printer.note(&format!("no sandbox `{id}`: nothing to remove")),
    }
}

/// Refuses a sandbox in which something runs.
pub async fn refuse_busy(
    place: &SandboxDirectory,
    id: &SandboxId,
    operation: &'static str,
    remedy: &str,
) -> Result<()> {
    let Some(mut connection) = SupervisorConnection::open(&place.sockets, id, operation).await?
    else {
        return match place.lease(id)? {
            Some(lease) if lease.alive => Err(taken_sandbox_error(operation, &lease)),
            Some(_) | None => Ok(()),
        };
    };
    let (SupervisorReply::Info(info), _) = connection.ask(&SupervisorRequest::Info).await? else {
        return Err(out_of_turn(operation));
    };
    match info.jobs.iter().filter(|job| job.running).count() {
        0 => Ok(()),
        running => {
            let message = format!("{running} running in sandbox `{id}`");
            Err(Error::new(ErrorCode::Denied, operation, message).remedy(remedy))
        }
    }
}
