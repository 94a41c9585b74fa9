//! From changes to files: everything is computed first, then written; what was written before a
//! failure is put back.

use std::sync::Arc;

use bytes::Bytes;
use stockade_core::{ErrorCode, Files, FilesExt, SandboxPath};

use super::change::{PatchAction, PatchChange};
use super::text::{Hunk, Text};
use crate::ToolError;
use crate::files::{MAX_EDIT_BYTES, replace};
use crate::place::ToolPlace;

/// The most that all old files together may hold.
const MAX_HELD_BYTES: usize = 64 << 20;

/// One file before and after.
pub(super) struct PatchStep {
    path: SandboxPath,
    before: Option<FileState>,
    after: Option<FileState>,
}

#[derive(Clone)]
struct FileState {
    content: Bytes,
    mode: u32,
}

/// Computes what every file will be, touching nothing.
pub(super) async fn plan_steps(
    files: &dyn Files,
    changes: Vec<PatchChange>,
) -> Result<Vec<PatchStep>, ToolError> {
    let mut steps = Vec::new();
    let mut held = 0;
    for change in changes {
        let before = read_state(files, &change.path).await?;
        held += before.as_ref().map_or(0, |state| state.content.len());
        if held > MAX_HELD_BYTES {
            let message =
                format!("the files to patch hold more than {MAX_HELD_BYTES} bytes together");
            return Err(ToolError::new(ErrorCode::TooLarge, message));
        }
        steps.extend(steps_of(files, change, before).await?);
    }
    Ok(steps)
}

async fn read_state(files: &dyn Files, path: &SandboxPath) -> Result<Option<FileState>, ToolError> {
    let Some(mode) = replace::read_existing_mode(files, path).await? else {
        return Ok(None);
    };
    let content = files.read_all(path, MAX_EDIT_BYTES).await?.into();
    Ok(Some(FileState { content, mode }))
}

async fn steps_of(
    files: &dyn Files,
    PatchChange { path, action }: PatchChange,
    before: Option<FileState>,
) -> Result<Vec<PatchStep>, ToolError> {
    match (action, before) {
        (PatchAction::Add { .. }, Some(_)) => Err(already_exists_error(&path)),
        (PatchAction::Add { text, mode }, None) => {
            let after = FileState { content: text.write().into(), mode: mode.unwrap_or(0o644) };
            Ok(vec![PatchStep { path, before: None, after: Some(after) }])
        }
        (PatchAction::Delete { .. } | PatchAction::Update { .. }, None) => {
            Err(ToolError::new(ErrorCode::NotFound, format!("there is no file `{path}`")))
        }
        (PatchAction::Delete { hunks }, Some(before)) => {
            let deletes = !hunks.is_empty();
            let text = apply_hunks(&path, &before.content, hunks).await?;
            if deletes && !text.lines.is_empty() {
                let message = format!("`{path}` holds more than the patch deletes");
                return Err(ToolError::new(ErrorCode::Invalid, message));
            }
            Ok(vec![PatchStep { path, before: Some(before), after: None }])
        }
        (PatchAction::Update { hunks, to, mode }, Some(before)) => {
            let text = apply_hunks(&path, &before.content, hunks).await?;
            let after =
                FileState { content: text.write().into(), mode: mode.unwrap_or(before.mode) };
            let Some(to) = to else {
                return Ok(vec![PatchStep { path, before: Some(before), after: Some(after) }]);
            };
            if replace::read_existing_mode(files, &to).await?.is_some() {
                return Err(already_exists_error(&to));
            }
            Ok(vec![
                PatchStep { path: to, before: None, after: Some(after) },
                PatchStep { path, before: Some(before), after: None },
            ])
        }
    }
}

fn already_exists_error(path: &SandboxPath) -> ToolError {
    ToolError::new(ErrorCode::Invalid, format!("`{path}` exists already"))
        .remedy("update it, or delete it in a patch of its own")
}

/// Runs on a thread for blocking work: finding the place of a hunk may take a while.
async fn apply_hunks(path: &SandboxPath, old: &Bytes, hunks: Vec<Hunk>) -> Result<Text, ToolError> {
    let old = old.clone();
    let applying = tokio::task::spawn_blocking(move || {
        let mut text = Text::read(&old);
        text.apply(&hunks).map(|()| text)
    });
    applying.await.map_err(|_| interrupted_error())?.map_err(|(line, misfit)| {
        let message =
            format!("the hunk at line {line} of the patch does not fit `{path}`: {misfit}");
        ToolError::new(ErrorCode::Invalid, message)
            .remedy("read the file again and make the patch from what it holds now")
    })
}

/// Writes everything, or puts back what was written.
pub(super) async fn commit_steps(
    place: Arc<ToolPlace>,
    steps: Vec<PatchStep>,
) -> Result<(), ToolError> {
    let files = place.files()?;
    let mut made = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        made.extend(missing_above(files, &step.path).await);
        let Err(error) = put_state(files, &step.path, step.after.as_ref()).await else {
            continue;
        };
        let mut lost = Vec::new();
        for step in steps[..=at].iter().rev() {
            if put_state(files, &step.path, step.before.as_ref()).await.is_err() {
                lost.push(step.path.to_string());
            }
        }
        remove_empty(files, &made).await;
        return Err(rollback_error(error, &lost));
    }
    Ok(())
}

async fn put_state(
    files: &dyn Files,
    path: &SandboxPath,
    state: Option<&FileState>,
) -> Result<(), ToolError> {
    match state {
        Some(state) => replace::replace_file(files, path, state.content.clone(), state.mode).await,
        // A directory that came in between is not ours to remove.
        None => match replace::read_existing_mode(files, path).await? {
            Some(_) => Ok(files.remove(path).await?),
            None => Ok(()),
        },
    }
}

/// The directories above a path that are not there yet, the highest first.
async fn missing_above(files: &dyn Files, path: &SandboxPath) -> Vec<SandboxPath> {
    let ends = path.as_str().match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    let mut missing = Vec::new();
    for end in ends {
        let Ok(dir) = path.as_str()[..end].parse::<SandboxPath>() else { continue };
        if files.stat(&dir).await.is_err_and(|error| error.code() == ErrorCode::NotFound) {
            missing.push(dir);
        }
    }
    missing
}

/// Takes directories away again that were made for nothing.
async fn remove_empty(files: &dyn Files, made: &[SandboxPath]) {
    for dir in made.iter().rev() {
        if files.list(dir).await.is_ok_and(|entries| entries.is_empty()) {
            // A directory that another program uses by now stays.
            let _ = files.remove(dir).await;
        }
    }
}

fn rollback_error(error: ToolError, lost: &[String]) -> ToolError {
    if lost.is_empty() {
        return ToolError { message: format!("nothing was changed: {}", error.message), ..error };
    }
    let message =
        format!("{}; and these could not be put back: {}", error.message, lost.join(", "));
    ToolError { message, ..error }
}

pub(super) fn interrupted_error() -> ToolError {
    ToolError::new(ErrorCode::System, "writing was interrupted")
        .remedy("look at the files before trying again")
}
