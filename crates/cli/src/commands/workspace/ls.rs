//! `stockade workspace ls`: the workspaces whose changes are kept apart.

use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use stockade_core::Result;
use stockade_workspaces::{ManagedWorkspace, Workspaces};

use crate::commands::ps::format_age;
use crate::terminal::printer::{Printer, Tone};
use crate::terminal::table::{Cell, Table};
use crate::workspace::off_thread;

/// What to list.
#[derive(Debug, Args)]
pub struct WorkspaceLsArgs {
    /// Print ids only.
    #[arg(short, long)]
    quiet: bool,
}

/// One workspace.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkspaceRow {
    #[serde(flatten)]
    workspace: ManagedWorkspace,
    in_use: bool,
    age_seconds: u64,
    /// Absent where that cannot be found out.
    changes: Option<usize>,
    held: Option<usize>,
}

/// Lists them.
pub async fn ls(args: &WorkspaceLsArgs, workspaces: Workspaces, printer: &Printer) -> Result<i32> {
    let looking = off_thread(move || collect_rows(&workspaces));
    let rows = printer.patiently("reading the changes", looking).await?;
    if printer.is_json() {
        printer.json(&json!({ "workspaces": rows }));
    } else if args.quiet {
        rows.iter().for_each(|row| printer.data(&format!("{}\n", row.workspace.id)));
    } else if rows.is_empty() {
        printer.note("no workspaces with changes; `stockade run --overlay` makes one");
    } else {
        printer.data(&build_table(&rows).render(printer));
    }
    Ok(0)
}

fn collect_rows(workspaces: &Workspaces) -> Result<Vec<WorkspaceRow>> {
    let mut rows = Vec::new();
    for workspace in workspaces.list()?.into_iter().filter(ManagedWorkspace::is_transaction) {
        let diff = workspaces.diff(&workspace.id).ok();
        let age = SystemTime::now().duration_since(workspace.created.into()).unwrap_or_default();
        rows.push(WorkspaceRow {
            // A workspace that was removed meanwhile is not in use.
            in_use: workspaces.claim(&workspace.id).is_ok_and(|claim| claim.is_none()),
            age_seconds: age.as_secs(),
            changes: diff.as_ref().map(|diff| diff.changes.len()),
            held: diff.as_ref().map(|diff| diff.held().count()),
            workspace,
        });
    }
    Ok(rows)
}

fn build_table(rows: &[WorkspaceRow]) -> Table<6> {
    let mut table = Table::new(["ID", "KIND", "STATE", "CHANGES", "AGE", "OF"]);
    for row in rows {
        let state = match row.in_use {
            true => Cell::toned(Tone::Good, "in use"),
            false => Cell::plain("kept"),
        };
        let changes = row.changes.map_or_else(|| "?".to_owned(), |count| count.to_string());
        table.row([
            Cell::plain(row.workspace.id.to_string()),
            Cell::plain(row.workspace.kind.to_string()),
            state,
            Cell::plain(changes),
            Cell::plain(format_age(row.age_seconds)),
            Cell::plain(describe_origin(&row.workspace)),
        ]);
    }
    table
}

/// What it is a view of.
fn describe_origin(workspace: &ManagedWorkspace) -> String {
    let note = |key: &str| workspace.metadata.get(key);
    match (note("git.remote"), note("git.branch").or(note("git.commit"))) {
        (Some(remote), Some(rev)) => format!("{remote}@{rev}"),
        (Some(remote), None) => remote.clone(),
        (None, _) => workspace.source.display().to_string(),
    }
}
