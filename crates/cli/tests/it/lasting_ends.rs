//! How lasting sandboxes come to an end: by request, by timeout, by death of their owner. Nothing is
//! left in any case.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use crate::common;
use crate::common::lasting::{Lasting, eventually};
use crate::common::{signal, start, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

const READY_SCRIPT: &str = "echo ready; sleep 1000";

#[test]
fn a_client_that_is_killed_takes_its_command_along() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let (client, ready) = start(place.command(&["exec", &id, "--shell", READY_SCRIPT]));
    assert_eq!((ready.as_str(), place.running(&id).len()), ("ready", 1));
    Lasting::slay(client);
    eventually("its command has ended", || place.running(&id).is_empty());
    place.shell(&id, "echo alive").is(0, "alive\n", "");
}

#[test]
fn signals_reach_the_command_and_a_second_one_ends_it() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let (client, _) = start(place.command(&["exec", &id, "--shell", READY_SCRIPT]));
    signal(&client, Signal::INT);
    wait(client).is(130, "", "");
    let stubborn = "trap '' INT TERM; echo ready; while :; do sleep 1000; done";
    let (client, _) = start(place.command(&["exec", &id, "--shell", stubborn]));
    signal(&client, Signal::INT);
    signal(&client, Signal::TERM);
    assert!([130, 143].contains(&wait(client).code));
    assert!(place.running(&id).is_empty());
}

#[test]
fn a_supervisor_that_is_killed_leaves_nothing() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let (client, _) = start(place.command(&["exec", &id, "--shell", READY_SCRIPT]));
    place.slay_owner(&id);
    assert_eq!(wait(client).code, 125);
    eventually("its processes are gone", || common::pids_of(&id).is_empty());
    place.stockade(&["exec", &id, "true"]).is_refused(&[id.as_str(), "has died", "stockade rm"]);
    let listed = place.stockade(&["ps"]);
    assert!(
        listed.stdout.contains("stale") && listed.stderr.contains("cleared away 1"),
        "{listed:?}"
    );
    assert!(place.listed(&id).is_none());
    place.assert_all_is_gone();
}

#[test]
fn the_next_command_clears_away_what_a_killed_supervisor_left() {
    let place = Lasting::new();
    let id = place.create(&[]);
    place.slay_owner(&id);
    place.stockade(&["run", "true"]).is(0, "", "");
    place.assert_all_is_gone();
}

#[test]
fn a_signal_overtakes_input_that_nobody_reads() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let mut command = place.command(&["exec", "-i", &id, "--shell", READY_SCRIPT]);
    let (mut client, _) = start({
        command.stdin(Stdio::piped());
        command
    });
    let mut stdin = client.stdin.take().unwrap();
    // Far more than any pipe on the way holds; the write fails when no reader is left.
    let writer = std::thread::spawn(move || stdin.write_all(&vec![0; 8 << 20]).is_err());
    signal(&client, Signal::INT);
    wait(client).is(130, "", "");
    assert!(writer.join().unwrap());
}

