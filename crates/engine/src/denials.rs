//! What the network of a sandbox denies, collected for each execution while it runs: its outcome tells it, with
//! the rule that would allow it, and beside it what was observed. Everything here is guest input, so every list has a
//! bound.

use std::sync::{Arc, Mutex, Weak};

use stockade_core::{DeniedHost, EgressRule, MAX_DENIED_HOSTS, canonical_host, clean_foreign};
use stockade_network::{ConnectionRecord, ConnectionVerdict};

use crate::engine::lock_mutex;
use crate::observed::ObservedRules;

/// The longest reason that an outcome tells.
const MAX_REASON_CHARS: usize = 300;
/// The zones in which the names of addresses are looked up.
const REVERSE_ZONES: [&str; 2] = [".in-addr.arpa", ".ip6.arpa"];

type DeniedList = Mutex<Vec<DeniedHost>>;

/// The lists of the executions that run in one sandbox.
#[derive(Debug, Default)]
pub(crate) struct DenialWatchers {
    lists: Mutex<Vec<Weak<DeniedList>>>,
    /// What was let through only to be seen, by all executions together.
    pub(crate) observed: Arc<ObservedRules>,
}

/// The list of one execution. It grows until this is finished or dropped.
#[derive(Debug)]
pub(crate) struct DenialWatch {
    denied: Arc<DeniedList>,
    observed: Arc<ObservedRules>,
}

/// What the outcome of an execution tells of its network.
#[derive(Debug, Default)]
pub(crate) struct NetworkReport {
    pub denied: Vec<DeniedHost>,
    pub observed: Option<Vec<EgressRule>>,
}

impl DenialWatchers {
    /// Begins a list.
    pub(crate) fn watch(&self) -> DenialWatch {
        let watch = DenialWatch { denied: Arc::default(), observed: Arc::clone(&self.observed) };
        let mut lists = lock_mutex(&self.lists);
        lists.retain(|list| list.strong_count() > 0);
        lists.push(Arc::downgrade(&watch.denied));
        watch
    }

    /// Adds a connection to every list, if it was denied.
    pub(crate) fn add_record(&self, record: &ConnectionRecord) {
        let Some(denied) = find_denial(record) else { return };
        let lists = lock_mutex(&self.lists);
        for list in lists.iter().filter_map(Weak::upgrade) {
            add_host(&mut lock_mutex(&list), &denied);
        }
    }
}

impl DenialWatch {
    /// What was denied, and what was observed up to now.
    pub(crate) fn finish(self) -> NetworkReport {
        let denied = std::mem::take(&mut *lock_mutex(&self.denied));
        NetworkReport { denied, observed: self.observed.list() }
    }
}

fn find_denial(record: &ConnectionRecord) -> Option<DeniedHost> {
    let ConnectionVerdict::Denied { reason, missing_rule } = &record.verdict else { return None };
    let host = canonical_host(&record.host).unwrap_or_else(|| clean_foreign(&record.host));
    // Programs ask for the name of an address to show it, and do without.
    if record.port.is_none() && REVERSE_ZONES.iter().any(|zone| host.ends_with(zone)) {
        return None;
    }
    let reason = clean_foreign(reason).chars().take(MAX_REASON_CHARS).collect();
    let (port, request) = (record.port, record.request.as_deref().map(clean_foreign));
    Some(DeniedHost { host, port, request, allow_with: missing_rule.clone(), reason })
}

/// A lookup of a name and a connection to it are one entry, which has the port. Requests are entries of their own.
fn add_host(list: &mut Vec<DeniedHost>, denied: &DeniedHost) {
    let is_known = |known: &DeniedHost| {
        let is_same = known.port == denied.port && known.request == denied.request;
        known.host == denied.host && (denied.port.is_none() || is_same)
    };
    if list.iter().any(is_known) {
        return;
    }
    let looked_up = list.iter().position(|known| known.host == denied.host && known.port.is_none());
    match looked_up {
        Some(at) => list[at] = denied.clone(),
        None if list.len() < MAX_DENIED_HOSTS => list.push(denied.clone()),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn record_of(host: &str, port: Option<u16>, verdict: ConnectionVerdict) -> ConnectionRecord {
        ConnectionRecord {
            host: host.into(),
            port,
            address: None,
            via: None,
            begun: SystemTime::now(),
            request: None,
            verdict,
            sent: 0,
            received: 0,
        }
    }

    fn denied(host: &str, port: Option<u16>) -> ConnectionRecord {
        let (reason, missing_rule) = ("no rule".to_owned(), Some(host.to_owned()));
        record_of(host, port, ConnectionVerdict::Denied { reason, missing_rule })
    }

    fn hosts(watch: DenialWatch) -> Vec<(String, Option<u16>)> {
        watch.finish().denied.into_iter().map(|denied| (denied.host, denied.port)).collect()
    }

    #[test]
    fn an_execution_is_told_what_was_denied_while_it_ran() {
        let watchers = DenialWatchers::default();
        watchers.add_record(&denied("before.example", Some(443)));
        let first = watchers.watch();
        watchers.add_record(&denied("a.example", Some(443)));
        let second = watchers.watch();
        watchers.add_record(&denied("b.example", Some(22)));
        let at = |host: &str, port: u16| (host.to_owned(), Some(port));
        assert_eq!(hosts(first), [at("a.example", 443), at("b.example", 22)]);
        watchers.add_record(&denied("c.example", Some(443)));
        assert_eq!(hosts(second), [at("b.example", 22), at("c.example", 443)]);
    }

    #[test]
    fn what_was_allowed_or_failed_or_is_a_reverse_lookup_is_not_told() {
        let watchers = DenialWatchers::default();
        let watch = watchers.watch();
        let allowed = ConnectionVerdict::Allowed { rule: "a.example".into() };
        let failed = ConnectionVerdict::Failed { rule: None, reason: "no such name".into() };
        for verdict in [allowed, failed] {
            watchers.add_record(&record_of("a.example", Some(443), verdict));
        }
        watchers.add_record(&denied("7.113.0.203.in-addr.arpa", None));
        assert!(hosts(watch).is_empty());
    }

    #[test]
    fn a_host_is_told_once_with_its_port() {
        let watchers = DenialWatchers::default();
        let watch = watchers.watch();
        for (host, port) in [
            ("A.Example.", None),
            ("a.example", Some(443)),
            ("a.example", None),
            ("a.example", Some(443)),
            ("a.example", Some(22)),
        ] {
            watchers.add_record(&denied(host, port));
        }
        let name = || "a.example".to_owned();
        assert_eq!(hosts(watch), [(name(), Some(443)), (name(), Some(22))]);
    }

    #[test]
    fn requests_to_one_host_are_told_one_by_one() {
        let watchers = DenialWatchers::default();
        let watch = watchers.watch();
        for request in ["GET /a", "GET /b", "GET /a"] {
            let request = Some(request.to_owned());
            watchers.add_record(&ConnectionRecord { request, ..denied("a.example", Some(443)) });
        }
        let told: Vec<_> = watch.finish().denied.into_iter().map(|it| it.request).collect();
        assert_eq!(told, [Some("GET /a".to_owned()), Some("GET /b".to_owned())]);
    }

    #[test]
    fn a_flood_of_denials_is_cut() {
        let watchers = DenialWatchers::default();
        let watch = watchers.watch();
        for number in 0..5000 {
            watchers.add_record(&denied(&format!("n{number}.example"), None));
        }
        let told = watch.finish().denied;
        assert_eq!(told.len(), MAX_DENIED_HOSTS);
        assert_eq!(told[0].allow_with.as_deref(), Some("n0.example"));
    }
}
