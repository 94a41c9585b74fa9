//! Sandboxes: made, listed, looked at, paused, copied and destroyed.

use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stockade_core::{ErrorCode, SandboxId, SnapshotId, Span};
use stockade_engine::{SandboxRequest, spec_of_a_copy};

use super::answer::{ApiAnswer, answer_created, answer_done, answer_ok};
use super::body::{parse_json, read_body, read_json};
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::held::{HeldSandbox, SandboxState};
use super::idempotency::RequestKey;
use super::jobs::has_labels;
use super::lifetime::{AskedLife, EndReason};
use super::named::NamedSandbox;
use super::page::PageBuilder;
use super::query::ApiQuery;
use super::snapshots::find_snapshot;
use super::spec::build_spec;
use super::state::Api;
use crate::life::LifeBounds;

/// Path of the collection.
const SANDBOXES_PATH: &str = "/v1/sandboxes";
/// Timeout for stopping every process of a sandbox where it is, and for continuing it.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Copies of one request.
const MAX_COPIES_PER_REQUEST: usize = 16;

/// What a sandbox is to be.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct NewSandbox {
    /// The spec, over what is configured.
    spec: Map<String, Value>,
    /// The snapshot that it starts with.
    from: Option<SnapshotId>,
    /// It ends this long from now.
    lifetime: Option<Span>,
    /// It ends when it was not used for this long.
    idle: Option<Span>,
}

/// Which sandboxes, and which page of them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxQuery {
    /// `KEY` or `KEY=VALUE`, several separated by commas.
    label: Option<String>,
    state: Option<SandboxState>,
    /// The last id of the page before.
    after: Option<SandboxId>,
    limit: Option<usize>,
}

/// How many copies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NewCopies {
    count: usize,
}

impl Default for NewCopies {
    fn default() -> Self {
        Self { count: 1 }
    }
}

/// `POST /v1/sandboxes`
pub(crate) async fn create_sandbox(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let body = read_body(body).await?;
    let key = RequestKey::of(&headers, &caller, SANDBOXES_PATH, &body)?;
    let work = async {
        let NewSandbox { spec, from, lifetime, idle } = parse_json(&body)?;
        let bounds = AskedLife { lifetime, idle }.bound_new(&caller, api.max_lifetime)?;
        make_sandbox(&api, &caller, spec, from, bounds).await
    };
    let making = api.created.run_once(key, work);
    let id = api.make(making).await?;
    let held = api.sandbox(&caller, &id)?;
    answer_created(format!("{SANDBOXES_PATH}/{id}"), &held.view(&api.engine))
}

/// Makes a sandbox, and holds it.
pub(super) async fn make_sandbox(
    api: &Api,
    caller: &ApiCaller,
    spec: Map<String, Value>,
    from: Option<SnapshotId>,
    bounds: LifeBounds,
) -> Result<SandboxId, ApiFailure> {
    let spec = build_spec(&api.configured(), spec, caller)?;
    if let Some(from) = &from {
        find_snapshot(api, caller, from).await?;
    }
    let slot = api.reserve_sandbox().await?;
    let request = SandboxRequest { from, ..SandboxRequest::from(spec.clone()) };
    let id = api.engine.create(request).await?;
    // Nothing is waited for from here on: the sandbox is held, or was never made.
    api.hold_sandbox(id.clone(), spec, bounds, slot)?;
    Ok(id)
}

/// `GET /v1/sandboxes`
pub(crate) async fn list_sandboxes(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(query): ApiQuery<SandboxQuery>,
) -> ApiAnswer {
    let all = api.sandboxes(&caller);
    let mut page = PageBuilder::new(query.limit);
    for held in all.iter().filter(|held| query.admits(held, held.state(&api.engine))) {
        if !page.push(&held.id, &held.view(&api.engine))? {
            break;
        }
    }
    answer_ok(&page.finish("sandboxes"))
}

impl SandboxQuery {
    fn admits(&self, held: &HeldSandbox, state: SandboxState) -> bool {
        self.after.as_ref().is_none_or(|after| held.id > *after)
            && self.state.is_none_or(|wanted| wanted == state)
            && self.label.as_ref().is_none_or(|wanted| has_labels(&held.spec.labels, wanted))
    }
}

