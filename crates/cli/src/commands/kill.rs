//! `stockade kill`: ends sandboxes at once, whichever process of this user owns them.

use clap::Args;
use serde_json::json;
use stockade_core::{Result, SandboxId};

use crate::config::Settings;
use crate::daemon::end::{FoundSandbox, clear_away, end_sandbox};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::unknown_sandbox_error;
use crate::terminal::printer::{OWN_ERROR, Printer};

const KILL_OPERATION: &str = "kill";

/// Which to end.
#[derive(Debug, Args)]
pub struct KillArgs {
    /// The sandboxes.
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<SandboxId>,
    /// Every sandbox of this user, and what dead processes left.
    #[arg(long)]
    all: bool,
}

/// Ends them; every one is tried, also after another has failed.
pub async fn kill(args: &KillArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let ids = if args.all { list_sandboxes(&place)? } else { args.ids.clone() };
    let (mut ended, mut code) = (Vec::new(), 0);
    for given in ids {
        let id = match place.resolve(&given, KILL_OPERATION) {
            Ok(id) => id,
            Err(error) => {
                code = printer.error(&error);
                continue;
            }
        };
        let ending = end_sandbox(&place, &settings, &id, KILL_OPERATION);
        match printer.patiently("waiting until nothing is left", ending).await {
            Ok(FoundSandbox::Nothing) if !args.all => {
                code = printer.error(&unknown_sandbox_error(KILL_OPERATION, &id))
            }
            Ok(_) => ended.push(id),
            Err(error) => code = printer.error(&error),
        }
    }
    if args.all {
        clear_away(&settings).await?;
    }
    show_killed(&ended, code, printer);
    Ok(code)
}

fn list_sandboxes(place: &SandboxDirectory) -> Result<Vec<SandboxId>> {
    Ok(place.list()?.leases.into_iter().map(|lease| lease.body.id).collect())
}

fn show_killed(ended: &[SandboxId], code: i32, printer: &Printer) {
    if !printer.is_json() {
        ended.iter().for_each(|id| printer.data(&format!("{id}\n")));
    } else if code != OWN_ERROR {
        printer.json(&json!({ "killed": ended }));
    }
}
