//! What tenants have used, summed from the journal: the caller's own, or for the daemon's user all of them.

use axum::Extension;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use stockade_core::TenantName;
use stockade_engine::{Filter, TenantUsage, Timestamp, UsageSummary};

use super::answer::{ApiAnswer, answer_ok};
use super::caller::ApiCaller;
use super::jobs::{filter_of, read_journal};
use super::query::ApiQuery;
use super::state::Api;

/// Within which time.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UsageQuery {
    /// Ended at this instant or later.
    since: Option<Timestamp>,
    /// Ended before this instant.
    until: Option<Timestamp>,
}

/// What was used within a time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageView {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    complete: bool,
    tenants: Vec<TenantUsageView>,
}

/// What one tenant has used.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct TenantUsageView {
    tenant: TenantName,
    jobs: u64,
    cpu_seconds: f64,
    wall_seconds: f64,
    memory_mib_seconds: f64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// `GET /v1/usage`
pub(crate) async fn get_usage(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(query): ApiQuery<UsageQuery>,
) -> ApiAnswer {
    let filter = Filter { until: query.until, ..filter_of(&caller, query.since) };
    let (since, until) = (filter.since, filter.until);
    let mut summary = read_journal(&api, move |journal| Ok(journal.usage(filter)?)).await?;
    if let Some(tenant) = caller.tenant() {
        summary.tenants.entry(tenant.clone()).or_default();
    }
    let UsageSummary { tenants, earliest, complete } = summary;
    // What was not read to its end says from when on it counts.
    let since = if complete { since } else { earliest.or(since) };
    let tenants = tenants.into_iter().map(TenantUsageView::from).collect();
    answer_ok(&UsageView { since, until, complete, tenants })
}

impl From<(TenantName, TenantUsage)> for TenantUsageView {
    fn from((tenant, usage): (TenantName, TenantUsage)) -> Self {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        Self {
            tenant,
            jobs: usage.jobs,
            cpu_seconds: seconds(usage.cpu_ms),
            wall_seconds: seconds(usage.wall_ms),
            memory_mib_seconds: usage.memory_byte_ms as f64 / f64::from(1 << 20) / 1000.0,
            sent_bytes: usage.sent_bytes,
            received_bytes: usage.received_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_told_in_seconds_and_mebibytes() {
        let usage = TenantUsage {
            jobs: 2,
            cpu_ms: 1500,
            wall_ms: 250,
            memory_byte_ms: 3 << 20,
            sent_bytes: 1,
            received_bytes: 2,
        };
        let tenant: TenantName = "a".parse().unwrap();
        let view = TenantUsageView::from((tenant.clone(), usage));
        let expected = TenantUsageView {
            tenant,
            jobs: 2,
            cpu_seconds: 1.5,
            wall_seconds: 0.25,
            memory_mib_seconds: 0.003,
            sent_bytes: 1,
            received_bytes: 2,
        };
        assert_eq!(view, expected);
    }
}
