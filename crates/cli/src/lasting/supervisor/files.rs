//! File requests, one answer each. The sandbox's own file operations decide what a path reaches.

use bytes::Bytes;
use stockade_core::{Entry, Error, ErrorCode, Files, Result};

use super::host::Host;
use crate::lasting::frame::MAX_PAYLOAD;
use crate::lasting::message::{Reply, Request};

/// Directory entries in one frame: with the longest names there are, still within a header.
const MAX_FRAME_ENTRIES: usize = 256;

/// Answers one request.
pub async fn answer(host: &Host, request: Request, payload: Bytes) -> Result<Vec<(Reply, Bytes)>> {
    let sandbox = host.engine.sandbox(&host.id)?;
    let files = sandbox.files()?;
    Ok(match one(files, request, payload).await? {
        Answer::Plain(reply) => vec![(reply, Bytes::new())],
        Answer::Data(data) => vec![(Reply::Data, data)],
        Answer::Listing(entries) => listing(entries),
    })
}

enum Answer {
    Plain(Reply),
    Data(Bytes),
    Listing(Vec<Entry>),
}

async fn one(files: &dyn Files, request: Request, payload: Bytes) -> Result<Answer> {
    match request {
        Request::Stat { path } => {
            files.stat(&path).await.map(|entry| Answer::Plain(Reply::Entry(entry)))
        }
        Request::List { path } => files.list(&path).await.map(Answer::Listing),
        Request::Read { path, offset, most } => {
            let most = most.min(u32::try_from(MAX_PAYLOAD).unwrap_or(u32::MAX));
            files.read(&path, offset, most).await.map(Answer::Data)
        }
        Request::Write { path, append } => files.write(&path, payload, append).await.map(done),
        Request::MakeDir { path } => files.make_dir(&path).await.map(done),
        Request::Hello { .. }
        | Request::Info
        | Request::Exec { .. }
        | Request::Logs { .. }
        | Request::Snapshot { .. }
        | Request::Restore { .. }
        | Request::Pause
        | Request::Resume
        | Request::Describe
        | Request::Destroy
        | Request::Stdin
        | Request::StdinEnd
        | Request::Signal { .. }
        | Request::Resize { .. }
        | Request::Cancel => {
            Err(Error::new(ErrorCode::Protocol, "serve", "the request is none about files"))
        }
    }
}

fn done((): ()) -> Answer {
    Answer::Plain(Reply::Done)
}

fn listing(mut entries: Vec<Entry>) -> Vec<(Reply, Bytes)> {
    let mut frames = Vec::new();
    loop {
        let rest = entries.split_off(entries.len().min(MAX_FRAME_ENTRIES));
        let more = !rest.is_empty();
        frames.push((Reply::Entries { entries, more }, Bytes::new()));
        if !more {
            return frames;
        }
        entries = rest;
    }
}
