//! What is recorded, and how it reads back.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use stockade_core::{BackendName, Boundary, ErrorCode, SnapshotKind};
use stockade_engine::{
    EgressVerdict, Event, Filter, Journal, JournalOptions, Receipt, StateDir, Timestamp,
};

use super::{clean_count, files, journal_at, options, place, refused, started, stopped};

#[test]
fn every_event_reads_back_as_it_was_recorded() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    let sandbox = || "boxa".parse().unwrap();
    let events = [
        started("a"),
        stopped("a"),
        Event::Created {
            sandbox: sandbox(),
            tenant: "team-a".parse().unwrap(),
            backend: BackendName::literal("mock"),
            boundary: Boundary::Hardware,
            from: Some("snapa".parse().unwrap()),
            image: Some(format!("a:1@sha256:{}", "0f".repeat(32)).parse().unwrap()),
        },
        Event::Captured {
            sandbox: sandbox(),
            snapshot: "snapa".parse().unwrap(),
            what: SnapshotKind::Full,
        },
        Event::Restored { sandbox: sandbox(), snapshot: "snapa".parse().unwrap() },
        Event::Destroyed { sandbox: sandbox(), clean: false, detail: Some("a mount".into()) },
        Event::Connection {
            sandbox: sandbox(),
            host: "gone.example".into(),
            port: Some(443),
            address: None,
            begun: Timestamp::now(),
            request: None,
            verdict: EgressVerdict::Failed,
            rule: Some("gone.example".into()),
            reason: Some("no such name".into()),
            sent: 0,
            received: 0,
        },
        refused("memory-limit: no cgroup"),
    ];
    let receipts: Vec<Receipt> =
        events.iter().map(|event| journal.append(event.clone()).unwrap()).collect();
    let records: Vec<_> =
        journal.records(Filter::default()).unwrap().map(|record| record.unwrap()).collect();
    let read: Vec<Event> = records.iter().map(|record| record.event.clone()).collect();
    assert_eq!(read, events);
    for (record, receipt) in records.iter().zip(receipts) {
        assert_eq!((record.seq, record.hash), (receipt.seq, receipt.hash));
    }
    assert_eq!(clean_count(&journal), 8);
}

#[test]
fn records_are_filtered_by_job_sandbox_and_tenant() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    for event in [started("a"), started("b"), stopped("a"), refused("x")] {
        journal.append(event).unwrap();
    }
    let seqs = |filter: Filter| -> Vec<u64> {
        journal.records(filter).unwrap().map(|record| record.unwrap().seq).collect()
    };
    let all = Filter::default();
    assert_eq!(seqs(Filter { job: Some("a".parse().unwrap()), ..all.clone() }), [1, 3]);
    assert_eq!(seqs(Filter { sandbox: Some("boxb".parse().unwrap()), ..all.clone() }), [2]);
    assert_eq!(seqs(Filter { tenant: Some("team-b".parse().unwrap()), ..all.clone() }), [4]);
    assert_eq!(seqs(all), [1, 2, 3, 4]);
}

#[test]
fn jobs_pair_a_start_with_its_stop_and_keep_the_unfinished() {
    let place = place();
    let journal = journal_at(place.path(), 600);
    for event in [started("a"), started("b"), started("c"), stopped("b")] {
        journal.append(event).unwrap();
    }
    let jobs: Vec<_> = journal.jobs(Filter::default()).unwrap().map(|job| job.unwrap()).collect();
    let names: Vec<_> = jobs
        .iter()
        .map(|job| (job.started.event.job().unwrap().as_str(), job.stopped.is_some()))
        .collect();
    assert_eq!(names, [("b", true), ("a", false), ("c", false)]);
    assert!(journal.job(&"b".parse().unwrap()).unwrap().unwrap().stopped.is_some());
    assert!(journal.job(&"none".parse().unwrap()).unwrap().is_none());
}

#[test]
fn a_journal_without_records_is_clean_and_a_directory_without_one_is_not_found() {
    let place = place();
    assert_eq!(clean_count(&journal_at(place.path(), 100)), 0);
    let empty = tempfile::tempdir().unwrap();
    let error = Journal::verify_dir(empty.path()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
}

#[test]
fn an_event_that_is_too_long_is_refused_and_nothing_is_written() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    journal.append(refused("x")).unwrap();
    let error = journal.append(refused(&"x".repeat(1 << 20))).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    journal.append(refused(&"x".repeat((1 << 20) - 1000))).unwrap();
    assert_eq!(clean_count(&journal), 2);
}

#[test]
fn a_caller_cannot_record_a_rotation() {
    let place = place();
    let error = journal_at(place.path(), 100).append(Event::Rotated { segment: 1 }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Invalid);
}

#[test]
fn the_chain_goes_on_over_rotated_segments() {
    let place = place();
    let journal = journal_at(place.path(), 1000);
    for number in 0..20 {
        journal.append(refused(&number.to_string())).unwrap();
    }
    let dir = place.path().join("journal");
    assert!(dir.join("journal-000003.jsonl").exists());
    let mine = Filter { tenant: Some("team-b".parse().unwrap()), ..Filter::default() };
    assert_eq!(journal.records(mine).unwrap().count(), 20);
    let rotations = files(&dir).len() as u64 - 2;
    assert_eq!(clean_count(&journal), 20 + rotations);
    for (name, content) in files(&dir) {
        assert!(name == "head" || content.len() <= 1000, "{name}: {}", content.len());
    }
}

#[test]
fn flushed_journals_rotate_and_verify_too() {
    let place = place();
    let state = StateDir::open(place.path()).unwrap();
    let journal = Journal::open(&state, JournalOptions { sync: true, ..options(500) }).unwrap();
    for _ in 0..5 {
        journal.append(refused("x")).unwrap();
    }
    assert!(clean_count(&journal) > 5);
}

#[test]
fn journal_files_are_private() {
    let place = place();
    let journal = journal_at(place.path(), 300);
    for _ in 0..3 {
        journal.append(refused("x")).unwrap();
    }
    let dir = place.path().join("journal");
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in fs::read_dir(&dir).unwrap() {
        let metadata = entry.unwrap().metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077, 0);
    }
}

#[test]
fn a_journal_that_cannot_be_opened_is_an_error_with_a_remedy() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    fs::remove_dir_all(place.path().join("journal")).unwrap();
    let error = journal.append(refused("x")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::JournalUnavailable);
    assert!(error.hint().is_some(), "{error}");
}

#[test]
fn the_journal_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Journal>();
    shared::<StateDir>();
}

/// Bytes that this thread has read by system calls so far.
fn bytes_read() -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}

#[test]
fn the_newest_jobs_are_read_from_the_end_however_long_the_journal_is() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    for at in 0..3000 {
        journal.append(started(&format!("job{at}"))).unwrap();
        journal.append(stopped(&format!("job{at}"))).unwrap();
    }
    let whole: u64 = fs::read_dir(place.path().join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let before = bytes_read();
    let journal = journal_at(place.path(), 1 << 20);
    let newest = journal.newest_jobs(Filter::default()).unwrap().take(50);
    let ids: Vec<_> =
        newest.map(|job| job.unwrap().started.event.job().unwrap().to_string()).collect();
    let read = bytes_read() - before;
    let expected: Vec<_> = (2950..3000).rev().map(|at| format!("job{at}")).collect();
    assert_eq!(ids, expected);
    assert!(whole > 2 << 20 && read < 512 << 10, "{read} of {whole} bytes were read");
}
