//! `stockade fork`: copies of a sandbox that lives on, each with a supervisor of its own. One capture, read and
//! verified once; copies in parallel; all or none.

use std::sync::Arc;

use clap::Args;
use serde_json::json;
use stockade_core::{Error, ErrorCode, Result, SandboxId, Signal, SnapshotKind, Span, Workspace};
use stockade_engine::{FORK_CONCURRENCY, MAX_FORK_COPIES, Snapshot, Snapshots, spec_of_a_copy};
use tokio::task::{JoinError, JoinSet};

use super::create::note_unprinted_sandbox;
use super::snapshot;
use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::end::end_sandbox;
use crate::daemon::launch::launch_now;
use crate::daemon::message::{
    Described, ORIGIN_LABEL, SandboxReady, SandboxStateRequest, SupervisorOrder, SupervisorReply,
    SupervisorRequest,
};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::report::reasons::warn_of_network;
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::printer::Printer;

const FORK_OPERATION: &str = "fork";
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
          value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_FORK_COPIES)))]
    count: u16,
}

/// Supervisors that were started, and why no further one was.
#[derive(Default)]
struct LaunchedCopies {
    made: Vec<SandboxId>,
    stop: Option<ForkStop>,
}

/// Why a fork makes no further copy.
enum ForkStop {
    Failed(Error),
    Interrupted(Signal),
}

/// Makes the copies and prints their ids. All or none.
pub async fn fork(args: &ForkArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let sandbox = place.resolve(&args.sandbox, FORK_OPERATION)?;
    // A signal does not cut this off any more: what was made until then is ended first.
    let mut interrupts = Interrupts::listen()?;
    let described = request_description(&mut place.reach(&sandbox, FORK_OPERATION).await?).await?;
    refuse_secrets(&described)?;
    let taken =
        snapshot::take_snapshot(&place, &sandbox, pick_fullest_kind(&described), printer).await?;
    let store = Arc::new(snapshot::open_snapshot_store(&settings)?);
    let transient = store.hold_transient(taken)?;
    let order = build_order(described, transient.snapshot(), &store).await?;
    warn_of_network(&order.spec.network, printer);
    let launching = launch_copies(&order, args.count, &mut interrupts);
    let LaunchedCopies { made, stop } = printer.patiently("building the sandbox", launching).await;
    // Copies whose ids are not printed are of no use, so none may be left by any failure.
    let stop = stop.or_else(|| transient.end().err().map(ForkStop::Failed));
    if let Some(stop) = stop {
        end_copies(&made, &place, &settings).await?;
        return match stop {
            ForkStop::Failed(error) => Err(error),
            ForkStop::Interrupted(signal) => Ok(interrupts::exit_code(signal)),
        };
    }
    if printer.is_json() {
        printer.json(&json!({ "sandbox": sandbox, "copies": made }));
    } else {
        printer.data(&made.iter().map(|id| format!("{id}\n")).collect::<String>());
    }
    made.iter().for_each(|id| note_unprinted_sandbox(id, printer));
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

/// Values of secrets stay with the supervisor that was given them: a copy would be without.
fn refuse_secrets(described: &Described) -> Result<()> {
    if described.spec.secrets.is_empty() {
        return Ok(());
    }
    let message = "a sandbox with secrets is not copied: their values stay with it";
    Err(Error::new(ErrorCode::Unsupported, FORK_OPERATION, message)
        .remedy("take a snapshot, and give the secrets again: `stockade create --from SNAPSHOT`"))
}

/// The most that can be captured of it.
pub const fn pick_fullest_kind(described: &Described) -> SnapshotKind {
    if described.full { SnapshotKind::Full } else { SnapshotKind::Files }
}

/// What the supervisor of each copy is told to build. The snapshot is read here, once for all of them.
async fn build_order(
    described: Described,
    from: &Snapshot,
    store: &Arc<Snapshots>,
) -> Result<SupervisorOrder> {
    let (reader, snapshot) = (Arc::clone(store), from.clone());
    let verifying = tokio::task::spawn_blocking(move || reader.verify(&snapshot));
    let verified = verifying.await.unwrap_or_else(|join| {
        let message = "the snapshot cannot be verified";
        Err(Error::new(ErrorCode::System, FORK_OPERATION, message).source(join))
    })?;
    let mut spec = spec_of_a_copy(&described.spec);
    // A copy has not taken the place of another sandbox, so it has no origin.
    spec.labels.remove(ORIGIN_LABEL);
    let shares_workspace = described.has_made_workspace && spec.workspace != Workspace::Ephemeral;
    Ok(SupervisorOrder {
        shares_workspace,
        idle: described.idle,
        lifetime: described.lifetime,
        from: Some(from.id.clone()),
        verified,
        ..SupervisorOrder::new(spec, Workspace::Ephemeral)
    })
}

/// Starts a supervisor for each copy, several at a time. After a failure or a signal no further one is
/// started; those that were are waited for, since only then it is known what has to be ended.
async fn launch_copies(
    order: &SupervisorOrder,
    count: u16,
    interrupts: &mut Interrupts,
) -> LaunchedCopies {
    let mut launched = LaunchedCopies::default();
    let mut launching = JoinSet::new();
    let mut due = count;
    loop {
        while launched.stop.is_none() && due > 0 && launching.len() < FORK_CONCURRENCY {
            let order = order.clone();
            launching.spawn_blocking(move || launch_now(&order));
            due -= 1;
        }
        tokio::select! {
            one = launching.join_next() => match one {
                Some(one) => launched.note_result(one),
                None => return launched,
            },
            signal = interrupts.next(), if launched.stop.is_none() => {
                launched.stop = Some(ForkStop::Interrupted(signal));
            }
        }
    }
}

impl LaunchedCopies {
    /// Notes what became of one. The first failure is the one that is reported.
    fn note_result(&mut self, one: Result<Result<SandboxReady>, JoinError>) {
        let error = match one {
            Ok(Ok(ready)) => return self.made.push(ready.id),
            Ok(Err(error)) => error,
            Err(join) => {
                let message = "a copy was not finished";
                Error::new(ErrorCode::System, FORK_OPERATION, message).source(join)
            }
        };
        self.stop.get_or_insert(ForkStop::Failed(error));
    }
}

/// Ends every copy, also after one could not be ended; answers the first error.
async fn end_copies(
    made: &[SandboxId],
    place: &SandboxDirectory,
    settings: &Settings,
) -> Result<()> {
    let mut ended = Ok(());
    for id in made {
        let one = end_sandbox(place, settings, id, FORK_OPERATION).await;
        ended = ended.and(one.map(drop));
    }
    ended
}
