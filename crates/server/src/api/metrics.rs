//! Counters in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::response::IntoResponse;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use stockade_core::TenantName;

use super::answer::ApiAnswer;
use super::state::Api;

const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// What was counted since the daemon began.
#[derive(Debug, Default)]
pub(crate) struct ApiCounters {
    pub requests: AtomicU64,
    /// Answers that say that the caller was wrong.
    pub refused: AtomicU64,
    /// Answers that say that the daemon, or what it relies on, has failed.
    pub failed: AtomicU64,
    pub sandboxes: AtomicU64,
    pub executions: AtomicU64,
}

impl ApiCounters {
    /// Counts one answer.
    pub(crate) fn count(&self, status: StatusCode) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if status.is_client_error() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        if status.is_server_error() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes a gauge with one value for each tenant. Names of tenants need no escaping.
fn write_by_tenant(text: &mut String, name: &str, counts: &BTreeMap<TenantName, u64>) {
    let _ = writeln!(text, "# TYPE {name} gauge");
    for (tenant, count) in counts {
        let _ = writeln!(text, "{name}{{tenant=\"{tenant}\"}} {count}");
    }
}

/// `GET /v1/metrics`
pub(crate) async fn get_metrics(State(api): State<Api>) -> ApiAnswer {
    let ApiCounters { requests, refused, failed, sandboxes, executions } = &api.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let metrics = [
        ("stockade_requests_total", "counter", read(requests)),
        ("stockade_requests_refused_total", "counter", read(refused)),
        ("stockade_requests_failed_total", "counter", read(failed)),
        ("stockade_sandboxes_created_total", "counter", read(sandboxes)),
        ("stockade_executions_started_total", "counter", read(executions)),
        ("stockade_sandboxes", "gauge", api.count_sandboxes() as u64),
        ("stockade_executions_running", "gauge", api.count_running() as u64),
    ];
    let mut text = String::new();
    for (name, kind, value) in metrics {
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {value}");
    }
    write_by_tenant(&mut text, "stockade_tenant_sandboxes", &api.sandboxes_by_tenant());
    write_by_tenant(&mut text, "stockade_tenant_executions_running", &api.running_by_tenant());
    Ok(([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_a_line() {
        let mut text = String::new();
        let counts = [("a", 2), ("b.c", 1)].map(|(name, count)| (name.parse().unwrap(), count));
        write_by_tenant(&mut text, "x", &BTreeMap::from(counts));
        assert_eq!(text, "# TYPE x gauge\nx{tenant=\"a\"} 2\nx{tenant=\"b.c\"} 1\n");
    }
}
