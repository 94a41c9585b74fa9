//! Snapshots: taken of a sandbox, listed, brought back in place and removed. A sandbox that starts with one is
//! made like any other, with `from`.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use stockade_core::{BackendName, Boundary, ErrorCode, SnapshotId, SnapshotKind, TenantName};
use stockade_engine::{Snapshot, Timestamp};

use super::answer::{ApiAnswer, answer_created, answer_done, answer_ok};
use super::body::read_json;
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::named::NamedSandbox;
use super::page::PageBuilder;
use super::query::{ApiQuery, PathId};
use super::state::Api;

/// Snapshots that the tenant of a token may have.
const MAX_SNAPSHOTS_PER_TENANT: usize = 64;

/// What to capture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NewSnapshot {
    kind: SnapshotKind,
}

impl Default for NewSnapshot {
    fn default() -> Self {
        Self { kind: SnapshotKind::Files }
    }
}

/// What to bring back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotChoice {
    snapshot: SnapshotId,
}

/// Which page of snapshots.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SnapshotQuery {
    /// The last id of the page before.
    after: Option<SnapshotId>,
    limit: Option<usize>,
}

/// A snapshot as callers see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotView<'a> {
    id: &'a SnapshotId,
    tenant: &'a TenantName,
    kind: SnapshotKind,
    backend: &'a BackendName,
    boundary: Boundary,
    taken: Timestamp,
    size_bytes: u64,
}

impl<'a> From<&'a Snapshot> for SnapshotView<'a> {
    fn from(snapshot: &'a Snapshot) -> Self {
        Self {
            id: &snapshot.id,
            tenant: &snapshot.spec.tenant,
            kind: snapshot.kind,
            backend: &snapshot.backend,
            boundary: snapshot.boundary,
            taken: snapshot.taken,
            size_bytes: snapshot.size().0,
        }
    }
}

/// `POST /v1/sandboxes/{id}/snapshots`
pub(crate) async fn take_snapshot(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    NamedSandbox(held): NamedSandbox,
    body: Body,
) -> ApiAnswer {
    let NewSnapshot { kind } = read_json(body).await?;
    if caller.tenant().is_some()
        && list_visible(&api, &caller).await?.len() >= MAX_SNAPSHOTS_PER_TENANT
    {
        let message = format!("the tenant has {MAX_SNAPSHOTS_PER_TENANT} snapshots");
        return Err(ApiFailure::new(ErrorCode::QuotaExceeded, message).remedy("delete some"));
    }
    let _busy = held.begin_use(&api.engine)?;
    let taking = async { Ok(api.engine.snapshot(&held.id, kind).await?) };
    let taken = api.make(taking).await?;
    answer_created(format!("/v1/snapshots/{}", taken.id), &SnapshotView::from(&taken))
}

/// `POST /v1/sandboxes/{id}/restore`
pub(crate) async fn restore_snapshot(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    NamedSandbox(held): NamedSandbox,
    body: Body,
) -> ApiAnswer {
    let SnapshotChoice { snapshot } = read_json(body).await?;
    find_snapshot(&api, &caller, &snapshot).await?;
    let _busy = held.begin_use(&api.engine)?;
    api.make(async { Ok(api.engine.restore(&held.id, &snapshot).await?) }).await?;
    answer_ok(&held.view(&api.engine))
}

/// `GET /v1/snapshots`
pub(crate) async fn list_snapshots(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(query): ApiQuery<SnapshotQuery>,
) -> ApiAnswer {
    let mut snapshots = list_visible(&api, &caller).await?;
    snapshots.sort_by(|one, other| one.id.cmp(&other.id));
    let mut page = PageBuilder::new(query.limit);
    let later = |one: &&Snapshot| query.after.as_ref().is_none_or(|after| one.id > *after);
    for snapshot in snapshots.iter().filter(later) {
        if !page.push(&snapshot.id, &SnapshotView::from(snapshot))? {
            break;
        }
    }
    answer_ok(&page.finish("snapshots"))
}

/// `GET /v1/snapshots/{id}`
pub(crate) async fn get_snapshot(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<SnapshotId>,
) -> ApiAnswer {
    answer_ok(&SnapshotView::from(&find_snapshot(&api, &caller, &id).await?))
}

/// `DELETE /v1/snapshots/{id}`
pub(crate) async fn delete_snapshot(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<SnapshotId>,
) -> ApiAnswer {
    find_snapshot(&api, &caller, &id).await?;
    on_store(&api, move |api| api.engine.snapshots().remove(&id)).await?;
    answer_done()
}

/// A snapshot that is there for the caller.
pub(crate) async fn find_snapshot(
    api: &Api,
    caller: &ApiCaller,
    id: &SnapshotId,
) -> Result<Snapshot, ApiFailure> {
    let wanted = id.clone();
    let found = on_store(api, move |api| api.engine.snapshots().get(&wanted)).await;
    match found {
        Ok(snapshot) if caller.sees(&snapshot.spec.tenant) => Ok(snapshot),
        Err(error) if error.code() != ErrorCode::NotFound => Err(error.into()),
        Ok(_) | Err(_) => Err(ApiFailure::not_found("snapshot", id.as_str())),
    }
}

async fn list_visible(api: &Api, caller: &ApiCaller) -> Result<Vec<Snapshot>, ApiFailure> {
    let listing = on_store(api, |api| api.engine.snapshots().list()).await?;
    let visible = listing.snapshots.into_iter().filter(|one| caller.sees(&one.spec.tenant));
    Ok(visible.collect())
}

/// Works on the stored snapshots, which are files.
async fn on_store<T: Send + 'static>(
    api: &Api,
    work: impl FnOnce(&Api) -> stockade_core::Result<T> + Send + 'static,
) -> stockade_core::Result<T> {
    let api = api.clone();
    tokio::task::spawn_blocking(move || work(&api)).await.unwrap_or_else(|join| {
        let message = "the work on snapshots ended";
        Err(stockade_core::Error::new(ErrorCode::System, "snapshot", message).source(join))
    })
}
