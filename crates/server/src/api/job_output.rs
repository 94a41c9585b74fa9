//! The output of a job from disk, by offset: also of an execution that has ended long ago, or was not run by this daemon.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use stockade_core::{ErrorCode, JobId, StreamId};
use stockade_engine::{OutputEvent, OutputLogReader};

use super::answer::{ApiAnswer, answer_ok};
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::jobs::find_job;
use super::page::PageBuilder;
use super::query::{ApiQuery, PathId};
use super::state::Api;

/// Which part of the output.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OutputQuery {
    /// Bytes of output, of both streams together, that are left out.
    offset: u64,
    /// Pieces at once.
    limit: Option<usize>,
}

/// `GET /v1/jobs/{id}/output`
pub(crate) async fn get_job_output(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<JobId>,
    ApiQuery(OutputQuery { offset, limit }): ApiQuery<OutputQuery>,
) -> ApiAnswer {
    // Before the output: what ended before it was read has all of it.
    let ended = find_job(&api, &caller, &id).await?.stopped.is_some();
    let busy = |_| ApiFailure::new(ErrorCode::Unavailable, "the daemon is being ended");
    let reader = Arc::clone(&api.journal_readers).acquire_owned().await.map_err(busy)?;
    let reading = tokio::task::spawn_blocking(move || {
        // Held by the work, which goes on where its client does not wait.
        let _reader = reader;
        let log = api.engine.output_logs().read(&id)?;
        read_page(log, offset, limit, ended)
    });
    let failed = |_| ApiFailure::new(ErrorCode::System, "the output was not read to its end");
    answer_ok(&reading.await.map_err(failed)??)
}

/// The output from an offset on. The next page is absent where the job has ended and there is no more.
fn read_page(
    log: Option<OutputLogReader>,
    offset: u64,
    limit: Option<usize>,
    ended: bool,
) -> Result<Value, ApiFailure> {
    let mut page = PageBuilder::new(limit);
    let mut next = offset;
    if let Some(mut log) = log {
        loop {
            let start = log.position();
            let Some(event) = log.next_event()? else { break };
            let end = log.position();
            if end <= offset {
                continue;
            }
            let start = start.max(offset);
            if let Some(piece) = describe_piece(event, start, end)
                && !page.push(end, &piece)?
            {
                break;
            }
            next = end;
        }
    }
    let mut page = page.finish("output");
    if page["next"].is_null() && !ended {
        page["next"] = next.into();
    }
    Ok(page)
}

/// What lies between two offsets, the second of which is where the event ends.
fn describe_piece(event: OutputEvent, start: u64, end: u64) -> Option<Value> {
    match event {
        OutputEvent::Output { stream, data, .. } => {
            let wanted = usize::try_from(end - start).unwrap_or(usize::MAX).min(data.len());
            Some(describe_output(start, stream, &data.slice(data.len() - wanted..)))
        }
        OutputEvent::Gap { .. } => Some(json!({ "offset": start, "missedBytes": end - start })),
        OutputEvent::End(_) => None,
    }
}

fn describe_output(offset: u64, stream: StreamId, data: &Bytes) -> Value {
    let stream = match stream {
        StreamId::Stdout => "stdout",
        StreamId::Stderr => "stderr",
    };
    match std::str::from_utf8(data) {
        Ok(text) => json!({ "offset": offset, "stream": stream, "text": text }),
        Err(_) => {
            json!({ "offset": offset, "stream": stream, "base64": BASE64_STANDARD.encode(data) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_begins_where_it_is_wanted() {
        let output = || OutputEvent::Output {
            seq: 0,
            stream: StreamId::Stderr,
            data: Bytes::from_static(b"abc\xff"),
        };
        let whole = json!({ "offset": 4, "stream": "stderr", "base64": "YWJj/w==" });
        assert_eq!(describe_piece(output(), 4, 8), Some(whole));
        let rest = json!({ "offset": 6, "stream": "stderr", "base64": "Y/8=" });
        assert_eq!(describe_piece(output(), 6, 8), Some(rest));
        let gap = OutputEvent::Gap { events: 1, bytes: 9 };
        let told = json!({ "offset": 5, "missedBytes": 4 });
        assert_eq!(describe_piece(gap, 5, 9), Some(told));
    }
}
