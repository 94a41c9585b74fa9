//! `stockade workspace diff`: what was changed.

use clap::Args;
use serde_json::json;
use stockade_core::Result;
use stockade_workspaces::{Diff, Workspaces, printable};

use crate::terminal::printer::{Printer, Tone};
use crate::workspace::{WorkspaceHandle, off_thread};

/// Which one, and how much of it.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The workspace; the beginning of its id is enough.
    #[arg(value_name = "ID")]
    id: WorkspaceHandle,
    /// Show the text of each change, as `git diff` does.
    #[arg(short, long)]
    patch: bool,
}

/// Shows it.
pub async fn diff(args: DiffArgs, workspaces: Workspaces, printer: &Printer) -> Result<i32> {
    let looking = off_thread(move || read_diff(&args, &workspaces));
    let (diff, patch) = printer.patiently("reading the changes", looking).await?;
    match patch {
        _ if printer.is_json() => {
            printer.json(&json!({ "changes": diff.changes, "patch": patch }));
        }
        _ if diff.is_empty() => printer.note("nothing was changed"),
        Some(patch) => printer.data(&render_patch(&patch, printer)),
        None => printer.data(&diff.to_string()),
    }
    Ok(0)
}

fn read_diff(args: &DiffArgs, workspaces: &Workspaces) -> Result<(Diff, Option<String>)> {
    let id = args.id.find(workspaces, "diff")?;
    let patch = if args.patch { Some(workspaces.patch(&id)?) } else { None };
    Ok((workspaces.diff(&id)?, patch))
}

/// Text for a person is made harmless and coloured; a program gets it as it is.
fn render_patch(patch: &str, printer: &Printer) -> String {
    if printer.width().is_some() { paint_patch(patch, printer) } else { patch.to_owned() }
}

/// A patch as a terminal may see it.
pub fn paint_patch(patch: &str, printer: &Printer) -> String {
    let safe = printable(patch);
    let lines = safe.lines().map(|line| match pick_line_tone(line) {
        Some(tone) => printer.tone(tone, line) + "\n",
        None => format!("{line}\n"),
    });
    lines.collect()
}

fn pick_line_tone(line: &str) -> Option<Tone> {
    match line.as_bytes().first() {
        Some(b'+') => Some(Tone::Good),
        Some(b'-') => Some(Tone::Bad),
        Some(b'#') => Some(Tone::Fair),
        Some(b'd') => Some(Tone::Head),
        Some(_) | None => None,
    }
}
