//! `stockade workspace apply`: what was changed becomes real, all of it or nothing.

use std::path::PathBuf;

use clap::Args;
use stockade_core::{Result, WorkspaceId};
use stockade_workspaces::{Application, ApplyOptions, Change, Diff, TreePath, Workspaces};

use crate::terminal::interrupts::Interrupts;
use crate::terminal::printer::{Printer, on_one_line};
use crate::workspace::{WorkspaceHandle, claim_workspace, off_thread};

const APPLY_OPERATION: &str = "apply";
/// Exit code where something changed underneath.
const CONFLICT_EXIT_CODE: i32 = 1;

/// What to do about a sandbox that has the workspace.
pub const IN_USE: &str = "end it first (`stockade ps`, `stockade kill`), or use --force";

/// Which one, and what of it.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The workspace; the beginning of its id is enough.
    #[arg(value_name = "ID")]
    id: WorkspaceHandle,
    /// Apply this path although it is held back, with everything in it; may be given several times.
    #[arg(long, value_name = "PATH")]
    include: Vec<TreePath>,
    /// Apply to this directory instead of the one the workspace was made from.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Also while a sandbox has the workspace.
    #[arg(long)]
    force: bool,
}

/// What an attempt came to.
pub struct AppliedWorkspace {
    id: WorkspaceId,
    diff: Diff,
    /// The directory that was changed, or was to be.
    target: PathBuf,
    application: Application,
}

/// Applies it; answers 1 if there are conflicts.
pub async fn apply(args: ApplyArgs, workspaces: Workspaces, printer: &Printer) -> Result<i32> {
    // Cut off, it would be undone by the next command only: it is short, so it is seen through.
    let _held_off = Interrupts::listen()?;
    let id = args.id.find(&workspaces, APPLY_OPERATION)?;
    let claim = if args.force {
        None
    } else {
        Some(claim_workspace(&workspaces, &id, APPLY_OPERATION, IN_USE)?)
    };
    if claim.is_some() {
        // No sandbox has it: what is left of it after this is for its changes alone.
        workspaces.release(&id).await?;
        if workspaces.get(&id).is_err() {
            printer.note("nothing was changed");
            return Ok(0);
        }
    }
    let options = ApplyOptions { include: args.include, to: args.to, seen: None };
    let applying = attempt_apply(workspaces, id, options);
    let done = printer.patiently("applying the changes", applying).await?;
    drop(claim);
    Ok(report_application(&done, printer))
}

/// Applies; what is told later is looked at before.
pub async fn attempt_apply(
    workspaces: Workspaces,
    id: WorkspaceId,
    options: ApplyOptions,
) -> Result<AppliedWorkspace> {
    off_thread(move || {
        let diff = workspaces.diff(&id)?;
        let target = match &options.to {
            Some(to) => to.clone(),
            None => workspaces.get(&id)?.source,
        };
        let application = workspaces.apply(&id, &options)?;
        Ok(AppliedWorkspace { id, diff, target, application })
    })
    .await
}

/// Says what became of it; answers the exit code.
pub fn report_application(done: &AppliedWorkspace, printer: &Printer) -> i32 {
    let code = match done.application {
        Application::Applied(_) => 0,
        Application::Conflict { .. } => CONFLICT_EXIT_CODE,
    };
    if printer.is_json() {
        printer.json(&done.application);
        return code;
    }
    match &done.application {
        Application::Applied(applied) => {
            let count = applied.applied.len();
            let target = done.target.display();
            let done_line = format!("applied {} to {target}", format_count(count, "change"));
            printer.note(&on_one_line(&done_line));
            show_held_back(done, &applied.held, printer);
        }
        Application::Conflict { conflicts } => {
            conflicts.iter().for_each(|one| printer.note(&format!("conflict: {one}")));
            printer.note(
                "nothing was applied (remedy: bring these paths back to what they were, or apply with \
                 --to DIR to a tree that has them as they were)",
            );
        }
    }
    code
}

fn show_held_back(done: &AppliedWorkspace, paths: &[TreePath], printer: &Printer) {
    if paths.is_empty() {
        return;
    }
    let id = &done.id;
    let (held, left): (Vec<&TreePath>, Vec<&TreePath>) =
        paths.iter().partition(|path| can_be_included(&done.diff, path));
    if !left.is_empty() {
        show_paths(&done.diff, &left, printer);
        printer.note(&format!("{} left behind", format_count(left.len(), "change")));
    }
    if !held.is_empty() {
        show_paths(&done.diff, &held, printer);
        printer.note(&format!("{} held back", format_count(held.len(), "change")));
        printer.note(&format!("  to let through:  stockade workspace apply {id} --include PATH"));
    }
    printer.note(&format!("  to discard:      stockade workspace discard {id}"));
}

/// Whether --include lets a path through.
fn can_be_included(diff: &Diff, path: &TreePath) -> bool {
    let held = diff.at(path).and_then(|change| change.held.as_ref());
    held.is_none_or(|why| why.can_be_named())
}

fn show_paths(diff: &Diff, paths: &[&TreePath], printer: &Printer) {
    for change in select_topmost(paths.iter().copied()).filter_map(|path| diff.at(path)) {
        printer.note(&held_line(change));
    }
}

/// Those that are not in a directory that is there too. A directory comes before what is in it.
fn select_topmost<'a>(
    paths: impl Iterator<Item = &'a TreePath>,
) -> impl Iterator<Item = &'a TreePath> {
    let mut last: Option<&TreePath> = None;
    paths.filter(move |path| {
        let inside = last.is_some_and(|top| path.as_path().starts_with(top.as_path()));
        if !inside {
            last = Some(path);
        }
        !inside
    })
}

fn held_line(change: &Change) -> String {
    match &change.held {
        Some(why) if !why.can_be_named() => format!("never applied: {}: {why}", change.path),
        Some(why) => format!("held back: {}: {why}", change.path),
        None => format!("held back: {}", change.path),
    }
}

fn format_count(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    }
}
