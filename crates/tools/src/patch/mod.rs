//! `apply_patch`: unified diffs and `*** Begin Patch` patches, as a whole or not at all.
//!
//! Everything is parsed and computed in memory before the first file is touched. What does not fit
//! exactly is refused with its place in the patch; nothing is guessed.

mod begin;
mod change;
mod commit;
mod names;
mod text;
mod unified;

use std::sync::Arc;

use stockade_core::SandboxPath;

use crate::approval::Detail;
use crate::arguments::ApplyPatch;
use crate::files::approved_with;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};
use change::{PatchAction, PatchChange};

/// Longest patch.
const MAX_PATCH_BYTES: usize = 8 << 20;

pub(crate) async fn apply_patch(
    session: &ToolSession,
    args: ApplyPatch,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let changes = parse_patch(&args.patch)?;
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let paths: Vec<&SandboxPath> = changes.iter().flat_map(PatchChange::paths).collect();
    let patch = vec![Detail::private("patch", &args.patch)];
    approved_with(session, &place, "apply_patch", &paths, patch, call).await?;
    let report = report_changes(&changes);
    let steps = commit::plan_steps(place.files()?, changes).await?;
    // In a task of its own: a caller who gives up now must not leave half of it.
    let writing =
        tokio::spawn(async move { commit::commit_steps(Arc::clone(&place), steps).await });
    writing.await.map_err(|_| commit::interrupted_error())??;
    let text = report.iter().map(|(verb, path)| format!("{verb} {path}\n")).collect();
    let files: Vec<_> = report
        .iter()
        .map(|(verb, path)| serde_json::json!({ "action": verb, "path": path }))
        .collect();
    ToolAnswer::told(&serde_json::json!({ "files": files }), text)
}

/// What the patch changes, in order.
fn parse_patch(patch: &str) -> Result<Vec<PatchChange>, ToolError> {
    if patch.len() > MAX_PATCH_BYTES {
        return Err(ToolError::field("patch", format!("is longer than {MAX_PATCH_BYTES} bytes")));
    }
    let opens = patch.trim_start().starts_with(begin::BEGIN_MARKER);
    let changes =
        if opens { begin::parse_begin_patch(patch)? } else { unified::parse_unified_diff(patch)? };
    if changes.is_empty() {
        return Err(ToolError::field("patch", "changes nothing").remedy(
            "give a unified diff, or a patch between `*** Begin Patch` and `*** End Patch`",
        ));
    }
    change::refuse_twice(&changes)?;
    Ok(changes)
}

fn report_changes(changes: &[PatchChange]) -> Vec<(&'static str, String)> {
    let told = |change: &PatchChange| match &change.action {
        PatchAction::Add { .. } => ("added", change.path.to_string()),
        PatchAction::Delete { .. } => ("deleted", change.path.to_string()),
        PatchAction::Update { to: Some(to), .. } => ("moved", format!("{} -> {to}", change.path)),
        PatchAction::Update { to: None, .. } => ("changed", change.path.to_string()),
    };
    changes.iter().map(told).collect()
}

/// A patch that cannot be understood, by its line.
fn at_line(number: usize, problem: impl std::fmt::Display) -> ToolError {
    ToolError::field("patch", format!("line {number}: {problem}"))
}

#[cfg(test)]
mod tests;
