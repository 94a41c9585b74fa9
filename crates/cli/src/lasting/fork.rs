//! `stockade fork`: copies of a sandbox that lives on, each with a supervisor of its own.

use clap::Args;
use serde_json::json;
use stockade_core::{Result, SandboxId, SandboxSpec, SnapshotId, SnapshotKind, Workspace};

use super::fault::out_of_turn;
use super::launch::launch;
use super::message::{Described, Order, Reply, Request};
use super::place::Place;
use super::{end, snapshot};
use crate::config::Settings;
use crate::printer::Printer;

const FORK: &str = "fork";
/// More than anybody forks by intention.
const MOST: u16 = 1000;

/// What to copy.
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The sandbox.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// How many copies.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST)))]
    count: u16,
}

/// Makes the copies and prints their ids. All or none.
pub async fn fork(args: &ForkArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = Place::open(&settings)?;
    let described = describe(&place, &args.sandbox).await?;
    let kind = if described.full { SnapshotKind::Full } else { SnapshotKind::Files };
    let taken = snapshot::take(&place, &args.sandbox, kind, printer).await?;
    let copies = copies(&described, &taken.id, args.count, printer).await;
    let removed = snapshot::store(&settings).and_then(|store| store.remove(&taken.id));
    let (made, failed) = copies;
    if let Some(error) = failed {
        for id in &made {
            end::end(&place, &settings, id, FORK).await?;
        }
        return Err(error);
    }
    removed?;
    if printer.is_json() {
        printer.json(&json!({ "sandbox": args.sandbox, "copies": made }));
    } else {
        printer.data(&made.iter().map(|id| format!("{id}\n")).collect::<String>());
    }
    Ok(0)
}

async fn describe(place: &Place, sandbox: &SandboxId) -> Result<Described> {
    let mut connection = place.reach(sandbox, FORK).await?;
    match connection.ask(&Request::Describe).await? {
        (Reply::Described(described), _) => Ok(*described),
        _ => Err(out_of_turn(FORK)),
    }
}

async fn copies(
    described: &Described,
    from: &SnapshotId,
    count: u16,
    printer: &Printer,
) -> (Vec<SandboxId>, Option<stockade_core::Error>) {
    let mut made = Vec::new();
    for _ in 0..count {
        let order = Order {
            spec: spec_of_a_copy(&described.spec),
            idle: described.idle,
            lifetime: described.lifetime,
            command: None,
            workspace: None,
            origin: Workspace::Ephemeral,
            from: Some(from.clone()),
        };
        match launch(order, printer).await {
            Ok(ready) => made.push(ready.id),
            Err(error) => return (made, Some(error)),
        }
    }
    (made, None)
}

/// What can be written to is not shared with the one that is copied.
fn spec_of_a_copy(spec: &SandboxSpec) -> SandboxSpec {
    let mut copy = spec.clone();
    if !spec.read_only {
        copy.workspace = Workspace::Ephemeral;
    }
    copy
}
