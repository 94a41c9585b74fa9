//! Attached executions: a program whose output its one client misses nothing of, and that ends with the connection
//! that started it. While the client does not read, the program waits, as it would at a full pipe.

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use serde_json::json;
use stockade_core::{Command, ErrorCode, JobId, SandboxId};
use stockade_engine::{Execution, OutputEvent, Subscription, Watcher};

use super::answer::{ApiAnswer, answer_done};
use super::attached::KEEP_ALIVE_INTERVAL;
use super::body::read_json;
use super::caller::ApiCaller;
use super::connection::WaitsForReader;
use super::events::output_event;
use super::failure::ApiFailure;
use super::query::PathId;
use super::state::Api;

/// `POST /v1/sandboxes/{id}/attached`
pub(crate) async fn run_attached(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<SandboxId>,
    body: Body,
) -> ApiAnswer {
    let held = api.sandbox(&caller, &id)?;
    let command: Command = read_json(body).await?;
    let room = api.reserve_execution(&held)?;
    let starting = async { Ok(api.engine.exec_followed(&held.id, command).await?) };
    let (execution, follower) = api.make(starting).await?;
    let watcher = Watcher::clone(&execution);
    api.hold_execution(watcher, held.spec.tenant.clone(), room);
    let started =
        Event::default().event("started").data(json!({ "id": execution.job() }).to_string());
    // The program is killed when the last of the stream is dropped before its end.
    let rest = stream::unfold((execution, follower), next_event);
    let events = stream::iter([started]).chain(rest).map(Ok::<_, Infallible>);
    let sent = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL));
    let mut response = sent.into_response();
    response.extensions_mut().insert(WaitsForReader);
    Ok(response)
}

async fn next_event(
    (execution, mut follower): (Execution, Subscription),
) -> Option<(Event, (Execution, Subscription))> {
    let (kind, data) = match follower.next().await? {
        OutputEvent::Output { seq, stream, data } => {
            let sent = output_event(seq, stream, &data);
            (sent.kind, sent.data)
        }
        // Only of a program that is being ended: no follower may keep it alive by not reading.
        OutputEvent::Gap { events, bytes } => ("gap", json!({ "missed": events, "bytes": bytes })),
        OutputEvent::End(outcome) => ("exit", json!(outcome)),
    };
    Some((Event::default().event(kind).data(data.to_string()), (execution, follower)))
}

/// `POST /v1/executions/{id}/stdin`
pub(crate) async fn stream_input(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(job): PathId<JobId>,
    body: Body,
) -> ApiAnswer {
    let watcher = api.execution(&caller, &job)?.watcher.clone();
    tokio::select! {
        fed = feed_input(&watcher, body) => fed?,
        _ = watcher.outcome() => {}
    }
    answer_done()
}

/// Feeds a program what comes, for as long as it runs. Input that was cut off does not end.
async fn feed_input(watcher: &Watcher, mut body: Body) -> Result<(), ApiFailure> {
    while let Some(frame) = body.frame().await {
        let cut_off = |_| ApiFailure::new(ErrorCode::Invalid, "the input was cut off").last();
        // Trailers say nothing here.
        if let Ok(data) = frame.map_err(cut_off)?.into_data()
            && !data.is_empty()
        {
            watcher.write_stdin(data).await?;
        }
    }
    Ok(watcher.close_stdin().await?)
}
