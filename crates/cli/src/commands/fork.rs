//! `stockade fork`: copies of a sandbox that lives on, each with a supervisor of its own.

use std::sync::Arc;

use clap::Args;
use serde_json::json;
use stockade_core::{Result, SandboxId, SnapshotId, SnapshotKind, Span, Workspace};
use stockade_engine::spec_of_a_copy;

use super::snapshot;
use super::teleport::ORIGIN_LABEL;
use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::end;
use crate::daemon::launch::launch_supervisor;
use crate::daemon::message::{Described, SupervisorOrder, SupervisorReply, SupervisorRequest};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::terminal::printer::Printer;

const FORK_OPERATION: &str = "fork";
/// Copies of one fork: more than is ever intended.
const MAX_COPIES: u16 = 1000;
/// Idle timeout of a copy whose original ends with the program that it was made for: a copy has no such
/// program.
const COPY_IDLE_TIMEOUT: Span = Span::secs(600);

/// What to copy.
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The sandbox.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// How many copies.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_COPIES)))]
    count: u16,
}

/// Makes the copies and prints their ids. All or none.
pub async fn fork(args: &ForkArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let sandbox = place.resolve(&args.sandbox, FORK_OPERATION)?;
    let described = request_description(&mut place.reach(&sandbox, FORK_OPERATION).await?).await?;
    let taken =
        snapshot::take_snapshot(&place, &sandbox, pick_fullest_kind(&described), printer).await?;
    let passing = Arc::new(snapshot::open_snapshot_store(&settings)?).passing(taken)?;
    let (made, failed) =
        launch_copies(&described, &passing.snapshot().id, args.count, printer).await;
    if let Some(error) = failed {
        for id in &made {
            end::end_sandbox(&place, &settings, id, FORK_OPERATION).await?;
        }
        return Err(error);
    }
    passing.end()?;
    if printer.is_json() {
        printer.json(&json!({ "sandbox": sandbox, "copies": made }));
    } else {
        printer.data(&made.iter().map(|id| format!("{id}\n")).collect::<String>());
    }
    Ok(0)
}

/// What copies of a sandbox are made of.
pub async fn request_description(connection: &mut SupervisorConnection) -> Result<Described> {
    match connection.ask(&SupervisorRequest::State(SandboxStateRequest::Describe)).await? {
        (SupervisorReply::Described(mut described), _) => {
            described.idle = described.idle.or(Some(COPY_IDLE_TIMEOUT));
            Ok(*described)
        }
        _ => Err(out_of_turn(connection.operation)),
    }
}

/// The most that can be captured of it.
pub const fn pick_fullest_kind(described: &Described) -> SnapshotKind {
    if described.full { SnapshotKind::Full } else { SnapshotKind::Files }
}

async fn launch_copies(
    described: &Described,
    from: &SnapshotId,
    count: u16,
    printer: &Printer,
) -> (Vec<SandboxId>, Option<stockade_core::Error>) {
    let mut made = Vec::new();
    let mut spec = spec_of_a_copy(&described.spec);
    // A copy has not taken the place of another sandbox, so it has no origin.
    spec.labels.remove(ORIGIN_LABEL);
    for _ in 0..count {
        let order = SupervisorOrder {
            spec: spec.clone(),
            idle: described.idle,
            lifetime: described.lifetime,
            command: None,
            workspace: None,
            origin: Workspace::Ephemeral,
            from: Some(from.clone()),
        };
        match launch_supervisor(order, printer).await {
            Ok(ready) => made.push(ready.id),
            Err(error) => return (made, Some(error)),
        }
    }
    (made, None)
}
