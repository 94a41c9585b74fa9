//! `stockade snapshot`: captures the state of a sandbox, keeps it, carries it, brings it back.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use stockade_core::{Bytes, Error, ErrorCode, Limits, Result, SandboxId, SnapshotId, SnapshotKind};
use stockade_engine::{Snapshot, Snapshots, StateDir};

use crate::args::prefix::by_prefix;
use crate::config::Settings;
use crate::daemon::message::{SandboxStateRequest, SupervisorReply, SupervisorRequest};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::terminal::printer::Printer;
use crate::terminal::table::{Cell, Table};

const SNAPSHOT_OPERATION: &str = "snapshot";
/// Path that stands for standard input or output.
const STDIO_PATH: &str = "-";

/// What to do with captured states.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    verb: SnapshotVerb,
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    /// Take a snapshot of a sandbox, which keeps running, and print its id.
    Take {
        /// The sandbox.
        #[arg(value_name = "SANDBOX")]
        sandbox: SandboxId,
        /// Capture its memory too, where its backend can.
        #[arg(long)]
        full: bool,
    },
    /// Restore a snapshot into a persistent sandbox.
    Restore {
        /// The sandbox.
        #[arg(value_name = "SANDBOX")]
        sandbox: SandboxId,
        /// The snapshot.
        #[arg(value_name = "SNAPSHOT")]
        snapshot: SnapshotId,
    },
    /// List snapshots.
    Ls {
        /// Print ids only.
        #[arg(short, long)]
        quiet: bool,
    },
    /// Remove snapshots. Sandboxes that were made from them stay.
    Rm {
        /// The snapshots.
        #[arg(value_name = "SNAPSHOT", required = true)]
        snapshots: Vec<SnapshotId>,
    },
    /// Export a snapshot as one file.
    Export {
        /// The snapshot.
        #[arg(value_name = "SNAPSHOT")]
        snapshot: SnapshotId,
        /// The file to write, which must not exist; `-` for standard output.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Import an exported snapshot, and print its id.
    Import {
        /// The file; `-` for standard input.
        #[arg(value_name = "FILE")]
        input: PathBuf,
        /// Refuse one that holds more than this.
        #[arg(long, value_name = "SIZE", default_value = "64g")]
        max_size: Bytes,
    },
}

/// Does it.
pub async fn snapshot(args: SnapshotArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    match args.verb {
        SnapshotVerb::Take { sandbox, full } => {
            let kind = if full { SnapshotKind::Full } else { SnapshotKind::Files };
            let taken =
                take_snapshot(&SandboxDirectory::open(&settings)?, &sandbox, kind, printer).await?;
            print_snapshot(&taken, printer);
        }
        SnapshotVerb::Restore { sandbox, snapshot } => {
            let store = open_snapshot_store(&settings)?;
            let snapshot = resolve_snapshot(&store, &snapshot, SNAPSHOT_OPERATION)?;
            restore_snapshot(&SandboxDirectory::open(&settings)?, &sandbox, snapshot, printer)
                .await?;
        }
        SnapshotVerb::Ls { quiet } => {
            list_snapshots(&open_snapshot_store(&settings)?, quiet, printer)?
        }
        SnapshotVerb::Rm { snapshots } => {
            remove_snapshots(&open_snapshot_store(&settings)?, &snapshots, printer)?
        }
        SnapshotVerb::Export { snapshot, output } => {
            let store = open_snapshot_store(&settings)?;
            let snapshot = resolve_snapshot(&store, &snapshot, SNAPSHOT_OPERATION)?;
            export_snapshot(&store, &snapshot, &output)?;
        }
        SnapshotVerb::Import { input, max_size } => {
            let imported = import_snapshot(&open_snapshot_store(&settings)?, &input, max_size)?;
            warn_of_limits(&imported.spec.limits, printer);
            print_snapshot(&imported, printer);
        }
    }
    Ok(0)
}

/// The snapshot whose id this is, or the only one whose id begins so. Where there is none: what was given.
pub fn resolve_snapshot(
    store: &Snapshots,
    given: &SnapshotId,
    operation: &'static str,
) -> Result<SnapshotId> {
    if store.get(given).is_ok() {
        return Ok(given.clone());
    }
    let ids = store.list()?.snapshots.into_iter().map(|snapshot| snapshot.id);
    Ok(by_prefix("snapshots", given.as_str(), ids, operation)?.unwrap_or_else(|| given.clone()))
}

/// The snapshots of this user.
pub fn open_snapshot_store(settings: &Settings) -> Result<Snapshots> {
    Snapshots::open(&StateDir::open(settings.state_dir()?)?)
}

/// Has a supervisor capture its sandbox.
pub async fn take_snapshot(
    place: &SandboxDirectory,
    sandbox: &SandboxId,
    kind: SnapshotKind,
    printer: &Printer,
) -> Result<Snapshot> {
    let mut connection = place.reach(sandbox, SNAPSHOT_OPERATION).await?;
    let request = SupervisorRequest::State(SandboxStateRequest::Snapshot { kind });
    let asking = connection.ask(&request);
    match printer.patiently("capturing the sandbox", asking).await? {
        (SupervisorReply::Snapshot(snapshot), _) => Ok(*snapshot),
        _ => Err(out_of_turn(SNAPSHOT_OPERATION)),
    }
}