#[test]
fn kill_all_ends_the_living_and_clears_away_the_dead() {
    let place = Lasting::new();
    let (dead, alive) = (place.create(&[]), place.create(&[]));
    kill_process(Pid::from_raw(place.owner(&dead)).unwrap(), Signal::KILL).unwrap();
    let done = place.stockade(&["kill", "--all"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    for id in [&dead, &alive] {
        assert!(done.stdout.contains(id.as_str()), "{}", done.stdout);
    }
    place.assert_all_is_gone();
    place.stockade(&["kill", "--all"]).is(0, "", "");
}

#[test]
fn kill_ends_what_runs_inside_and_the_client_hears_of_it() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let (client, _) = start(place.command(&["exec", &id, "--shell", READY_SCRIPT]));
    place.stockade(&["kill", &id]).is(0, &format!("{id}\n"), "");
    wait(client).is(137, "", "stockade: ended: another process ended the sandbox on purpose\n");
    place.assert_all_is_gone();
}

#[test]
fn kill_ends_a_run_of_another_process() {
    let place = Lasting::new();
    let (run, _) = start(place.command(&["run", "--shell", READY_SCRIPT]));
    let id = place.stockade(&["ps", "-q"]).stdout.trim_end().to_owned();
    let table = place.stockade(&["ps"]).stdout;
    assert!(table.contains("run --shell echo ready"), "{table}");
    for command in ["exec", "rm"] {
        let tail: &[&str] = if command == "exec" { &["true"] } else { &[] };
        let args = [&[command, &id], tail].concat();
        place.stockade(&args).is_refused(&["belongs to process", "stockade kill"]);
    }
    place.stockade(&["kill", &id]).is(0, &format!("{id}\n"), "");
    let told = "stockade: ended: another process ended the sandbox on purpose\n";
    wait(run).is(137, "", told);
    place.assert_all_is_gone();
    let jobs = place.json(&["audit", "list"]);
    assert_eq!(jobs[0]["stopped"]["event"]["outcome"]["ending"], "killed");
}

#[test]
fn a_run_over_the_quota_is_recorded_as_refused() {
    let place = Lasting::new();
    let config = place.path("home/.config/stockade");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[defaultQuota]\nsandboxes = 1\n").unwrap();
    place.create(&[]);
    place.stockade(&["run", "true"]).is_refused(&["1 of at most 1"]);
    let jobs = place.json(&["audit", "list"]);
    let outcome = &jobs[0]["stopped"]["event"]["outcome"];
    assert_eq!(outcome["ending"], "refused");
    assert!(outcome["refused"].as_str().unwrap().contains("1 of at most 1"), "{outcome}");
    assert!(outcome["lost"].is_null());
}

#[test]
fn the_next_command_closes_the_record_of_a_run_that_was_killed() {
    let place = Lasting::new();
    let (run, ready) = start(place.command(&["run", "--shell", READY_SCRIPT]));
    assert_eq!(ready, "ready");
    Lasting::slay(run);
    let open = place.stockade(&["audit", "list"]).stdout;
    assert!(open.contains("no end"), "{open}");
    place.stockade(&["run", "true"]).is(0, "", "");
    let jobs = place.json(&["audit", "list"]);
    let kinds = [0, 1].map(|at| jobs[at]["stopped"]["event"]["kind"].clone());
    // By start: the one that was killed comes last, though it was closed last or in between.
    assert_eq!(kinds, ["stopped", "endUnknown"]);
    let job = jobs[1]["started"]["event"]["job"].as_str().unwrap();
    let shown = place.stockade(&["audit", "show", job]).stdout;
    assert!(shown.contains("unknown end") && shown.contains("at an unknown time"), "{shown}");
    assert_eq!(place.stockade(&["audit", "verify"]).code, 0);
}

#[test]
fn records_are_listed_by_their_start() {
    let place = Lasting::new();
    let (first, _) = start(place.command(&["run", "--shell", READY_SCRIPT]));
    place.stockade(&["run", "--shell", "exit 5"]).code_is(5);
    let jobs = place.json(&["audit", "list"]);
    let ended: Vec<_> =
        jobs.as_array().unwrap().iter().map(|job| !job["stopped"].is_null()).collect();
    assert_eq!(ended, [true, false], "the first that was started comes last, though it still runs");
    Lasting::slay(first);
}

#[test]
fn one_that_nobody_uses_ends_and_looking_at_it_is_no_use() {
    let place = Lasting::new();
    let id = place.create(&["--idle", "300ms"]);
    // Longer than its idle time, but in use.
    place.shell(&id, "sleep 0.8; echo used").is(0, "used\n", "");
    eventually("it has ended", || place.listed(&id).is_none());
    place.assert_all_is_gone();
}

#[test]
fn one_whose_lifetime_is_over_ends_with_what_runs_in_it() {
    let place = Lasting::new();
    let id = place.create(&["--lifetime", "700ms"]);
    assert_eq!(place.shell(&id, "sleep 1000").code, 137);
    eventually("it has ended", || place.listed(&id).is_none());
    place.assert_all_is_gone();
}

#[test]
fn a_supervisor_that_is_asked_politely_cleans_up() {
    let place = Lasting::new();
    let id = place.create(&[]);
    kill_process(Pid::from_raw(place.owner(&id)).unwrap(), Signal::TERM).unwrap();
    eventually("it has ended", || place.listed(&id).is_none());
    place.assert_all_is_gone();
}

#[test]
fn one_whose_walls_have_fallen_ends_when_that_is_noticed() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let agent = common::pids_of(&id);
    assert_eq!(agent.len(), 1);
    kill_process(Pid::from_raw(agent[0]).unwrap(), Signal::KILL).unwrap();
    eventually("its agent is gone", || common::pids_of(&id).is_empty());
    assert_eq!(place.shell(&id, "true").code, 125);
    // The sandbox is gone a moment before its owner is, whose socket goes last.
    let socket = place.state().join("run").join(format!("{id}.sock"));
    eventually("it has ended", || place.listed(&id).is_none() && !socket.exists());
    place.assert_all_is_gone();
}

#[test]
fn rm_spares_what_is_in_use_and_is_content_with_what_is_not_there() {
    let place = Lasting::new();
    let (idle, busy) = (place.create(&[]), place.create(&[]));
    let (client, _) = start(place.command(&["exec", &busy, "--shell", READY_SCRIPT]));
    place.stockade(&["rm", &idle]).is(0, &format!("{idle}\n"), "");
    let told = format!("stockade: no sandbox `{idle}`: nothing to remove\n");
    place.stockade(&["rm", &idle]).is(0, "", &told);
    place.stockade(&["rm", &busy]).is_refused(&["running", "--force"]);
    assert_eq!(place.running(&busy).len(), 1);
    place.stockade(&["rm", "--force", &busy]).is(0, &format!("{busy}\n"), "");
    assert_eq!(wait(client).code, 137);
    place.assert_all_is_gone();
}

#[test]
fn a_caller_who_is_gone_before_the_walls_stand_gets_no_sandbox() {
    let place = Lasting::new();
    let mut command = place.command(&["supervise"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let order = r#"{"spec":{},"idle":"1h","lifetime":"1h","command":null}"#;
    child.stdin.take().unwrap().write_all(order.as_bytes()).unwrap();
    assert_eq!(wait(child).code, 0);
    place.stockade(&["ps", "-q"]).is(0, "", "");
    place.assert_all_is_gone();
}

#[test]
fn a_supervisor_holds_nothing_of_its_caller() {
    let place = Lasting::new();
    // Without O_CLOEXEC, so `create` inherits it, like every descriptor that its caller left open.
    let (reader, writer): (OwnedFd, OwnedFd) = rustix::pipe::pipe().unwrap();
    let id = place.create(&[]);
    drop(writer);
    let soon = Timespec { tv_sec: 10, tv_nsec: 0 };
    let mut ends = [PollFd::new(&reader, PollFlags::IN)];
    assert_eq!(poll(&mut ends, Some(&soon)).unwrap(), 1, "somebody holds the pipe");
    assert!(place.listed(&id).is_some());
}
