//! `list_dir`: bounded in depth and number, links never followed.

use std::collections::VecDeque;

use serde::Serialize;
use stockade_core::{Entry, EntryKind, Files, SandboxPath};

use super::{approved, shown, unless_cancelled};
use crate::arguments::ListDir;
use crate::toolbox::Session;
use crate::{Call, ToolAnswer, ToolError};

const LIMIT: u32 = 1000;
const MOST: u32 = 20_000;
const DEEPEST: u32 = 32;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    path: String,
    kind: EntryKind,
    size: u64,
    mode: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    path: String,
    entries: Vec<Found>,
    /// Whether there are more than were asked for.
    truncated: bool,
    /// Directories below that could not be listed, and why.
    unreadable: Vec<String>,
}

pub(crate) async fn list(
    session: &Session,
    args: ListDir,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let path = match &args.path {
        Some(path) => path.clone(),
        None => ".".parse()?,
    };
    let files = approved(session, &place, "list_dir", &[&path], call).await?;
    let listing = unless_cancelled(call, walk(files, &path, &args)).await?;
    let text = told(&listing);
    ToolAnswer::told(&listing, text)
}

async fn walk(files: &dyn Files, path: &SandboxPath, args: &ListDir) -> Result<Listing, ToolError> {
    let depth = args.depth.unwrap_or(1).clamp(1, DEEPEST);
    let most = args.limit.unwrap_or(LIMIT).clamp(1, MOST) as usize;
    let mut listing = Listing { path: path.to_string(), ..Listing::default() };
    let mut todo = VecDeque::from([(String::new(), 1)]);
    while let Some((below, level)) = todo.pop_front() {
        let entries = match files.list(&join(path, &below)?).await {
            Ok(entries) => entries,
            Err(error) if below.is_empty() => return Err(error.into()),
            Err(error) => {
                listing.unreadable.push(error.message().to_owned());
                continue;
            }
        };
        for entry in sorted(entries) {
            if listing.entries.len() == most {
                listing.truncated = true;
                return Ok(listing);
            }
            let name = format!("{below}{}", entry.name);
            if entry.kind == EntryKind::Directory && level < depth {
                todo.push_back((format!("{name}/"), level + 1));
            }
            let mode = format!("{:04o}", entry.mode);
            listing.entries.push(Found { path: name, kind: entry.kind, size: entry.size, mode });
        }
    }
    Ok(listing)
}

fn join(path: &SandboxPath, below: &str) -> Result<SandboxPath, ToolError> {
    if below.is_empty() {
        return Ok(path.clone());
    }
    let whole = format!("{}/{}", path.as_str().trim_end_matches('/'), below.trim_end_matches('/'));
    Ok(whole.parse()?)
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    entries
}

fn told(listing: &Listing) -> String {
    let mut text = String::new();
    for found in &listing.entries {
        let name = shown(&found.path);
        text.push_str(&match found.kind {
            EntryKind::Directory => format!("{name}/\n"),
            EntryKind::File => format!("{name}\t{}\n", found.size),
            EntryKind::Symlink => format!("{name}\t(symbolic link)\n"),
            EntryKind::Other => format!("{name}\t(device, fifo or socket)\n"),
        });
    }
    if listing.truncated {
        text.push_str("… there are more\n");
    }
    if text.is_empty() {
        text.push_str("(empty directory)\n");
    }
    listing.unreadable.iter().for_each(|why| text.push_str(&format!("not listed: {why}\n")));
    text
}