async fn restore_snapshot(
    place: &SandboxDirectory,
    sandbox: &SandboxId,
    snapshot: SnapshotId,
    printer: &Printer,
) -> Result<()> {
    let mut connection = place.reach(sandbox, SNAPSHOT_OPERATION).await?;
    let request = SupervisorRequest::State(SandboxStateRequest::Restore { snapshot });
    let asking = connection.ask(&request);
    match printer.patiently("bringing it back", asking).await? {
        (SupervisorReply::Done, _) => Ok(()),
        _ => Err(out_of_turn(SNAPSHOT_OPERATION)),
    }
}

/// Limits come with a snapshot, whoever made it, and hold for sandboxes that begin with it.
fn warn_of_limits(limits: &Limits, printer: &Printer) {
    let higher = limits.higher_than(&Limits::defaults()).into_iter();
    let told: Vec<_> =
        higher.filter_map(|kind| Some(format!("{kind} {}", limits.text(kind)?))).collect();
    if !told.is_empty() && !printer.is_json() {
        let told = told.join(", ");
        printer.note(&format!("note: sandboxes made from it get higher limits than usual: {told}"));
    }
}

fn print_snapshot(snapshot: &Snapshot, printer: &Printer) {
    if printer.is_json() {
        printer.json(&json!({ "snapshot": snapshot }));
    } else {
        printer.data(&format!("{}\n", snapshot.id));
    }
}

fn list_snapshots(store: &Snapshots, quiet: bool, printer: &Printer) -> Result<()> {
    let listing = store.list()?;
    if printer.is_json() {
        let damaged: Vec<_> = listing
            .damaged
            .iter()
            .map(|(name, error)| json!({ "name": name, "problem": error.to_string() }))
            .collect();
        printer.json(&json!({ "snapshots": listing.snapshots, "damaged": damaged }));
        return Ok(());
    }
    if quiet {
        let ids = listing.snapshots.iter().map(|snapshot| format!("{}\n", snapshot.id));
        printer.data(&ids.collect::<String>());
    } else {
        show_snapshots(&listing.snapshots, printer);
    }
    for (name, error) in &listing.damaged {
        printer.note(&format!("{name}: {error}"));
    }
    Ok(())
}

fn show_snapshots(snapshots: &[Snapshot], printer: &Printer) {
    if snapshots.is_empty() {
        printer.note("there are no snapshots");
        return;
    }
    let mut table = Table::new(["SNAPSHOT", "KIND", "BACKEND", "SIZE", "TAKEN"]);
    for snapshot in snapshots {
        let kind = match snapshot.kind {
            SnapshotKind::Files => "files",
            SnapshotKind::Full => "full",
        };
        let taken = String::from(snapshot.taken);
        table.row([
            Cell::plain(snapshot.id.as_str()),
            Cell::plain(kind),
            Cell::plain(snapshot.backend.as_str()),
            Cell::plain(snapshot.size().rounded()),
            Cell::plain(taken),
        ]);
    }
    printer.data(&table.render(printer));
}

fn remove_snapshots(store: &Snapshots, given: &[SnapshotId], printer: &Printer) -> Result<()> {
    let mut removed = Vec::new();
    for given in given {
        let snapshot = resolve_snapshot(store, given, SNAPSHOT_OPERATION)?;
        store.remove(&snapshot)?;
        removed.push(snapshot);
    }
    if printer.is_json() {
        printer.json(&json!({ "removed": removed }));
    }
    Ok(())
}

fn export_snapshot(store: &Snapshots, snapshot: &SnapshotId, output: &Path) -> Result<()> {
    let snapshot = store.get(snapshot)?;
    if output == Path::new(STDIO_PATH) {
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            let message = "a snapshot is not for a terminal";
            return Err(Error::new(ErrorCode::Invalid, "export", message)
                .remedy("name a file with -o FILE, or send it through a pipe"));
        }
        // A reader who has seen enough is no failure.
        let exported = store.export(&snapshot, &mut out);
        return exported.or_else(|error| if is_closed(&error) { Ok(()) } else { Err(error) });
    }
    let unwritable = |error| {
        let message = format!("`{}` cannot be written", output.display());
        Error::new(ErrorCode::Invalid, "export", message)
            .remedy("name a file that does not exist yet, in a directory with room")
            .source(error)
    };
    // Readable by this user alone: the file holds what a sandbox has written.
    let created = File::options().write(true).create_new(true).mode(0o600).open(output);
    let mut out = io::BufWriter::new(created.map_err(unwritable)?);
    let written = store
        .export(&snapshot, &mut out)
        .and_then(|()| out.flush().and_then(|()| out.get_ref().sync_all()).map_err(unwritable));
    if written.is_err() {
        // Half a snapshot is of no use.
        let _ = std::fs::remove_file(output);
    }
    written
}

/// Whether an error is a broken pipe: no reader is left.
pub fn is_closed(error: &Error) -> bool {
    let cause =
        std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

fn import_snapshot(store: &Snapshots, input: &Path, most: Bytes) -> Result<Snapshot> {
    if input == Path::new(STDIO_PATH) {
        return store.import(&mut io::stdin().lock(), most);
    }
    let mut file = File::open(input).map_err(|error| {
        Error::new(ErrorCode::NotFound, "import", format!("`{}` cannot be read", input.display()))
            .remedy("name a file that `stockade snapshot export` has written")
            .source(error)
    })?;
    let file: &mut dyn Read = &mut file;
    store.import(file, most)
}
