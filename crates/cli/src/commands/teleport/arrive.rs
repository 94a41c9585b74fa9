//! `stockade arrive`: the peer of a teleport. Makes a sandbox of the snapshot that comes in, and takes
//! it down again unless the sender says that it stays. Not for people.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::fs::OFlags;
use stockade_core::{Error, ErrorCode, Result, SandboxId, SandboxSpec, Workspace};
use stockade_engine::{StateDir, TransientSnapshot};
use stockade_fs::{Locked, Sharing};

use super::protocol::{
    ArrivalAnswer, HELLO_LINE, KEEP_LINE, MAX_PASSAGE, Passage, TELEPORT_VERSION, Whole,
};
use super::{ARRIVE_COMMAND, MAX_SNAPSHOT_BYTES};
use crate::commands::snapshot;
use crate::config::Settings;
use crate::daemon::end::end_sandbox;
use crate::daemon::launch::launch_supervisor;
use crate::daemon::message::{ORIGIN_LABEL, SupervisorOrder};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::WireError;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::printer::{OWN_ERROR, Printer};

/// Timeout for the sender's request to keep the sandbox.
const KEEP_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the lock, while other arrivals clear away what they replace.
const ARRIVAL_LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Lock file that is held while an arrival clears away what it replaces.
const ARRIVAL_LOCK_FILE: &str = "arriving";

/// What is to be heard.
#[derive(Debug, Args)]
pub struct ArriveArgs {
    /// Only say whether this version is spoken.
    #[arg(long, value_name = "VERSION")]
    speaks: Option<String>,
}

/// Does it.
pub async fn arrive(args: &ArriveArgs, printer: &Printer) -> Result<i32> {
    if let Some(version) = &args.speaks {
        return Ok(if version == TELEPORT_VERSION { 0 } else { OWN_ERROR });
    }
    // A signal undoes what was begun, as the end of the connection does.
    let mut interrupts = Interrupts::listen()?;
    write_reply(HELLO_LINE)?;
    let received = receive_sandbox(&mut interrupts, printer).await;
    let Err(error) = received else { return Ok(0) };
    // A sender that is gone needs no answer: a failed write is ignored.
    let _ = send_answer(&ArrivalAnswer::Failed(WireError::from(&error)));
    Ok(OWN_ERROR)
}

async fn receive_sandbox(interrupts: &mut Interrupts, printer: &Printer) -> Result<()> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let passage = read_passage()?;
    refuse_host_things(&passage.spec)?;
    let of = passage.of.clone();
    let came = import_snapshot(&settings)?;
    let made = launch_supervisor(build_order(passage, &came), printer).await?.id;
    // What it was made from is its own by now.
    drop(came);
    let kept = offer_until_kept(&place, &settings, &made, of.as_ref(), interrupts).await;
    if kept.is_err() {
        end_sandbox(&place, &settings, &made, ARRIVE_COMMAND).await?;
    }
    kept
}

fn read_passage() -> Result<Passage> {
    let wrong = |message| Error::new(ErrorCode::Protocol, ARRIVE_COMMAND, message);
    let mut line = Vec::new();
    let read = io::stdin().lock().take(MAX_PASSAGE).read_until(b'\n', &mut line);
    read.map_err(|error| wrong("the teleport request cannot be read").source(error))?;
    serde_json::from_slice(&line).map_err(|error| {
        wrong("the teleport request cannot be understood")
            .remedy("use `stockade teleport` of the same version")
            .source(error)
    })
}

/// The sender describes the sandbox, and may name nothing of this host (C-05).
fn refuse_host_things(spec: &SandboxSpec) -> Result<()> {
    match spec.caller_only()[..] {
        [] => Ok(()),
        ref fields => {
            let message = format!("it names things of the host it goes to: {}", fields.join(", "));
            Err(Error::new(ErrorCode::Denied, ARRIVE_COMMAND, message)
                .remedy("make one there with what it needs of that host"))
        }
    }
}

