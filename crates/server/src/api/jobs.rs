//! Jobs: what the journal says about executions, also of those that this daemon has forgotten or never ran.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use stockade_core::{BackendName, Ending, ErrorCode, JobId, SandboxId, TenantName};
use stockade_engine::{Event, Filter, Job, Journal, Timestamp};

use super::answer::{ApiAnswer, answer_ok};
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::page::PageBuilder;
use super::query::{ApiQuery, PathId};
use super::state::Api;

/// How far back is looked unless the request says so: a journal can be long.
const DEFAULT_LOOKBACK: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Jobs that are looked at for one page: few of them may fit.
const MAX_JOBS_PER_PAGE_LOOKED_AT: usize = 20_000;

/// Which jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JobQuery {
    sandbox: Option<SandboxId>,
    tenant: Option<TenantName>,
    backend: Option<BackendName>,
    /// `KEY` or `KEY=VALUE`, several separated by commas.
    label: Option<String>,
    outcome: Option<JobOutcome>,
    /// Started at this instant or later.
    since: Option<Timestamp>,
    /// Started before this instant.
    until: Option<Timestamp>,
    /// What the page before has said: the number of the record of its last start.
    before: Option<u64>,
    limit: Option<usize>,
}

/// How a job ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum JobOutcome {
    Running,
    Exited,
    Signalled,
    StartFailed,
    LimitExceeded,
    TimedOut,
    Cancelled,
    Killed,
    Refused,
    Lost,
}

impl JobOutcome {
    fn of(job: &Job) -> Self {
        let outcome = job.stopped.as_ref().and_then(|stopped| stopped.event.outcome());
        match outcome.map(|outcome| &outcome.ending) {
            None => Self::Running,
            Some(Ending::Exited(_)) => Self::Exited,
            Some(Ending::Signalled(_)) => Self::Signalled,
            Some(Ending::StartFailed(_)) => Self::StartFailed,
            Some(Ending::LimitExceeded(_)) => Self::LimitExceeded,
            Some(Ending::TimedOut) => Self::TimedOut,
            Some(Ending::Cancelled) => Self::Cancelled,
            Some(Ending::Killed) => Self::Killed,
            Some(Ending::Refused(_)) => Self::Refused,
            Some(Ending::Lost(_)) => Self::Lost,
        }
    }
}

/// What a page shows of the jobs that a filter lets through.
#[derive(Debug, Default)]
struct JobPage {
    label: Option<String>,
    outcome: Option<JobOutcome>,
    before: Option<u64>,
    limit: Option<usize>,
}

impl JobPage {
    fn admits(&self, job: &Job) -> bool {
        let Event::Started { labels, .. } = &job.started.event else { return false };
        self.outcome.is_none_or(|wanted| wanted == JobOutcome::of(job))
            && self.label.as_ref().is_none_or(|wanted| has_labels(labels, wanted))
    }
}

/// Whether there are these labels: `KEY` or `KEY=VALUE`, several separated by commas.
pub(crate) fn has_labels(labels: &BTreeMap<String, String>, wanted: &str) -> bool {
    wanted.split(',').all(|wanted| match wanted.split_once('=') {
        Some((key, value)) => labels.get(key).is_some_and(|given| given == value),
        None => labels.contains_key(wanted),
    })
}

/// `GET /v1/jobs`
pub(crate) async fn list_jobs(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(query): ApiQuery<JobQuery>,
) -> ApiAnswer {
    let JobQuery { sandbox, tenant, backend, label, outcome, since, until, before, limit } = query;
    let page = JobPage { label, outcome, before, limit };
    if tenant.as_ref().is_some_and(|tenant| !caller.sees(tenant)) {
        // As of a tenant that has none.
        return answer_ok(&PageBuilder::<u64>::new(None).finish("jobs"));
    }
    let of_caller = filter_of(&caller, since);
    let tenant = of_caller.tenant.clone().or(tenant);
    let filter = Filter { sandbox, tenant, backend, until, ..of_caller };
    answer_ok(&read_jobs(&api, filter, page).await?)
}

/// `GET /v1/jobs/{id}`
pub(crate) async fn get_job(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    PathId(id): PathId<JobId>,
) -> ApiAnswer {
    answer_ok(&find_job(&api, &caller, &id).await?)
}

/// A job that is there for the caller.
pub(crate) async fn find_job(api: &Api, caller: &ApiCaller, id: &JobId) -> Result<Job, ApiFailure> {
    let filter = Filter { job: Some(id.clone()), ..filter_of(caller, None) };
    let find = move |journal: &Journal| -> Result<Option<Job>, ApiFailure> {
        Ok(journal.newest_jobs(filter)?.next().transpose()?)
    };
    let found = read_journal(api, find).await?;
    found.ok_or_else(|| ApiFailure::not_found("job", id.as_str()))
}

/// The records that are there for the caller.
pub(crate) fn filter_of(caller: &ApiCaller, since: Option<Timestamp>) -> Filter {
    let earliest = SystemTime::now().checked_sub(DEFAULT_LOOKBACK).map(Timestamp::from);
    Filter { tenant: caller.tenant().cloned(), since: since.or(earliest), ..Filter::default() }
}

/// One page of jobs. Where few of many fit, it may have none and a next one.
async fn read_jobs(api: &Api, filter: Filter, wanted: JobPage) -> Result<Value, ApiFailure> {
    read_journal(api, move |journal| {
        let mut page = PageBuilder::new(wanted.limit);
        let mut looked_at = 0;
        for job in journal.newest_jobs(filter)? {
            let job = job?;
            if wanted.before.is_some_and(|before| job.started.seq >= before) {
                continue;
            }
            if wanted.admits(&job) && !page.push(job.started.seq, &job)? {
                break;
            }
            looked_at += 1;
            if looked_at == MAX_JOBS_PER_PAGE_LOOKED_AT {
                page.stop_at(job.started.seq);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit_by_key_or_by_key_and_value_and_all_of_them() {
        let labels = [("a", "1"), ("b", "2")].map(|(key, value)| (key.into(), value.into()));
        let labels = BTreeMap::from(labels);
        for fits in ["a", "a=1", "a,b=2"] {
            assert!(has_labels(&labels, fits), "{fits}");
        }
        for other in ["c", "a=2", "a,c", "a=1,b=1", ""] {
            assert!(!has_labels(&labels, other), "{other}");
        }
    }
}
