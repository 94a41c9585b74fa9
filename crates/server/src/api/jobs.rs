//! Jobs: what the journal says about executions, also of those that this daemon has forgotten or never ran.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::json;
use stockade_core::{ErrorCode, JobId, SandboxId};
use stockade_engine::{Filter, Job, Timestamp};

use super::answer::{ApiAnswer, answer_ok};
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::query::{ApiQuery, PathId, page_length};
use super::state::Api;

/// How far back is looked unless the request says so: a journal can be long.
const DEFAULT_LOOKBACK: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Which jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JobQuery {
    sandbox: Option<SandboxId>,
    /// Started at this instant or later.
    since: Option<Timestamp>,
    /// Started before this instant: with the start of the last job of a page, the next page.
    until: Option<Timestamp>,
    limit: Option<usize>,
}

/// `GET /v1/jobs`
pub(crate) async fn list_jobs(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(query): ApiQuery<JobQuery>,
) -> ApiAnswer {
    let JobQuery { sandbox, since, until, limit } = query;
    let filter = Filter { sandbox, until, ..filter_of(&caller, since) };
    let jobs = read_jobs(&api, filter, page_length(limit)).await?;
    answer_ok(&json!({ "jobs": jobs }))
}

/// `GET /v1/jobs/{id}`
pub(crate) async fn get_job(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<JobId>,
) -> ApiAnswer {
    let filter = Filter { job: Some(id.clone()), ..filter_of(&caller, None) };
    let found = read_jobs(&api, filter, 1).await?;
    answer_ok(found.first().ok_or_else(|| ApiFailure::not_found("job", id.as_str()))?)
}

/// The records that are there for the caller.
fn filter_of(caller: &ApiCaller, since: Option<Timestamp>) -> Filter {
    let earliest = SystemTime::now().checked_sub(DEFAULT_LOOKBACK).map(Timestamp::from);
    Filter { tenant: caller.tenant().cloned(), since: since.or(earliest), ..Filter::default() }
}

async fn read_jobs(api: &Api, filter: Filter, most: usize) -> Result<Vec<Job>, ApiFailure> {
    let busy = |_| ApiFailure::new(ErrorCode::Unavailable, "the daemon is being ended");
    let reader = Arc::clone(&api.journal_readers).acquire_owned().await.map_err(busy)?;
    let engine = api.engine.clone();
    let reading = tokio::task::spawn_blocking(move || {
        // Held by the work, which goes on where its client does not wait.
        let _reader = reader;
        engine.journal().newest_jobs(filter)?.take(most).collect::<stockade_core::Result<Vec<_>>>()
    });
    let ended = |_| ApiFailure::new(ErrorCode::System, "the journal was not read to its end");
    Ok(reading.await.map_err(ended)??)
}