/// `GET /v1/sandboxes/{id}`
pub(crate) async fn get_sandbox(
    State(api): State<Api>,
    NamedSandbox(held): NamedSandbox,
) -> ApiAnswer {
    answer_ok(&held.view(&api.engine))
}

/// `DELETE /v1/sandboxes/{id}`
pub(crate) async fn delete_sandbox(
    State(api): State<Api>,
    NamedSandbox(held): NamedSandbox,
) -> ApiAnswer {
    // In a task: it is destroyed whether or not the client waits.
    held.note_end(EndReason::Deleted);
    let destroying = tokio::spawn(async move {
        api.engine.destroy(&held.id).await?;
        api.forget_sandbox(&held.id);
        Ok::<(), ApiFailure>(())
    });
    let ended = |_| ApiFailure::new(ErrorCode::System, "the sandbox was not destroyed");
    destroying.await.map_err(ended)??;
    answer_done()
}

/// `POST /v1/sandboxes/{id}/pause`
pub(crate) async fn pause_sandbox(
    State(api): State<Api>,
    NamedSandbox(held): NamedSandbox,
) -> ApiAnswer {
    set_paused(&api, &held, true).await
}

/// `POST /v1/sandboxes/{id}/resume`
pub(crate) async fn resume_sandbox(
    State(api): State<Api>,
    NamedSandbox(held): NamedSandbox,
) -> ApiAnswer {
    set_paused(&api, &held, false).await
}

async fn set_paused(api: &Api, held: &HeldSandbox, paused: bool) -> ApiAnswer {
    let _busy = held.begin_use(&api.engine)?;
    let (engine, id) = (&api.engine, &held.id);
    let changing = async { if paused { engine.pause(id).await } else { engine.resume(id).await } };
    within_pause_timeout(changing).await?;
    answer_ok(&held.view(&api.engine))
}

async fn within_pause_timeout(
    work: impl Future<Output = stockade_core::Result<()>>,
) -> Result<(), ApiFailure> {
    match tokio::time::timeout(PAUSE_TIMEOUT, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(ApiFailure::new(ErrorCode::TooSlow, "the sandbox did not stop or continue")),
    }
}

/// `POST /v1/sandboxes/{id}/fork`
pub(crate) async fn fork_sandbox(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    NamedSandbox(held): NamedSandbox,
    body: Body,
) -> ApiAnswer {
    let NewCopies { count } = read_json(body).await?;
    if !(1..=MAX_COPIES_PER_REQUEST).contains(&count) {
        let message = format!("`count` is between 1 and {MAX_COPIES_PER_REQUEST}");
        return Err(ApiFailure::new(ErrorCode::Invalid, message));
    }
    // In a task: copies that are made are held, whether or not the client waits.
    let busy = held.begin_use(&api.engine)?;
    let forking = tokio::spawn(async move {
        let _busy = busy;
        let ids = api.make(make_copies(&api, &held, count)).await?;
        let made: Vec<_> = ids.iter().filter_map(|id| api.sandbox(&caller, id).ok()).collect();
        let views: Vec<_> = made.iter().map(|held| held.view(&api.engine)).collect();
        answer_ok(&json!({ "sandboxes": views }))
    });
    let ended = |_| ApiFailure::new(ErrorCode::System, "the copies were not finished");
    forking.await.map_err(ended)?
}

async fn make_copies(
    api: &Api,
    of: &HeldSandbox,
    count: usize,
) -> Result<Vec<SandboxId>, ApiFailure> {
    let mut slots = Vec::new();
    for _ in 0..count {
        slots.push(api.reserve_sandbox().await?);
    }
    let ids = api.engine.fork(&of.id, count).await?;
    for (id, slot) in ids.iter().zip(slots) {
        // A copy lives no longer than what it was made of.
        api.hold_sandbox(id.clone(), spec_of_a_copy(&of.spec), of.life.bounds(), slot)?;
    }
    Ok(ids)
}
