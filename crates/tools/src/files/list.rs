//! `list_dir`: bounded in depth and number, links never followed.

use std::collections::VecDeque;

use serde::Serialize;
use stockade_core::{Entry, EntryKind, Error, ErrorCode, Files, SandboxPath};

use super::{approve_files, escape_path, unless_cancelled};
use crate::arguments::ListDir;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

const DEFAULT_ENTRIES: u32 = 1000;
const MAX_ENTRIES: u32 = 20_000;
const MAX_DEPTH: u32 = 32;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FoundEntry {
    path: String,
    kind: EntryKind,
    size: u64,
    mode: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct DirListing {
    path: String,
    /// How many entries come before these.
    offset: u64,
    entries: Vec<FoundEntry>,
    /// Whether there are more than were asked for.
    truncated: bool,
    /// The `offset` that goes on where this ends, if it was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// Directories below that could not be listed, and why.
    unreadable: Vec<String>,
}

pub(crate) async fn list_directory(
    session: &ToolSession,
    args: ListDir,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let path = match &args.path {
        Some(path) => path.clone(),
        None => ".".parse()?,
    };
    let files = approve_files(session, &place, "list_dir", &[&path], call).await?;
    let listing = unless_cancelled(call, walk_directory(files, &path, &args)).await?;
    let text = format_listing(&listing);
    ToolAnswer::told(&listing, text)
}

async fn walk_directory(
    files: &dyn Files,
    path: &SandboxPath,
    args: &ListDir,
) -> Result<DirListing, ToolError> {
    let depth = args.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
    let most = args.limit.unwrap_or(DEFAULT_ENTRIES).clamp(1, MAX_ENTRIES) as usize;
    let mut skipped = 0;
    let mut listing =
        DirListing { path: path.to_string(), offset: args.offset, ..DirListing::default() };
    let mut todo = VecDeque::from([(String::new(), 1)]);
    while let Some((below, level)) = todo.pop_front() {
        let entries = match files.list(&join_path(path, &below)?).await {
            Ok(entries) => entries,
            Err(error) if below.is_empty() => return Err(list_error(path, error)),
            Err(error) => {
                listing.unreadable.push(error.message().to_owned());
                continue;
            }
        };
        for entry in sort_entries(entries) {
            if listing.entries.len() == most {
                listing.truncated = true;
                listing.next_offset = Some(args.offset.saturating_add(most as u64));
                return Ok(listing);
            }
            let name = format!("{below}{}", entry.name);
            if entry.kind == EntryKind::Directory && level < depth {
                todo.push_back((format!("{name}/"), level + 1));
            }
            if skipped < args.offset {
                skipped += 1;
                continue;
            }
            let mode = format!("{:04o}", entry.mode);
            listing.entries.push(FoundEntry {
                path: name,
                kind: entry.kind,
                size: entry.size,
                mode,
            });
        }
    }
    Ok(listing)
}

/// Why nothing is listed, and what else can be done about a directory that is too full.
fn list_error(path: &SandboxPath, error: Error) -> ToolError {
    if error.code() != ErrorCode::TooLarge {
        return error.into();
    }
    let path = escape_path(path.as_str());
    ToolError::from(error).remedy(format!(
        "find a part of it with `glob`, such as `{path}/a*`, or look at its beginning with `bash`: \
         ls -U {path} | head"
    ))
}

fn join_path(path: &SandboxPath, below: &str) -> Result<SandboxPath, ToolError> {
    if below.is_empty() {
        return Ok(path.clone());
    }
    let whole = format!("{}/{}", path.as_str().trim_end_matches('/'), below.trim_end_matches('/'));
    Ok(whole.parse()?)
}

fn sort_entries(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    entries
}

fn format_listing(listing: &DirListing) -> String {
    let mut text = String::new();
    for found in &listing.entries {
        let name = escape_path(&found.path);
        text.push_str(&match found.kind {
            EntryKind::Directory => format!("{name}/\n"),
            EntryKind::File => format!("{name}\t{}\n", found.size),
            EntryKind::Symlink => format!("{name}\t(symbolic link)\n"),
            EntryKind::Other => format!("{name}\t(device, fifo or socket)\n"),
        });
    }
    if let Some(next) = listing.next_offset {
        text.push_str(&format!("… there are more, from offset {next} on\n"));
    }
    if text.is_empty() {
        text.push_str(if listing.offset > 0 { "(no more)\n" } else { "(empty directory)\n" });
    }
    listing.unreadable.iter().for_each(|why| text.push_str(&format!("not listed: {why}\n")));
    text
}
