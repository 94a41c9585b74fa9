//! Reading what was run: by time, backend and outcome, for other programs, and while it happens.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::CliPlace;

const FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);

fn commands(place: &CliPlace, flags: &[&str]) -> Vec<String> {
    let listed = place.stockade(&[&["audit", "list", "--json"], flags].concat());
    assert_eq!(listed.code, 0, "{listed:?}");
    let jobs: Value = serde_json::from_str(&listed.stdout).unwrap();
    let command = |job: &Value| job["started"]["event"]["command"][1].as_str().unwrap().to_owned();
    jobs.as_array().unwrap().iter().map(command).collect()
}

fn place_with_three() -> CliPlace {
    let place = CliPlace::new();
    for (program, word) in [("echo", "one"), ("echo", "two"), ("false", "three")] {
        place.stockade(&["run", "--", program, word]);
    }
    place
}

#[test]
fn what_was_run_is_listed_newest_first_and_by_what_is_asked_for() {
    let place = place_with_three();
    assert_eq!(commands(&place, &[]), ["three", "two", "one"]);
    assert_eq!(commands(&place, &["--outcome", "failure"]), ["three"]);
    assert_eq!(commands(&place, &["--outcome", "success", "--limit", "1"]), ["two"]);
    assert_eq!(commands(&place, &["--backend", "native", "--since", "1h"]).len(), 3);
    assert_eq!(commands(&place, &["--backend", "docker"]), [""; 0]);
    assert_eq!(commands(&place, &["--until", "2020-01-01"]), [""; 0]);
    let some = place.stockade(&["audit", "list", "--limit", "2"]);
    assert_eq!((some.code, some.stdout.lines().count()), (0, 3), "{some:?}");
    assert!(some.stderr.contains("--all"), "{some:?}");
    assert_eq!(place.stockade(&["audit", "list", "--all"]).stdout.lines().count(), 4);
    let wrong = place.stockade(&["audit", "list", "--since", "yesterday"]);
    assert!(wrong.code != 0 && wrong.stderr.contains("is not a time"), "{wrong:?}");
}

#[test]
fn what_was_run_is_exported_as_lines_of_json_and_as_a_table() {
    let place = place_with_three();
    let lines = place.stockade(&["audit", "export"]).stdout;
    let jobs: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(jobs.len(), 3);
    let table =
        place.stockade(&["audit", "export", "--format", "csv", "--outcome", "failure"]).stdout;
    let rows: Vec<_> = table.split("\r\n").collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert!(rows[0].starts_with("job,started,"), "{table}");
    assert!(rows[1].contains(",native,") && rows[1].ends_with(",false three"), "{table}");
}

/// Starts a follower and reads what it prints.
fn follow(place: &CliPlace, args: &[&str]) -> (Child, Receiver<Value>) {
    let mut child = place.command(args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if send.send(serde_json::from_str(&line).unwrap()).is_err() {
                return;
            }
        }
    });
    (child, receive)
}

#[test]
fn who_follows_is_told_of_what_happens_and_ends_with_whoever_reads() {
    let place = CliPlace::new();
    let (jobs, ended) = follow(&place, &["audit", "follow", "--json"]);
    let (events, told) = follow(&place, &["events", "--json"]);
    let until = Instant::now() + FOLLOW_TIMEOUT;
    // When both have begun to listen is not known: commands run until both have reported something.
    let (mut job, mut kinds) = (None, Vec::new());
    while job.is_none() || !kinds.contains(&"stopped".to_owned()) {
        assert!(Instant::now() < until, "nothing was told: {job:?} {kinds:?}");
        place.stockade(&["run", "--", "echo", "heard"]).is(0, "heard\n", "");
        job = job.or_else(|| ended.recv_timeout(Duration::from_millis(200)).ok());
        let more = std::iter::from_fn(|| told.recv_timeout(Duration::from_millis(200)).ok());
        kinds.extend(more.map(|record| record["event"]["kind"].as_str().unwrap().to_owned()));
    }
    assert_eq!(job.unwrap()["stopped"]["event"]["outcome"]["ending"], "exited");
    assert!(kinds.contains(&"started".to_owned()), "{kinds:?}");
    drop((ended, told));
    // The next line finds no receiver, and the pipe is closed; the write after that fails.
    for _ in 0..2 {
        place.stockade(&["run", "--", "true"]).is(0, "", "");
    }
    for mut follower in [jobs, events] {
        let status = loop {
            if let Some(status) = follower.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it does not end");
            place.stockade(&["run", "--", "true"]).is(0, "", "");
        };
        assert_eq!(status.code(), Some(0));
    }
}
