//! Jobs: what the journal says about executions, also of those that this daemon has forgotten or never ran.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use stockade_core::{ErrorCode, JobId, SandboxId};
use stockade_engine::{Filter, Journal, Timestamp};

use super::answer::{ApiAnswer, answer_ok};
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::page::PageBuilder;
use super::query::{ApiQuery, PathId};
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
    /// Started before this instant.
    until: Option<Timestamp>,
    /// What the page before has said: the number of the record of its last start.
    before: Option<u64>,
    limit: Option<usize>,
}

/// `GET /v1/jobs`
pub(crate) async fn list_jobs(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(query): ApiQuery<JobQuery>,
) -> ApiAnswer {
    let JobQuery { sandbox, since, until, before, limit } = query;
    let filter = Filter { sandbox, until, ..filter_of(&caller, since) };
    answer_ok(&read_jobs(&api, filter, before, limit).await?)
}

/// `GET /v1/jobs/{id}`
pub(crate) async fn get_job(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<JobId>,
) -> ApiAnswer {
    let filter = Filter { job: Some(id.clone()), ..filter_of(&caller, None) };
    let mut found = read_jobs(&api, filter, None, Some(1)).await?;
    match found["jobs"].get_mut(0).map(Value::take) {
        Some(job) => answer_ok(&job),
        None => Err(ApiFailure::not_found("job", id.as_str())),
    }
}

/// The records that are there for the caller.
pub(crate) fn filter_of(caller: &ApiCaller, since: Option<Timestamp>) -> Filter {
    let earliest = SystemTime::now().checked_sub(DEFAULT_LOOKBACK).map(Timestamp::from);
    Filter { tenant: caller.tenant().cloned(), since: since.or(earliest), ..Filter::default() }
}

/// One page of the jobs whose start has a lower number.
async fn read_jobs(
    api: &Api,
    filter: Filter,
    before: Option<u64>,
    limit: Option<usize>,
) -> Result<Value, ApiFailure> {
    read_journal(api, move |journal| {
        let mut page = PageBuilder::new(limit);
        for job in journal.newest_jobs(filter)? {
            let job = job?;
            let told = before.is_some_and(|before| job.started.seq >= before);
            if !told && !page.push(job.started.seq, &job)? {
                break;
            }
        }
        Ok(page.finish("jobs"))
    })
    .await
}

/// Reads the journal in a thread of its own; few do at once.
pub(crate) async fn read_journal<T: Send + 'static>(
    api: &Api,
    read: impl FnOnce(&Journal) -> Result<T, ApiFailure> + Send + 'static,
) -> Result<T, ApiFailure> {
    let busy = |_| ApiFailure::new(ErrorCode::Unavailable, "the daemon is being ended");
    let reader = Arc::clone(&api.journal_readers).acquire_owned().await.map_err(busy)?;
    let engine = api.engine.clone();
    let reading = tokio::task::spawn_blocking(move || {
        // Held by the work, which goes on where its client does not wait.
        let _reader = reader;
        read(engine.journal())
    });
    let ended = |_| ApiFailure::new(ErrorCode::System, "the journal was not read to its end");
    reading.await.map_err(ended)?
}