fn import_snapshot(settings: &Settings) -> Result<TransientSnapshot> {
    let store = Arc::new(snapshot::open_snapshot_store(settings)?);
    let mut whole = Whole::of(io::stdin().lock());
    let came = store.import_transient(&mut whole, MAX_SNAPSHOT_BYTES)?;
    // What ends it is left to read.
    io::copy(&mut whole, &mut io::sink()).map_err(|error| {
        Error::new(ErrorCode::Protocol, ARRIVE_COMMAND, "it breaks off").source(error)
    })?;
    Ok(came)
}

fn build_order(passage: Passage, came: &TransientSnapshot) -> SupervisorOrder {
    let Passage { mut spec, idle, lifetime, of } = passage;
    spec.labels.remove(ORIGIN_LABEL);
    spec.labels.extend(of.map(|of| (ORIGIN_LABEL.to_owned(), of.to_string())));
    let from = Some(came.snapshot().id.clone());
    let blank = SupervisorOrder::new(spec, Workspace::Ephemeral);
    SupervisorOrder { idle, lifetime, from, ..blank }
}

/// Offers what was made, and returns when it is known that it stays.
async fn offer_until_kept(
    place: &SandboxDirectory,
    settings: &Settings,
    made: &SandboxId,
    of: Option<&SandboxId>,
    interrupts: &mut Interrupts,
) -> Result<()> {
    send_answer(&ArrivalAnswer::Arrived { sandbox: made.clone() })?;
    let gone = |message| Error::new(ErrorCode::Gone, ARRIVE_COMMAND, message);
    let heard = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        let read = io::stdin().lock().take(KEEP_LINE.len() as u64).read_line(&mut line);
        read.is_ok_and(|_| line == KEEP_LINE)
    });
    let heard = interrupts.unless(tokio::time::timeout(KEEP_REQUEST_TIMEOUT, heard)).await;
    let Ok(Ok(Ok(true))) = heard else {
        return Err(gone("the sender disconnected before it confirmed the copy"));
    };
    let _alone = lock_arrivals(settings)?;
    if place.lease(made)?.is_none_or(|lease| !lease.alive) {
        return Err(gone("it ended before the move was confirmed"));
    }
    if let Some(of) = of {
        end_others(place, settings, made, of).await?;
    }
    send_answer(&ArrivalAnswer::Kept)
}

/// Two that arrive in the place of the same one must not end each other.
fn lock_arrivals(settings: &Settings) -> Result<Locked> {
    let directory = StateDir::open(settings.state_dir()?)?.subdirectory("snapshots")?;
    let locked = directory
        .open(ARRIVAL_LOCK_FILE, OFlags::RDWR | OFlags::CREATE)
        .and_then(|file| Locked::within(file, Sharing::Exclusive, ARRIVAL_LOCK_TIMEOUT));
    let failed = |code, message| Error::new(code, ARRIVE_COMMAND, message);
    locked
        .map_err(|error| {
            failed(ErrorCode::StateUnavailable, "a lock cannot be acquired").source(error)
        })?
        .ok_or_else(|| failed(ErrorCode::TooSlow, "another teleport to this host does not end"))
}

/// Ends what an earlier attempt left whose last answer was lost.
async fn end_others(
    place: &SandboxDirectory,
    settings: &Settings,
    made: &SandboxId,
    of: &SandboxId,
) -> Result<()> {
    let of = of.to_string();
    for lease in place.list()?.leases {
        if lease.body.id != *made && lease.body.labels.get(ORIGIN_LABEL) == Some(&of) {
            end_sandbox(place, settings, &lease.body.id, ARRIVE_COMMAND).await?;
        }
    }
    Ok(())
}

fn send_answer(answer: &ArrivalAnswer) -> Result<()> {
    let mut line = serde_json::to_vec(answer).map_err(|error| {
        Error::new(ErrorCode::System, ARRIVE_COMMAND, "the answer").source(error)
    })?;
    line.push(b'\n');
    write_reply(&line)
}

fn write_reply(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| {
        Error::new(ErrorCode::Gone, ARRIVE_COMMAND, "the sender disconnected").source(error)
    })
}
