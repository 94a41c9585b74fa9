//! `stockade kill`: ends sandboxes at once, whichever process of this user owns them.

use clap::Args;
use serde_json::json;
use stockade_core::{Result, SandboxId};

use super::end::{Found, clear_away, end};
use super::fault::unknown;
use super::place::Place;
use crate::config::Settings;
use crate::printer::{OWN_ERROR, Printer};

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

/// Ends them; every one is tried, whatever happens to the others.
pub async fn kill(args: &KillArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = Place::open(&settings)?;
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
        let ending = end(&place, &settings, &id, KILL_OPERATION);
        match printer.patiently("waiting until nothing is left", ending).await {
            Ok(Found::Nothing) if !args.all => code = printer.error(&unknown(KILL_OPERATION, &id)),
            Ok(_) => ended.push(id),
            Err(error) => code = printer.error(&error),
        }
    }
    if args.all {
        clear_away(&settings).await?;
    }
    show(&ended, code, printer);
    Ok(code)
}

fn list_sandboxes(place: &Place) -> Result<Vec<SandboxId>> {
    Ok(place.list()?.leases.into_iter().map(|lease| lease.body.id).collect())
}

fn show(ended: &[SandboxId], code: i32, printer: &Printer) {
    if !printer.is_json() {
        ended.iter().for_each(|id| printer.data(&format!("{id}\n")));
    } else if code != OWN_ERROR {
        printer.json(&json!({ "killed": ended }));
    }
}
