//! `stockade ps`: the sandboxes of every stockade process of this user.

use std::time::{Duration, SystemTime};

use clap::Args;
use serde::Serialize;
use serde_json::json;
use stockade_core::{Result, WorkspaceId};
use stockade_engine::{LeaseInfo, Timestamp};

use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::end::clear_away;
use crate::daemon::message::{Info, JobInfo, SupervisorReply, SupervisorRequest};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::terminal::printer::{Printer, Tone};
use crate::terminal::table::{Cell, Table};

/// Timeout for an owner's reply about what runs.
const INFO_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest command line of an owner.
const MAX_LINE_CHARS: usize = 200;

/// What to list.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// Print ids only.
    #[arg(short, long)]
    quiet: bool,
}

/// One sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SandboxRow {
    #[serde(flatten)]
    lease: ListedLease,
    state: ListedState,
    age_seconds: u64,
    /// Whether a supervisor owns it, which takes commands.
    lasting: bool,
    /// The command line of the process that owns it, where that is not a supervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// The workspace that keeps its changes apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<WorkspaceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<stockade_core::Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lifetime: Option<stockade_core::Span>,
    jobs: Vec<JobInfo>,
}

#[derive(Debug, Serialize)]
struct ListedLease {
    sandbox: String,
    backend: String,
    tenant: String,
    created: Timestamp,
    pid: u32,
    labels: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ListedState {
    /// Its owner lives.
    Alive,
    /// The same, and it is kept ready in a pool, not yet given to a caller.
    Ready,
    /// Everything in it stands still.
    Paused,
    /// Its owner is dead; what it left is cleared away.
    Stale,
}

/// Lists them, and clears away what dead processes left.
pub async fn ps(args: &PsArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let listing = place.list()?;
    let mut rows = Vec::new();
    for lease in listing.leases {
        let info = if lease.alive { request_info(&place, &lease).await } else { None };
        rows.push(build_row(lease, info));
    }
    show_rows(&rows, args.quiet, printer);
    for malformed in &listing.malformed {
        let file = malformed.file.display();
        printer.note(&format!("`{file}` is no lease: {}", malformed.problem));
    }
    let stale = rows.iter().filter(|row| row.state == ListedState::Stale).count();
    if stale > 0 {
        clear_away(&settings).await?;
        let left = place.list()?.leases.iter().filter(|lease| !lease.alive).count();
        note_cleared(stale.saturating_sub(left), left, printer);
    }
    Ok(0)
}

/// Says what became of the sandboxes whose owners are dead.
fn note_cleared(cleared: usize, left: usize, printer: &Printer) {
    if cleared > 0 {
        printer.note(&format!("cleared away {cleared} that dead processes had left"));
    }
    if left > 0 {
        printer
            .note(&format!("{left} that dead processes had left stay until their backend answers"));
    }
}

/// What its owner says. One that says nothing is listed all the same.
async fn request_info(place: &SandboxDirectory, lease: &LeaseInfo) -> Option<Info> {
    let info = async {
        let mut connection =
            SupervisorConnection::open(&place.sockets, &lease.body.id, "ps").await.ok()??;
        let (SupervisorReply::Info(info), _) =
            connection.ask(&SupervisorRequest::Info).await.ok()?
        else {
            return None;
        };
        Some(info)
    };
    tokio::time::timeout(INFO_REPLY_TIMEOUT, info).await.ok().flatten()
}

fn build_row(lease: LeaseInfo, info: Option<Info>) -> SandboxRow {
    let LeaseInfo { body, alive } = lease;
    let age = SystemTime::now().duration_since(body.created.into()).unwrap_or_default();
    SandboxRow {
        state: match (alive, body.ready) {
            (true, _) if info.as_ref().is_some_and(|info| info.paused) => ListedState::Paused,
            (true, false) => ListedState::Alive,
            (true, true) => ListedState::Ready,
            (false, _) => ListedState::Stale,
        },
        age_seconds: age.as_secs(),
        lasting: info.is_some(),
        owner: if alive && info.is_none() { command_line(body.owner) } else { None },
        workspace: info.as_ref().and_then(|info| info.workspace.clone()),
        idle: info.as_ref().and_then(|info| info.idle),
        lifetime: info.as_ref().and_then(|info| info.lifetime),
        jobs: info.map(|info| info.jobs).unwrap_or_default(),
        lease: ListedLease {
            sandbox: body.id.to_string(),
            backend: body.backend.to_string(),
            tenant: body.tenant.to_string(),
            created: body.created,
            pid: body.owner,
            labels: body.labels,
        },
    }
}

fn show_rows(rows: &[SandboxRow], quiet: bool, printer: &Printer) {
    if printer.is_json() {
        return printer.json(&json!({ "sandboxes": rows }));
    }
    if quiet {
        // What is about to be cleared away is of no use to a script.
        let there = rows.iter().filter(|row| row.state != ListedState::Stale);
        return there.for_each(|row| printer.data(&format!("{}\n", row.lease.sandbox)));
    }
    let mut table = Table::new(["ID", "BACKEND", "TENANT", "STATE", "AGE", "PID", "RUNNING"]);
    rows.iter().for_each(|row| table.row(build_cells(row)));
    printer.data(&table.render(printer));
}

fn build_cells(row: &SandboxRow) -> [Cell; 7] {
    let state = match row.state {
        ListedState::Alive => Cell::toned(Tone::Good, "alive"),
        ListedState::Ready => Cell::toned(Tone::Good, "ready"),
        ListedState::Paused => Cell::toned(Tone::Fair, "paused"),
        ListedState::Stale => Cell::toned(Tone::Bad, "stale"),
    };
    [
        Cell::plain(&row.lease.sandbox),
        Cell::plain(&row.lease.backend),
        Cell::plain(&row.lease.tenant),
        state,
        Cell::plain(format_age(row.age_seconds)),
        Cell::plain(row.lease.pid.to_string()),
        Cell::lines(
            format_running_jobs(row)
                .into_iter()
                .chain(format_workspace(row))
                .chain(format_labels(row))
                .collect(),
        ),
    ]
}

fn format_running_jobs(row: &SandboxRow) -> Vec<String> {
    let running = row.jobs.iter().filter(|job| job.running);
    let lines: Vec<_> = running.map(|job| format!("{} (job {})", job.command, job.job)).collect();
    match &row.owner {
        _ if !lines.is_empty() => lines,
        Some(owner) => vec![owner.clone()],
        None if row.lasting => vec!["(idle)".into()],
        None => vec![String::new()],
    }
}

fn format_workspace(row: &SandboxRow) -> Option<String> {
    row.workspace.as_ref().map(|id| format!("workspace: {id}"))
}

/// Below what runs, since there may be any number of them.
fn format_labels(row: &SandboxRow) -> Option<String> {
    let labels = row.lease.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let labels: Vec<_> = labels.collect();
    (!labels.is_empty()).then(|| format!("labels: {}", labels.join(" ")))
}

/// For people: nothing is decided by it.
fn command_line(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    let arguments: Vec<_> = arguments.map(String::from_utf8_lossy).collect();
    Some(arguments.join(" ").chars().take(MAX_LINE_CHARS).collect())
}

/// In the largest unit that leaves a whole number.
pub fn format_age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
