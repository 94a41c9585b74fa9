//! `stockade teleport`: moves a sandbox that lives on to another host. The one here ends when the other
//! side has said that its copy stays, and not before: after any failure one of them is left.

mod arrive;
mod protocol;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use stockade_backends::ssh::{Host, RemoteCommand, RemoteProgram};
use stockade_core::{
    BackendChoice, Bytes, Error, ErrorCode, Image, Network, Result, SandboxId, SandboxSpec,
    SnapshotKind, Workspace,
};
use stockade_engine::{Snapshot, Snapshots, TransientSnapshot, spec_of_a_copy};

pub use arrive::{ArriveArgs, arrive};

use super::{fork, rm, snapshot};
use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::end::end_sandbox;
use crate::daemon::message::{Described, SandboxStateRequest, SupervisorRequest};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::terminal::printer::Printer;
use protocol::{ArrivalAnswer, HELLO_LINE, KEEP_LINE, Passage, Pieces, TELEPORT_VERSION};

const TELEPORT_OPERATION: &str = "teleport";
/// Command that the peer is started with.
pub const ARRIVE_COMMAND: &str = "arrive";
/// Largest snapshot that is accepted on arrival.
const MAX_SNAPSHOT_BYTES: Bytes = Bytes(64 << 30);
/// Timeout for the snapshot to become a sandbox on the peer.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for the last reply, including what the peer clears away before it.
const KEPT_REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// What to move, and where to.
#[derive(Debug, Clone, Args)]
pub struct TeleportArgs {
    /// The sandbox.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// A host of the configuration, or any host that `ssh` accepts.
    #[arg(long, value_name = "HOST")]
    to: String,
    /// What moves: `files`, or `full` with memory too. [default: full where its backend has it]
    #[arg(long, value_name = "files|full", value_parser = parse_snapshot_kind)]
    kind: Option<SnapshotKind>,
    /// Keep the sandbox here.
    #[arg(long)]
    keep: bool,
    /// Move it even if something runs that does not move with it.
    #[arg(long)]
    force: bool,
    /// Backend there. [default: the same as here]
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendChoice>,
    /// Path of `stockade` there. [default: the one in its PATH]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// What came of sending it.
struct SentSandbox {
    arrived: SandboxId,
    kind: SnapshotKind,
}

/// Moves it and prints its new id.
pub async fn teleport(args: &TeleportArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let args = &TeleportArgs {
        sandbox: place.resolve(&args.sandbox, TELEPORT_OPERATION)?,
        ..args.clone()
    };
    let host = find_host(&settings, &args.to)?;
    // While this is open it counts as used, however long the way is.
    let mut in_use = place.reach(&args.sandbox, TELEPORT_OPERATION).await?;
    let described = fork::request_description(&mut in_use).await?;
    can_travel(&described.spec)?;
    let kind = args.kind.unwrap_or(fork::pick_fullest_kind(&described));
    if kind == SnapshotKind::Files && !(args.keep || args.force) {
        let remedy = "end it, or move without it by --force";
        rm::refuse_busy(&place, &args.sandbox, TELEPORT_OPERATION, remedy).await?;
    }
    tell_given_up(&described.spec, printer);
    let passage = build_passage(args, described);
    let sent = send_sandbox(args, kind, passage, &mut in_use, &settings, &host, printer).await;
    if sent.is_err() && stands_still(args, kind) {
        // It stays here, and has nothing to wait for.
        let _ = in_use.ask(&SupervisorRequest::State(SandboxStateRequest::Resume)).await;
    }
    let sent = sent?;
    drop(in_use);
    if !args.keep {
        end_here(&place, &settings, &args.sandbox, &host, &sent.arrived).await?;
    }
    print_arrival(args, &host, &sent, printer);
    Ok(0)
}

fn parse_snapshot_kind(given: &str) -> Result<SnapshotKind, String> {
    match given {
        "files" => Ok(SnapshotKind::Files),
        "full" => Ok(SnapshotKind::Full),
        _ => Err("is no kind of snapshot: give `files` or `full`".into()),
    }
}

/// The one of that name in the configuration, or any other.
fn find_host(settings: &Settings, name: &str) -> Result<Host> {
    let configured = settings.hosts().into_iter().find(|host| host.name == name);
    let any = || Host { name: name.into(), config: None, options: Vec::new(), capacity: None };
    let host = configured.unwrap_or_else(any);
    match host.problem() {
        None => Ok(host),
        Some(problem) => {
            let message = format!("`{}` {problem}", name.escape_debug());
            Err(Error::new(ErrorCode::Invalid, "--to", message).remedy("give it as ssh takes it"))
        }
    }
}

/// What belongs to this host stays here: a sandbox without it would be another one.
fn can_travel(spec: &SandboxSpec) -> Result<()> {
    let stays = |what: &str, remedy: &str| {
        let message = format!("{what} belongs to this host and does not move with it");
        Err(Error::new(ErrorCode::Unsupported, TELEPORT_OPERATION, message).remedy(remedy))
    };
    if let Some(mount) = spec.mounts.first() {
        let remedy = "make one without mounts, with what is needed in its workspace";
        return stays(&format!("mount `{}`", mount.target), remedy);
    }
    if let Network::Egress(_) = &spec.network {
        return stays("what it may reach", "make one there with --net");
    }
    match &spec.image {
        Image::Directory(path) | Image::Oci(path) | Image::Wasm(path) => {
            let remedy = "make one of an image that both hosts have by name";
            return stays(&format!("the image `{path}`"), remedy);
        }
        Image::Host | Image::Named(_) => {}
    }
    match &spec.workspace {
        Workspace::Local(dir) if spec.read_only => {
            stays(&format!("the read-only workspace `{dir}`"), "make one that it may write to")
        }
        Workspace::Overlay(layers) if spec.read_only => {
            let what = format!("the read-only workspace `{}`", layers.lower);
            stays(&what, "make one that it may write to")
        }
        Workspace::Local(_) | Workspace::Overlay(_) | Workspace::Ephemeral => Ok(()),
    }
}

/// What was given up is given up on this host alone.
fn tell_given_up(spec: &SandboxSpec, printer: &Printer) {
    if !spec.without.is_empty() {
        let names: Vec<_> = spec.without.iter().map(|feature| feature.name()).collect();
        let names = names.join(", ");
        printer.note(&format!("note: --without holds on this host alone; required there: {names}"));
    }
}

/// Captures it, sends it, and returns when it stays there. If that fails nothing is left there, or the
/// error says what may be.
async fn send_sandbox(
    args: &TeleportArgs,
    kind: SnapshotKind,
    passage: Passage,
    in_use: &mut SupervisorConnection,
    settings: &Settings,
    host: &Host,
    printer: &Printer,
) -> Result<SentSandbox> {
    let path = args.program.clone().or(settings.program_elsewhere());
    let program = RemoteProgram {
        program: path.as_deref(),
        verb: ARRIVE_COMMAND,
        version: TELEPORT_VERSION,
        hello: HELLO_LINE,
    };
    // Before anything is captured: a host that cannot be reached costs nothing.
    let reaching =
        printer.patiently("reaching the other host", RemoteCommand::begin(host, program));
    let mut command = reaching.await?;
    let place = SandboxDirectory::open(settings)?;
    let taken = snapshot::take_snapshot(&place, &args.sandbox, kind, printer).await?;
    if stands_still(args, kind) {
        match in_use.ask(&SupervisorRequest::State(SandboxStateRequest::Pause)).await {
            // Nothing runs in it by itself.
            Err(error) if error.code() == ErrorCode::Unsupported => {}
            paused => drop(paused?),
        }
    }
    let store = Arc::new(snapshot::open_snapshot_store(settings)?);
    let transient = store.hold_transient(taken)?;
    let sending = send_passage(&mut command, &passage, &store, &transient);
    let arrived = match printer.patiently("carrying it there", sending).await {
        Ok(Some(arrived)) => arrived,
        Ok(None) => return Err(command.trouble(TELEPORT_OPERATION).await),
        Err(error) => return Err(error),
    };
    transient.end()?;
    let stays = confirm_stay(&mut command).await?;
    stays.ok_or_else(|| unknown_result_error(host, &arrived, args.keep))?;
    Ok(SentSandbox { arrived, kind })
}

/// What runs goes on there: from its capture on it does not here.
fn stands_still(args: &TeleportArgs, kind: SnapshotKind) -> bool {
    kind == SnapshotKind::Full && !args.keep
}

fn build_passage(args: &TeleportArgs, described: Described) -> Passage {
    let mut spec = spec_of_a_copy(&described.spec);
    spec.without.clear();
    spec.backend = args.backend.clone().unwrap_or(spec.backend);
    let of = (!args.keep).then(|| args.sandbox.clone());
    Passage { spec, idle: described.idle, lifetime: described.lifetime, of }
}

/// Sends everything and hears what it has become there; nothing if the peer went away.
async fn send_passage(
    command: &mut RemoteCommand,
    passage: &Passage,
    store: &Arc<Snapshots>,
    transient: &TransientSnapshot,
) -> Result<Option<SandboxId>> {
    let mut line = serde_json::to_vec(passage).map_err(|error| {
        Error::new(ErrorCode::System, TELEPORT_OPERATION, "the teleport request cannot be written")
            .source(error)
    })?;
    line.push(b'\n');
    let (store, snapshot) = (Arc::clone(store), transient.snapshot().clone());
    let written = command.send(move |out| write_snapshot(out, &line, &store, &snapshot)).await;
    let whole = match written {
        // A receiver that stops reading early sends the reason as its answer.
        Err(error) if snapshot::is_closed(&error) => false,
        written => written?,
    };
    match (receive_answer(command, ARRIVAL_TIMEOUT).await?, whole) {
        (Some(ArrivalAnswer::Arrived { sandbox }), true) => Ok(Some(sandbox)),
        (Some(ArrivalAnswer::Failed(error)), _) => Err(error.into_error(TELEPORT_OPERATION)),
        (Some(ArrivalAnswer::Arrived { .. } | ArrivalAnswer::Kept), _) => {
            Err(crate::daemon::wire_error::out_of_turn(TELEPORT_OPERATION))
        }
        (None, _) => Ok(None),
    }
}

fn write_snapshot(
    out: &mut impl Write,
    line: &[u8],
    store: &Snapshots,
    snapshot: &Snapshot,
) -> Result<()> {
    out.write_all(line).map_err(went_away)?;
    let mut pieces = Pieces::to(out);
    store.export(snapshot, &mut pieces)?;
    pieces.finish().map(drop).map_err(went_away)
}

fn went_away(error: io::Error) -> Error {
    Error::new(ErrorCode::Gone, TELEPORT_OPERATION, "the connection was closed").source(error)
}

async fn receive_answer(
    command: &mut RemoteCommand,
    patience: Duration,
) -> Result<Option<ArrivalAnswer>> {
    let Some(line) = command.line(patience).await? else { return Ok(None) };
    serde_json::from_str(&line).map(Some).map_err(|error| {
        Error::new(ErrorCode::Protocol, TELEPORT_OPERATION, "the answer cannot be understood")
            .source(error)
    })
}

/// Confirms that the copy is to stay, and waits for the reply; `None` if the result is unknown.
async fn confirm_stay(command: &mut RemoteCommand) -> Result<Option<()>> {
    let said = command.send(|out| out.write_all(KEEP_LINE.as_bytes()).map_err(went_away)).await?;
    if !said {
        return Ok(None);
    }
    match receive_answer(command, KEPT_REPLY_TIMEOUT).await {
        Ok(Some(ArrivalAnswer::Kept)) => Ok(Some(())),
        Ok(Some(ArrivalAnswer::Failed(error))) => Err(error.into_error(TELEPORT_OPERATION)),
        Ok(Some(ArrivalAnswer::Arrived { .. }) | None) | Err(_) => Ok(None),
    }
}

/// The last answer was lost: there may be two now, and the one here is the one that counts.
fn unknown_result_error(host: &Host, arrived: &SandboxId, keep: bool) -> Error {
    let message = format!(
        "host `{}`: the last answer was lost; the sandbox here is kept, and `{arrived}` may exist there",
        host.name
    );
    let remedy = match keep {
        true => format!("see there with `stockade ps`; `stockade kill {arrived}` ends it"),
        false => "try again: that replaces what was left there".to_owned(),
    };
    Error::new(ErrorCode::Unavailable, TELEPORT_OPERATION, message).remedy(remedy)
}

async fn end_here(
    place: &SandboxDirectory,
    settings: &Settings,
    sandbox: &SandboxId,
    host: &Host,
    arrived: &SandboxId,
) -> Result<()> {
    end_sandbox(place, settings, sandbox, TELEPORT_OPERATION).await.map(drop).map_err(|error| {
        let message = format!(
            "it runs as `{arrived}` on host `{}`, but the sandbox here could not be ended",
            host.name
        );
        let remedy = format!("end it: `stockade kill {sandbox}`");
        Error::new(ErrorCode::LeftBehind, TELEPORT_OPERATION, message).remedy(remedy).source(error)
    })
}

fn print_arrival(args: &TeleportArgs, host: &Host, sent: &SentSandbox, printer: &Printer) {
    if printer.is_json() {
        printer.json(&json!({
            "sandbox": args.sandbox, "host": host.name, "arrived": sent.arrived,
            "kind": sent.kind, "kept": args.keep,
        }));
    } else {
        printer.data(&format!("{}\n", sent.arrived));
    }
}
