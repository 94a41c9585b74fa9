//! File requests, one answer each. The sandbox's own file operations decide what a path reaches.

use bytes::Bytes;
use stockade_core::{Entry, Files, Result};

use super::host::SupervisorHost;
use crate::daemon::frame::MAX_PAYLOAD;
use crate::daemon::message::{SandboxFileRequest, SupervisorReply};

/// Directory entries in one frame: with the longest names there are, still within a header.
const MAX_FRAME_ENTRIES: usize = 256;
/// What the caller does with files.
const COPY_OPERATION: &str = "cp";

/// Answers one request.
pub async fn answer_file_request(
    host: &SupervisorHost,
    request: SandboxFileRequest,
    payload: Bytes,
) -> Result<Vec<(SupervisorReply, Bytes)>> {
    host.refuse_paused(COPY_OPERATION)?;
    let sandbox = host.engine.sandbox(&host.id)?;
    let files = sandbox.files()?;
    Ok(match handle_file_request(files, request, payload).await? {
        FileAnswer::Plain(reply) => vec![(reply, Bytes::new())],
        FileAnswer::Data(data) => vec![(SupervisorReply::Data, data)],
        FileAnswer::Listing(entries) => split_listing(entries),
    })
}

enum FileAnswer {
    Plain(SupervisorReply),
    Data(Bytes),
    Listing(Vec<Entry>),
}

async fn handle_file_request(
    files: &dyn Files,
    request: SandboxFileRequest,
    payload: Bytes,
) -> Result<FileAnswer> {
    match request {
        SandboxFileRequest::Stat { path } => {
            files.stat(&path).await.map(|entry| FileAnswer::Plain(SupervisorReply::Entry(entry)))
        }
        SandboxFileRequest::List { path } => files.list(&path).await.map(FileAnswer::Listing),
        SandboxFileRequest::Read { path, offset, most } => {
            let most = most.min(u32::try_from(MAX_PAYLOAD).unwrap_or(u32::MAX));
            files.read(&path, offset, most).await.map(FileAnswer::Data)
        }
        SandboxFileRequest::Write { path, append } => {
            files.write(&path, payload, append).await.map(empty_answer)
        }
        SandboxFileRequest::SetMode { path, mode } => {
            files.set_mode(&path, mode).await.map(empty_answer)
        }
        SandboxFileRequest::MakeDir { path } => files.make_dir(&path).await.map(empty_answer),
    }
}

fn empty_answer((): ()) -> FileAnswer {
    FileAnswer::Plain(SupervisorReply::Done)
}

fn split_listing(mut entries: Vec<Entry>) -> Vec<(SupervisorReply, Bytes)> {
    let mut frames = Vec::new();
    loop {
        let rest = entries.split_off(entries.len().min(MAX_FRAME_ENTRIES));
        let more = !rest.is_empty();
        frames.push((SupervisorReply::Entries { entries, more }, Bytes::new()));
        if !more {
            return frames;
        }
        entries = rest;
    }
}
