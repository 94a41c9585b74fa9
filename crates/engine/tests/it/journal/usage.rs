//! What tenants have used, from records.

use stockade_core::{Outcome, Usage};
use stockade_engine::{EgressVerdict, Filter, TenantUsage, Timestamp, UsageSummary};

use super::*;

fn ended(job: &str, usage: Usage) -> Event {
    let Event::Stopped { job, outcome, log } = stopped(job) else { unreachable!() };
    Event::Stopped { job, outcome: Outcome { usage, ..outcome }, log }
}

fn connection(job: &str, sent: u64, received: u64) -> Event {
    Event::Connection {
        sandbox: format!("box{job}").parse().unwrap(),
        host: "example.org".into(),
        port: Some(443),
        address: None,
        begun: Timestamp::now(),
        request: None,
        verdict: EgressVerdict::Allowed,
        rule: None,
        reason: None,
        sent,
        received,
    }
}

fn of_tenant(event: Event, name: &str) -> Event {
    let Event::Started {
        job,
        sandbox,
        backend,
        boundary,
        command,
        workspace,
        limits,
        without,
        labels,
        trees,
        observes,
        engine,
        image,
        ..
    } = event
    else {
        unreachable!()
    };
    let tenant = name.parse().unwrap();
    Event::Started {
        job,
        sandbox,
        tenant,
        backend,
        boundary,
        command,
        workspace,
        limits,
        without,
        labels,
        trees,
        observes,
        engine,
        image,
    }
}

fn summary(journal: &Journal, filter: Filter) -> UsageSummary {
    journal.usage(filter).unwrap()
}

#[test]
fn usage_is_summed_by_tenant_and_traffic_belongs_to_the_tenant_of_its_sandbox() {
    let place = place();
    // Small files: what belongs together lies in several.
    let journal = journal_at(place.path(), 2000);
    let used =
        Usage { wall_ms: 2000, cpu_ms: Some(30), peak_memory_bytes: Some(1 << 20), fuel: None };
    for event in [
        started("one"),
        of_tenant(started("two"), "team-b"),
        connection("one", 5, 7),
        ended("one", used),
        connection("one", 1, 1),
        ended("two", Usage { cpu_ms: None, ..used }),
        started("running"),
    ] {
        journal.append(event).unwrap();
    }
    let all = summary(&journal, Filter::default());
    assert!(all.complete && all.earliest.is_some(), "{all:?}");
    let memory_byte_ms = 2000 << 20;
    let one = TenantUsage {
        jobs: 1,
        cpu_ms: 30,
        wall_ms: 2000,
        memory_byte_ms,
        sent_bytes: 6,
        received_bytes: 8,
    };
    let two = TenantUsage { jobs: 1, wall_ms: 2000, memory_byte_ms, ..TenantUsage::default() };
    let (a, b) = ("team-a".parse().unwrap(), "team-b".parse().unwrap());
    assert_eq!(all.tenants, BTreeMap::from([(a, one), ("team-b".parse().unwrap(), two)]));
    let filter = Filter { tenant: Some(b), ..Filter::default() };
    assert_eq!(summary(&journal, filter).tenants.into_values().collect::<Vec<_>>(), [two]);
}

#[test]
fn what_ended_outside_of_the_times_is_left_out_and_what_has_no_start_is_told() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    journal.append(started("one")).unwrap();
    journal.append(stopped("one")).unwrap();
    let later = Timestamp::from(std::time::SystemTime::now() + std::time::Duration::from_secs(60));
    let none = summary(&journal, Filter { since: Some(later), ..Filter::default() });
    assert!(none.complete && none.tenants.is_empty(), "{none:?}");
    journal.append(stopped("lost")).unwrap();
    let some = summary(&journal, Filter { until: Some(later), ..Filter::default() });
    assert!(!some.complete && some.tenants.len() == 1, "{some:?}");
}
