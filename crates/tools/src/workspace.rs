//! The changes of a copy-on-write workspace: shown, and brought to the user's own files.
//!
//! Applying is the one thing a tool does outside the walls, so it is judged like local execution: a
//! person is asked unless a rule says otherwise, and always about what is held back. What was asked
//! about is what is applied (C-23): the question names the digest of the contents, and the sandbox is
//! paused from the first look to the last, where it can be.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use stockade_core::{Boundary, ErrorCode, Feature, Result as CoreResult, WorkspaceId};
use stockade_workspaces::{
    Application, Applied, ApplyOptions, Change, Conflict, Diff, TreePath, Workspaces, off_thread,
    printable,
};

use crate::approval::{Detail, Facts, Programs};
use crate::arguments::{WorkspaceApply, WorkspaceDiff};
use crate::files::unless_cancelled;
use crate::place::ToolPlace;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// How many changes one answer lists, and how much of a patch.
const MAX_LISTED_CHANGES: usize = 1000;
const MAX_PATCH_BYTES: usize = 256 << 10;

/// The workspace of a sandbox whose changes are kept apart.
#[derive(Debug)]
pub(crate) struct WorkspaceView {
    workspaces: Workspaces,
    pub id: WorkspaceId,
}

impl WorkspaceView {
    pub(crate) fn new(workspaces: &Workspaces, id: &WorkspaceId) -> Self {
        Self { workspaces: workspaces.clone(), id: id.clone() }
    }

    async fn diff(&self) -> CoreResult<Diff> {
        let (workspaces, id) = (self.workspaces.clone(), self.id.clone());
        off_thread(move || workspaces.diff(&id)).await
    }

    async fn patch(&self) -> CoreResult<String> {
        let (workspaces, id) = (self.workspaces.clone(), self.id.clone());
        off_thread(move || workspaces.patch(&id)).await
    }

    async fn apply(&self, options: ApplyOptions) -> CoreResult<Application> {
        let (workspaces, id) = (self.workspaces.clone(), self.id.clone());
        off_thread(move || workspaces.apply(&id, &options)).await
    }
}

/// What was changed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changes {
    workspace: WorkspaceId,
    total: usize,
    /// How many would be held back.
    held: usize,
    changes: Vec<Change>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    truncated: bool,
}

pub(crate) async fn show_diff(
    session: &ToolSession,
    args: WorkspaceDiff,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let view = require_view(&place)?;
    let facts = place.facts("workspace_diff", Programs::NONE, &[]);
    session.pass(&place, None, facts, call).await?;
    let look = async {
        let diff = view.diff().await?;
        let patch = if args.patch { Some(view.patch().await?) } else { None };
        Ok((diff, patch))
    };
    let (diff, patch) = unless_cancelled(call, look).await?;
    build_diff_answer(&view.id, diff, patch)
}

fn build_diff_answer(
    id: &WorkspaceId,
    diff: Diff,
    patch: Option<String>,
) -> Result<ToolAnswer, ToolError> {
    let (total, held) = (diff.changes.len(), diff.held().count());
    let whole = patch.as_ref().map_or(0, String::len);
    let patch = patch.map(|mut patch| {
        patch.truncate(patch.floor_char_boundary(MAX_PATCH_BYTES));
        patch
    });
    let truncated = total > MAX_LISTED_CHANGES || whole > MAX_PATCH_BYTES;
    let mut listed = diff;
    listed.changes.truncate(MAX_LISTED_CHANGES);
    let mut text = match total {
        0 => "nothing was changed\n".to_owned(),
        _ => listed.to_string(),
    };
    if total > MAX_LISTED_CHANGES {
        text.push_str(&format!("… and {} more\n", total - MAX_LISTED_CHANGES));
    }
    text.push_str(&patch.as_deref().map(printable).unwrap_or_default());
    if whole > MAX_PATCH_BYTES {
        text.push_str("… the rest is left out: read the files\n");
    }
    let changes = listed.changes;
    let data = Changes { workspace: id.clone(), total, held, changes, patch, truncated };
    ToolAnswer::told(&data, text)
}

pub(crate) async fn apply_changes(
    session: &ToolSession,
    args: WorkspaceApply,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let view = require_view(&place)?;
    refuse_while_running(&place)?;
    let include: Vec<_> =
        args.include.iter().map(|path| parse_tree_path(path)).collect::<Result<_, _>>()?;
    let paused = Paused::pause(&place).await?;
    let applied = approve_and_apply(session, &place, view, include, call).await;
    // Before the answer: the next call finds it going on.
    paused.resume().await;
    match applied? {
        Application::Applied(applied) => {
            // The sandbox began with files that are not there any more: the next call gets a new sandbox.
            session.places.destroy(&place.id).await?;
            told(view, &place, &applied)
        }
        Application::Conflict { conflicts } => Err(conflict(&conflicts)),
    }
}

/// Applies nothing but what was asked about: a program could have gone on writing meanwhile.
async fn approve_and_apply(
    session: &ToolSession,
    place: &ToolPlace,
    view: &WorkspaceView,
    include: Vec<TreePath>,
    call: &Call,
) -> Result<Application, ToolError> {
    let diff = view.diff().await?;
    session.pass(place, None, collect_facts(place, &diff, &include), call).await?;
    // Not stopped half-way: it would only have to be undone.
    let options = ApplyOptions { include, seen: Some(diff), to: None };
    Ok(view.apply(options).await?)
}

