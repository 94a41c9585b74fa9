//! The tools about single files. Paths resolve inside the place by its kernel (C-21, C-22); nothing
//! here decides by comparing strings.

mod artifacts;
mod edit;
mod list;
mod media;
mod read;
pub(crate) mod replace;

use std::sync::Arc;

use stockade_core::{Files, SandboxPath};

pub(crate) use artifacts::fetch_artifacts;
pub(crate) use edit::{LineEnds, MAX_EDIT_BYTES, edit_file};
pub(crate) use list::list_directory;
pub(crate) use read::read_file;

use crate::approval::{Detail, Facts, Programs};
use crate::arguments::WriteFile;
use crate::place::ToolPlace;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// Bytes at the start of a file that tell text from the rest.
const SNIFF_BYTES: usize = 8192;

/// Whether these first bytes are not text.
pub(crate) fn is_binary(start: &[u8]) -> bool {
    start[..start.len().min(SNIFF_BYTES)].contains(&0)
}

/// A name or path on one line: control characters are escaped.
pub(crate) fn escape_path(path: &str) -> String {
    if path.contains(char::is_control) { path.escape_debug().to_string() } else { path.to_owned() }
}

/// The files of a place, once the rules allow the call.
pub(crate) async fn approve_files<'a>(
    session: &ToolSession,
    place: &'a ToolPlace,
    tool: &str,
    paths: &[&SandboxPath],
    call: &Call,
) -> Result<&'a dyn Files, ToolError> {
    approved_with(session, place, tool, paths, Vec::new(), call).await
}

/// The same for a call that writes: what it writes is shown to the person who is asked.
pub(crate) async fn approved_with<'a>(
    session: &ToolSession,
    place: &'a ToolPlace,
    tool: &str,
    paths: &[&SandboxPath],
    details: Vec<Detail>,
    call: &Call,
) -> Result<&'a dyn Files, ToolError> {
    place.refuse_outside(paths).await?;
    let facts = Facts { details, ..place.facts(tool, Programs::NONE, paths) };
    session.pass(place, None, facts, call).await?;
    place.files()
}

/// Work that stops when the caller gives up.
pub(crate) async fn unless_cancelled<T>(
    call: &Call,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    tokio::select! {
        done = work => done,
        () = call.cancelled.wait() => Err(ToolError::cancelled()),
    }
}

pub(crate) async fn write_file(
    session: &ToolSession,
    args: WriteFile,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let content = vec![Detail::private("content", &args.content)];
    let paths = [&args.path];
    let files = approved_with(session, &place, "write_file", &paths, content, call).await?;
    let old = replace::read_existing_mode(files, &args.path).await?;
    let bytes = args.content.len();
    let (path, mode) = (args.path.clone(), old.unwrap_or(0o644));
    replace::replace_file_uncancelled(Arc::clone(&place), path, args.content.into(), mode).await?;
    let verb = if old.is_some() { "replaced" } else { "made" };
    let data = serde_json::json!({ "path": args.path, "bytes": bytes, "created": old.is_none() });
    ToolAnswer::told(&data, format!("{verb} {} ({bytes} bytes)", escape_path(args.path.as_str())))
}
