//! From changes to files: everything is computed first, then written; what was written before a
//! failure is put back.

use std::sync::Arc;

use bytes::Bytes;
use stockade_core::{ErrorCode, Files, FilesExt, SandboxPath};

use super::change::{Action, Change};
use super::text::{Hunk, Text};
use crate::ToolError;
use crate::files::{MAX_EDIT_BYTES, replace};
use crate::place::Place;

/// The most that all old files together may hold.
const MOST_HELD: usize = 64 << 20;

/// One file before and after.
pub(super) struct Step {
    path: SandboxPath,
    before: Option<State>,
    after: Option<State>,
}

#[derive(Clone)]
struct State {
    content: Bytes,
    mode: u32,
}

/// Computes what every file will be, touching nothing.
pub(super) async fn plan(files: &dyn Files, changes: Vec<Change>) -> Result<Vec<Step>, ToolError> {
    let mut steps = Vec::new();
    let mut held = 0;
    for change in changes {
        let before = state(files, &change.path).await?;
        held += before.as_ref().map_or(0, |state| state.content.len());
        if held > MOST_HELD {
            let message = format!("the files to patch hold more than {MOST_HELD} bytes together");
            return Err(ToolError::new(ErrorCode::TooLarge, message));
        }
        steps.extend(steps_of(files, change, before).await?);
    }
    Ok(steps)
}

async fn state(files: &dyn Files, path: &SandboxPath) -> Result<Option<State>, ToolError> {
    let Some(mode) = replace::existing(files, path).await? else {
        return Ok(None);
    };
    let content = files.read_all(path, MAX_EDIT_BYTES).await?.into();
    Ok(Some(State { content, mode }))
}

async fn steps_of(
    files: &dyn Files,
    Change { path, action }: Change,
    before: Option<State>,
) -> Result<Vec<Step>, ToolError> {
    match (action, before) {
        (Action::Add { .. }, Some(_)) => Err(exists(&path)),
        (Action::Add { text, mode }, None) => {
            let after = State { content: text.write().into(), mode: mode.unwrap_or(0o644) };
            Ok(vec![Step { path, before: None, after: Some(after) }])
        }
        (Action::Delete { .. } | Action::Update { .. }, None) => {
            Err(ToolError::new(ErrorCode::NotFound, format!("there is no file `{path}`")))
        }
        (Action::Delete { hunks }, Some(before)) => {
            let deletes = !hunks.is_empty();
            let text = patched(&path, &before.content, hunks).await?;
            if deletes && !text.lines.is_empty() {
                let message = format!("`{path}` holds more than the patch deletes");
                return Err(ToolError::new(ErrorCode::Invalid, message));
            }
            Ok(vec![Step { path, before: Some(before), after: None }])
        }
        (Action::Update { hunks, to, mode }, Some(before)) => {
            let text = patched(&path, &before.content, hunks).await?;
            let after = State { content: text.write().into(), mode: mode.unwrap_or(before.mode) };
            let Some(to) = to else {
                return Ok(vec![Step { path, before: Some(before), after: Some(after) }]);
            };
            if replace::existing(files, &to).await?.is_some() {
                return Err(exists(&to));
            }
            Ok(vec![
                Step { path: to, before: None, after: Some(after) },
                Step { path, before: Some(before), after: None },
            ])
        }
    }
}

fn exists(path: &SandboxPath) -> ToolError {
    ToolError::new(ErrorCode::Invalid, format!("`{path}` exists already"))
        .remedy("update it, or delete it in a patch of its own")
}

/// Where it holds nobody up: finding the place of a hunk may take a while.
async fn patched(path: &SandboxPath, old: &Bytes, hunks: Vec<Hunk>) -> Result<Text, ToolError> {
    let old = old.clone();
    let applying = tokio::task::spawn_blocking(move || {
        let mut text = Text::read(&old);
        text.apply(&hunks).map(|()| text)
    });
    applying.await.map_err(|_| interrupted())?.map_err(|(line, misfit)| {
        let message =
            format!("the hunk at line {line} of the patch does not fit `{path}`: {misfit}");
        ToolError::new(ErrorCode::Invalid, message)
            .remedy("read the file again and make the patch from what it holds now")
    })
}

/// Writes everything, or puts back what was written.
pub(super) async fn commit(place: Arc<Place>, steps: Vec<Step>) -> Result<(), ToolError> {
    let files = place.files()?;
    let mut made = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        made.extend(missing_above(files, &step.path).await);
        let Err(error) = put(files, &step.path, step.after.as_ref()).await else {
            continue;
        };
        let mut lost = Vec::new();
        for step in steps[..=at].iter().rev() {
            if put(files, &step.path, step.before.as_ref()).await.is_err() {
                lost.push(step.path.to_string());
            }
        }
        remove_empty(files, &made).await;
        return Err(rollback_error(error, &lost));
    }
    Ok(())
}

async fn put(
    files: &dyn Files,
    path: &SandboxPath,
    state: Option<&State>,
) -> Result<(), ToolError> {
    match state {
        Some(state) => replace::replace(files, path, state.content.clone(), state.mode).await,
        // A directory that came in between is not ours to remove.
        None => match replace::existing(files, path).await? {
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
            // One that somebody uses by now stays.
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

pub(super) fn interrupted() -> ToolError {
    ToolError::new(ErrorCode::System, "writing was interrupted")
        .remedy("look at the files before trying again")
}