fn require_view(place: &Arc<ToolPlace>) -> Result<&WorkspaceView, ToolError> {
    place.view.as_ref().ok_or_else(|| {
        let message = "this workspace is no overlay: its changes are in the user's files already";
        ToolError::new(ErrorCode::Unsupported, message)
            .remedy("have the server started with --overlay")
    })
}

/// Files that are being written to would be applied half-written.
fn refuse_while_running(place: &ToolPlace) -> Result<(), ToolError> {
    let jobs = place.jobs.all();
    let running = jobs.iter().find(|job| job.state().outcome.is_none());
    running.map_or(Ok(()), |job| {
        let message = format!("job `{}` still runs and may be writing", job.watcher.job());
        Err(ToolError::new(ErrorCode::Denied, message)
            .remedy("wait for its end, or end it with `bash` and the action `stop`"))
    })?;
    // One that a call is using is held by that call.
    if place.browser.try_lock().is_ok_and(|browser| browser.is_none()) {
        return Ok(());
    }
    let message = "the browser still runs and may be writing";
    Err(ToolError::new(ErrorCode::Denied, message)
        .remedy("end it with `browser` and the action `close`"))
}

fn parse_tree_path(path: &str) -> Result<TreePath, ToolError> {
    let from_the_root = path.strip_prefix("/workspace/").unwrap_or(path);
    TreePath::from_bytes(from_the_root.as_bytes())
        .map_err(|error| ToolError::field("include", error))
}

/// Without walls, and with every path that would change; what was named although it is held back first,
/// and for that only a person can speak (C-24).
fn collect_facts(place: &ToolPlace, diff: &Diff, include: &[TreePath]) -> Facts {
    let (held, free): (Vec<_>, Vec<_>) =
        diff.chosen(include).partition(|change| change.held.is_some());
    let lines: Vec<_> = held.iter().map(|change| change.to_string()).collect();
    let named =
        (!include.is_empty()).then(|| Detail::open("held back unless named", lines.join("\n")));
    let paths = held.iter().chain(&free).map(|change| change.path.to_string()).collect();
    let digest = Detail::open("contents", diff.digest().to_string());
    let details = named.into_iter().chain([digest]).collect();
    let facts = place.facts("workspace_apply", Programs::NONE, &[]);
    let person_only = !include.is_empty();
    Facts { paths, details, person_only, backend: None, boundary: Boundary::None, ..facts }
}

/// A paused sandbox. It is resumed when this is dropped, on every path out.
struct Paused(Option<Arc<ToolPlace>>);

impl Paused {
    /// Pauses a sandbox, where its walls can do that. Elsewhere the digests alone hold.
    async fn pause(place: &Arc<ToolPlace>) -> Result<Self, ToolError> {
        let measured = place.engine.detect_one(&place.backend).await;
        if !measured.is_some_and(|all| all.has(Feature::Pause)) {
            return Ok(Self(None));
        }
        place.paused.store(true, Ordering::Release);
        // Made before it is paused: this future may be dropped half-way.
        let paused = Self(Some(Arc::clone(place)));
        place.engine.pause(&place.id).await?;
        Ok(paused)
    }

    async fn resume(mut self) {
        if let Some(place) = self.0.take() {
            go_on(&place).await;
        }
    }
}

/// Lets a sandbox go on. One that does not is about to be destroyed, or is lost: both are told elsewhere.
async fn go_on(place: &ToolPlace) {
    if let Ok(sandbox) = place.engine.sandbox(&place.id) {
        let _ = sandbox.resume().await;
    }
    place.paused.store(false, Ordering::Release);
}

impl Drop for Paused {
    fn drop(&mut self) {
        let Some(place) = self.0.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { go_on(&place).await });
        }
    }
}

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AppliedReport<'a> {
    workspace: &'a WorkspaceId,
    #[serde(flatten)]
    applied: &'a Applied,
    /// The sandbox that ended with it.
    ended_sandbox: &'a str,
}

fn told(
    view: &WorkspaceView,
    place: &ToolPlace,
    applied: &Applied,
) -> Result<ToolAnswer, ToolError> {
    let mut text = format!(
        "applied {} changes to the user's files; sandbox {} has ended with everything in it, and the \
         next call begins anew\n",
        applied.applied.len(),
        place.id,
    );
    if !applied.held.is_empty() {
        text.push_str(&format!(
            "held back, for the user to decide (`stockade workspace apply {} --include PATH`):\n",
            view.id
        ));
        applied.held.iter().for_each(|path| text.push_str(&format!("  {path}\n")));
    }
    let data = AppliedReport { workspace: &view.id, applied, ended_sandbox: place.id.as_str() };
    ToolAnswer::told(&data, text)
}

fn conflict(conflicts: &[Conflict]) -> ToolError {
    let shown: Vec<_> = conflicts.iter().take(20).map(ToString::to_string).collect();
    let message = format!("nothing was applied; in conflict: {}", shown.join("; "));
    ToolError::new(ErrorCode::Denied, message).remedy(
        "the user changed these meanwhile: put them back here, or have the user apply the rest",
    )
}
