//! `stockade clean`: frees what Stockade makes again where it is missing, and what dead processes left. Never
//! touches what is in use, workspaces, snapshots, the journal, or output that `stockade logs` can show.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use stockade_core::{BackendChoice, Bytes, Result, Span};
use stockade_engine::{Journal, JournalOptions, OutputLogs, StateDir, measurement_cache};
use stockade_fs::{CacheDir, CacheUsage, Cleaning};

use crate::config::Settings;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::project_cache::list_project_caches;
use crate::registry;
use crate::terminal::printer::{OWN_ERROR, Printer, Tone};
use crate::terminal::table::{Cell, Table};
use crate::workspace::off_thread;

/// What to free.
#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Only print what would be freed.
    #[arg(long)]
    dry_run: bool,
    /// Free only what was not used within this time, such as 7d.
    #[arg(long, value_name = "TIME")]
    older_than: Option<Span>,
}

/// One kind of what is kept.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct CleanRow {
    kind: String,
    entries: u64,
    /// Absent where that is not known.
    bytes: Option<u64>,
    in_use: u64,
    freed_entries: u64,
    freed_bytes: u64,
    /// Why it was not looked through to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Frees what can be, and shows a row for each kind.
pub async fn clean(args: &CleanArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let cleaning = if args.dry_run { Cleaning::Preview } else { Cleaning::Remove };
    let unused_for = args.older_than.map_or(Duration::ZERO, Duration::from);
    let dead = clean_dead_sandboxes(&settings, cleaning).await?;
    let cleaning_caches = off_thread(move || clean_caches(&settings, unused_for, cleaning));
    let mut rows = printer.patiently("looking through caches", cleaning_caches).await?;
    rows.push(dead);
    show_rows(&rows, args.dry_run, printer);
    let failed = rows.iter().any(|row| row.problem.is_some());
    Ok(if failed { OWN_ERROR } else { 0 })
}

/// The sandboxes whose processes have died. Opening an engine ends what stands of them.
async fn clean_dead_sandboxes(settings: &Settings, cleaning: Cleaning) -> Result<CleanRow> {
    let count_dead = || -> Result<u64> {
        let leases = SandboxDirectory::open(settings)?.list()?.leases;
        Ok(leases.iter().filter(|lease| !lease.alive).count() as u64)
    };
    let entries = count_dead()?;
    let left = match cleaning {
        Cleaning::Preview => 0,
        Cleaning::Remove => {
            registry::engine(settings, &BackendChoice::Auto).await?.close().await?;
            count_dead()?
        }
    };
    Ok(CleanRow {
        kind: "sandboxes of dead processes".into(),
        entries,
        freed_entries: entries.saturating_sub(left),
        ..CleanRow::default()
    })
}

fn clean_caches(
    settings: &Settings,
    unused_for: Duration,
    cleaning: Cleaning,
) -> Result<Vec<CleanRow>> {
    let state = settings.state_dir()?;
    let leases = SandboxDirectory::open(settings)?.list()?.leases;
    let sandboxes: BTreeSet<_> = leases.iter().map(|lease| lease.body.id.to_string()).collect();
    let mut caches = stockade::registry::list_caches(settings)?;
    caches.extend(list_project_caches());
    caches.push(measurement_cache(&state));
    caches.push(stockade_tools::spool_cache(&state, sandboxes));
    let mut rows: Vec<CleanRow> = Vec::new();
    for cache in &caches {
        let cleaned = cache.clean(unused_for, cleaning);
        match rows.iter_mut().find(|row| row.kind == cache.kind) {
            Some(row) => row.add(cache, cleaned),
            None => {
                let mut row = CleanRow { kind: cache.kind.to_owned(), ..CleanRow::default() };
                row.add(cache, cleaned);
                rows.push(row);
            }
        }
    }
    let state = StateDir::open(state)?;
    let journal = Journal::open(&state, JournalOptions::default())?;
    let logs = OutputLogs::open(&state, settings.engine()?.output_logs)?;
    let mut row = CleanRow { kind: "output of pruned jobs".into(), ..CleanRow::default() };
    row.count(&logs.clean(&journal, unused_for, cleaning)?);
    rows.push(row);
    Ok(rows)
}

impl CleanRow {
    fn add(&mut self, cache: &CacheDir, cleaned: io::Result<CacheUsage>) {
        match cleaned {
            Ok(usage) => self.count(&usage),
            Err(error) => self.problem = Some(format!("`{}`: {error}", cache.path.display())),
        }
    }

    fn count(&mut self, usage: &CacheUsage) {
        self.entries += usage.entries;
        self.bytes = Some(self.bytes.unwrap_or(0) + usage.bytes);
        self.in_use += usage.in_use;
        self.freed_entries += usage.freed_entries;
        self.freed_bytes += usage.freed_bytes;
    }
}

fn show_rows(rows: &[CleanRow], dry_run: bool, printer: &Printer) {
    let freed: u64 = rows.iter().map(|row| row.freed_bytes).sum();
    if printer.is_json() {
        printer.json(&json!({ "dryRun": dry_run, "kinds": rows, "freedBytes": freed }));
        return;
    }
    let freed_head = if dry_run { "WOULD FREE" } else { "FREED" };
    let mut table = Table::new(["KIND", "ENTRIES", "SIZE", "IN USE", freed_head]);
    for row in rows {
        table.row([
            Cell::plain(&row.kind),
            Cell::plain(row.entries.to_string()),
            Cell::plain(row.bytes.map_or_else(|| "-".into(), |bytes| Bytes(bytes).rounded())),
            Cell::plain(row.in_use.to_string()),
            build_freed_cell(row),
        ]);
    }
    printer.data(&table.render(printer));
    for problem in rows.iter().filter_map(|row| row.problem.as_ref()) {
        printer.note(&format!("cannot be cleaned: {problem}"));
    }
    let verb = if dry_run { "would be freed" } else { "freed" };
    printer.note(&format!("{} {verb}", Bytes(freed).rounded()));
}

fn build_freed_cell(row: &CleanRow) -> Cell {
    match row.freed_entries {
        0 => Cell::plain("-"),
        entries => {
            let s = if entries == 1 { "y" } else { "ies" };
            let size = Bytes(row.freed_bytes).rounded();
            Cell::toned(Tone::Good, format!("{size} ({entries} entr{s})"))
        }
    }
}
