//! States that are captured, kept, carried elsewhere, brought back and copied, by real processes.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::lasting::{Lasting, eventually};
use rustix::process::Signal;
use serde_json::json;

fn sha256(bytes: &[u8]) -> String {
    let mut summing =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    summing.stdin.take().unwrap().write_all(bytes).unwrap();
    let told = summing.wait_with_output().unwrap().stdout;
    String::from_utf8(told).unwrap()[..64].to_owned()
}

/// An exported file with another manifest, sealed anew as any forger can do it.
fn forge(file: &[u8], change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let head = "stockade-snapshot 1\n".len();
    let length = u32::from_le_bytes(file[head..head + 4].try_into().unwrap()) as usize;
    let (sealed, rest) = file[head + 4..].split_at(length);
    let mut manifest = serde_json::from_slice(&sealed[65..]).unwrap();
    change(&mut manifest);
    let json = serde_json::to_vec(&manifest).unwrap();
    let length = u32::try_from(json.len() + 65).unwrap().to_le_bytes();
    let seal = format!("{}\n", sha256(&json)).into_bytes();
    let made = [&file[..head], &length, &seal, &json, &rest[..rest.len() - 32]].concat();
    let sum = sha256(&made);
    let sum = (0..32).map(|at| u8::from_str_radix(&sum[2 * at..2 * at + 2], 16).unwrap());
    made.iter().copied().chain(sum).collect()
}

#[test]
fn a_program_that_goes_on_in_a_copy_is_listed_there_and_counts_as_use() {
    let place = Lasting::new();
    let id = place.create(&["--backend", "mock", "--no-workspace"]);
    place.stockade(&["exec", &id, "--detach", "sleep", "50"]).code_is(0);
    let copy = place.stockade(&["fork", &id]).stdout.trim_end().to_owned();
    let (here, there) = (place.running(&id), place.running(&copy));
    assert_eq!((here.len(), there.len()), (1, 1));
    assert_ne!(here, there, "it is a job of its own");
    let listed = place.listed(&copy).unwrap();
    assert_eq!(listed["jobs"][0]["command"], "sleep 50");
    place.stockade(&["rm", &copy]).is_refused(&["1 running"]);
    place.stockade(&["kill", &copy]).code_is(0);
    let shown = place.json(&["audit", "show", &there[0]]);
    assert_eq!(shown["stopped"]["event"]["outcome"]["ending"], "killed");
    assert_eq!(place.running(&id), here);
}

#[test]
fn limits_that_come_with_a_snapshot_are_told_where_they_are_higher_than_usual() {
    let (here, there) = (Lasting::new(), Lasting::new());
    let id = here.create(&["--no-workspace"]);
    let snapshot = take(&here, &id);
    let file = here.workspace().join("carried.snapshot");
    let path = file.to_str().unwrap();
    here.stockade(&["snapshot", "export", &snapshot, "-o", path]).is(0, "", "");
    let limits = json!({ "memory": "64g", "processes": 100_000, "output": "1m" });
    let forged = forge(&fs::read(&file).unwrap(), |manifest| manifest["spec"]["limits"] = limits);
    fs::write(&file, forged).unwrap();
    let told = "stockade: note: sandboxes made from it get higher limits than usual: \
                memory 64g, processes 100000\n";
    there.stockade(&["snapshot", "import", path]).is(0, &format!("{snapshot}\n"), told);
}

#[test]
fn a_forged_snapshot_shows_nothing_of_the_host() {
    let (here, there) = (Lasting::new(), Lasting::new());
    let id = here.create(&["--no-workspace"]);
    let snapshot = take(&here, &id);
    let file = here.workspace().join("carried.snapshot");
    let path = file.to_str().unwrap();
    here.stockade(&["snapshot", "export", &snapshot, "-o", path]).is(0, "", "");
    let whole = fs::read(&file).unwrap();
    let root = json!({ "source": "/", "target": "/host", "readOnly": false });
    let secret = there.path("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "seen\n").unwrap();
    for (field, value) in [
        ("mounts", json!([root])),
        ("workspace", json!({ "local": secret })),
        ("image", json!({ "directory": "/" })),
        ("without", json!(["memory-limit"])),
    ] {
        fs::write(&file, forge(&whole, |manifest| manifest["spec"][field] = value.clone()))
            .unwrap();
        there.stockade(&["snapshot", "import", path]).is_refused(&["damaged", field]);
        // One of the format in which these were usual is read without them.
        let old = forge(&whole, |manifest| {
            manifest["format"] = json!(1);
            manifest["spec"][field] = value.clone();
            manifest["spec"]["readOnly"] = json!(field == "workspace");
        });
        fs::write(&file, old).unwrap();
        there.stockade(&["snapshot", "import", path]).code_is(0);
        let line = "ls /host /root 2>&1 | grep -v cannot; cat file 2>/dev/null; echo ran";
        let ran = there.stockade(&["run", "--from", &snapshot, "--shell", line]);
        match field {
            "image" => ran.is_refused(&["image of its host", "--image"]),
            "workspace" => ran.is_refused(&["read-only workspace", "--workspace"]),
            _ => assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{field}: {ran:?}"),
        }
        there.stockade(&["snapshot", "rm", &snapshot]).code_is(0);
    }
    here.stockade(&["kill", &id]).code_is(0);
}

#[test]
fn what_a_sandbox_sees_of_the_host_is_named_again_by_who_goes_on_with_it() {
    let place = Lasting::new();
    let data = place.path("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "shown\n").unwrap();
    let mount = format!("{}:/data", data.display());
    let id = place.create(&["--read-only", "--mount", &mount]);
    let snapshot = take(&place, &id);
    place.stockade(&["kill", &id]).code_is(0);
    let run = |flags: &[&str]| {
        let tail = ["--shell", "cat /data/file 2>/dev/null; pwd"];
        place.stockade(&[&["run", "--from", &snapshot], flags, &tail].concat())
    };
    run(&[]).is_refused(&["read-only workspace", "--workspace"]);
    let bare = run(&["--workspace", "."]);
    assert_eq!((bare.code, bare.stdout.as_str()), (0, "/workspace\n"), "{bare:?}");
    assert!(bare.stderr.contains("--mount SRC:/data"), "{bare:?}");
    run(&["--workspace", ".", "--mount", &mount]).is(0, "shown\n/workspace\n", "");
    let state = format!("{}:/data", place.state().display());
    let wrong = run(&["--workspace", ".", "--mount", &state]);
    wrong.is_refused(&["the state directory"]);
}

fn take(place: &Lasting, id: &str) -> String {
    let taken = place.stockade(&["snapshot", "take", id]);
    taken.code_is(0);
    taken.stdout.trim().to_owned()
}

#[test]
fn the_beginning_of_a_snapshots_id_is_enough() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.shell(&id, "echo kept > file").is(0, "", "");
    let snapshot = take(&place, &id);
    let short = &snapshot[..8];
    place.stockade(&["run", "--from", short, "--shell", "cat file"]).is(0, "kept\n", "");
    let made = place.stockade(&["create", "--from", short]);
    made.code_is(0);
    place.shell(made.stdout.trim(), "cat file").is(0, "kept\n", "");
    place.stockade(&["snapshot", "restore", &id, short]).is(0, "", "");
    place.stockade(&["run", "--from", "nothing", "true"]).is_refused(&["no snapshot `nothing`"]);
    place.stockade(&["snapshot", "rm", short]).is(0, "", "");
    place.stockade(&["snapshot", "ls", "-q"]).is(0, "", "");
    place.stockade(&["kill", "--all"]).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_state_is_taken_listed_brought_back_and_removed() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.shell(&id, "echo before > file; echo before > /tmp/file").is(0, "", "");
    let snapshot = take(&place, &id);
    place.shell(&id, "echo after > file; rm /tmp/file; echo new > new").is(0, "", "");
    place.stockade(&["snapshot", "restore", &id, &snapshot]).is(0, "", "");
    place.shell(&id, "cat file /tmp/file; ls").is(0, "before\nbefore\nfile\n", "");
    place.stockade(&["snapshot", "ls", "-q"]).is(0, &format!("{snapshot}\n"), "");
    let table = place.stockade(&["snapshot", "ls"]).stdout;
    for part in ["SNAPSHOT", "files", "native", snapshot.as_str()] {
        assert!(table.contains(part), "{part}: {table}");
    }
    place.stockade(&["snapshot", "rm", &snapshot]).is(0, "", "");
    let gone = place.stockade(&["snapshot", "restore", &id, &snapshot]);
    gone.code_is(125);
    assert!(gone.stderr.contains("there is no snapshot"), "{}", gone.stderr);
    place.stockade(&["kill", &id]).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_local_workspace_is_captured_and_its_copies_have_their_own() {
    let place = Lasting::new();
    let id = place.create(&["--env", "TOLD=yes"]);
    place.shell(&id, "echo kept > file").is(0, "", "");
    let forked = place.stockade(&["fork", &id, "-n", "3"]);
    forked.code_is(0);
    let copies: Vec<_> = forked.stdout.lines().collect();
    assert_eq!(copies.len(), 3, "{}", forked.stdout);
    for copy in &copies {
        place.shell(copy, "cat file; echo $TOLD; echo own > file").is(0, "kept\nyes\n", "");
    }
    assert_eq!(fs::read_to_string(place.workspace().join("file")).unwrap(), "kept\n");
    place.stockade(&["snapshot", "ls", "-q"]).is(0, "", "");
    let ids: Vec<&str> = ["kill", &id].into_iter().chain(copies).collect();
    place.stockade(&ids).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_state_travels_to_another_state_directory() {
    let (here, there) = (Lasting::new(), Lasting::new());
    let id = here.create(&["--no-workspace"]);
    here.shell(&id, "echo carried > file").is(0, "", "");
    let snapshot = take(&here, &id);
    let file = here.workspace().join("carried.snapshot");
    let path = file.to_str().unwrap();
    here.stockade(&["snapshot", "export", &snapshot, "-o", path]).is(0, "", "");
    here.stockade(&["snapshot", "export", &snapshot, "-o", path]).code_is(125);
    there.stockade(&["snapshot", "import", path]).is(0, &format!("{snapshot}\n"), "");
    let made = there.stockade(&["create", "--from", &snapshot]);
    made.code_is(0);
    let copy = made.stdout.trim();
    there.shell(copy, "cat file").is(0, "carried\n", "");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    // Although it is stored already: a damaged file is always reported.
    there.stockade(&["snapshot", "import", path]).is_refused(&["damaged"]);
    there.stockade(&["snapshot", "rm", &snapshot]).code_is(0);
    there.stockade(&["snapshot", "import", path]).is_refused(&["damaged"]);
    there.stockade(&["snapshot", "ls", "-q"]).is(0, "", "");
    there.stockade(&["kill", copy]).code_is(0);
    here.stockade(&["kill", &id]).code_is(0);
}

#[test]
fn a_command_runs_in_a_captured_state_and_leaves_it_as_it_was() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.shell(&id, "echo kept > file").is(0, "", "");
    let snapshot = take(&place, &id);
    place.stockade(&["kill", &id]).code_is(0);
    let line = "cat file; echo changed > file; echo $TOLD";
    for _ in 0..2 {
        let ran =
            place.stockade(&["run", "--from", &snapshot, "--env", "TOLD=yes", "--shell", line]);
        ran.is(0, "kept\nyes\n", "");
    }
    let slow = ["run", "--from", &snapshot, "--timeout", "1s", "--", "sleep", "60"];
    place.stockade(&slow).code_is(124);
    place.stockade(&["run", "--from", "whatever", "--", "true"]).is_refused(&["no snapshot"]);
    let both = place.stockade(&["run", "--from", &snapshot, "--overlay", "--", "true"]);
    both.is_refused(&["cannot be used with"]);
    place.stockade(&["snapshot", "rm", &snapshot]).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn what_a_captured_state_answers_cannot_be_asked_for_again() {
    let place = Lasting::new();
    for flag in ["--overlay", "--read-only", "--mem=1g"] {
        let refused = place.stockade(&["create", "--from", "whatever", flag]);
        refused.code_is(125);
        assert!(refused.stderr.contains("cannot be used with"), "{flag}: {}", refused.stderr);
    }
    let unknown = place.stockade(&["create", "--from", "whatever"]);
    unknown.code_is(125);
    assert!(unknown.stderr.contains("there is no snapshot"), "{}", unknown.stderr);
}

#[test]
fn a_paused_sandbox_stands_still_and_can_be_ended() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    let paused = place.stockade(&["pause", &id]);
    if paused.stderr.contains("no control group can be frozen") {
        println!("skipped: no control group can be frozen here");
        assert!(std::env::var_os("CI").is_none(), "CI has a freezer");
        return;
    }
    paused.is(0, "", "");
    assert_eq!(place.listed(&id).unwrap()["state"], "paused");
    place.shell(&id, "echo late").is_refused(&["paused", "stockade resume"]);
    let refused = place.stockade(&["snapshot", "take", &id]);
    refused.code_is(125);
    assert!(refused.stderr.contains("resume it first"), "{}", refused.stderr);
    place.stockade(&["resume", &id]).is(0, "", "");
    place.shell(&id, "echo goes on").is(0, "goes on\n", "");
    assert_eq!(place.listed(&id).unwrap()["state"], "alive");
    place.stockade(&["pause", &id]).is(0, "", "");
    place.stockade(&["kill", &id]).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_program_that_times_out_in_a_paused_sandbox_resumes_it_and_ps_tells_so() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    // A machine that was too slow to pause it before that is given more time.
    for seconds in [1, 4, 16] {
        let (begun, timeout) = (Instant::now(), format!("{seconds}s"));
        let exec = ["exec", "--detach", "--timeout", &timeout, &id, "sleep", "1000"];
        place.stockade(&exec).code_is(0);
        let paused = place.stockade(&["pause", &id]);
        if paused.stderr.contains("no control group can be frozen") {
            println!("skipped: no control group can be frozen here");
            assert!(std::env::var_os("CI").is_none(), "CI has a freezer");
            return;
        }
        paused.is(0, "", "");
        let paused_in_time = begun.elapsed() < Duration::from_secs(seconds);
        eventually("the program times out", || place.running(&id).is_empty());
        if paused_in_time {
            assert_eq!(place.listed(&id).unwrap()["state"], "alive");
            place.shell(&id, "echo goes on").is(0, "goes on\n", "");
            place.stockade(&["kill", &id]).code_is(0);
            return place.assert_all_is_gone();
        }
        place.stockade(&["resume", &id]).is(0, "", "");
    }
    panic!("the sandbox was never paused before its program had timed out");
}

#[test]
fn a_paused_sandbox_whose_supervisor_is_killed_leaves_nothing() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.stockade(&["pause", &id]);
    place.slay_owner(&id);
    eventually("the sandbox is cleared away", || place.stockade(&["ps", "-q"]).stdout.is_empty());
    place.assert_all_is_gone();
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.shell(&id, "head -c 1000000 /dev/urandom > noise").is(0, "", "");
    let snapshot = take(&place, &id);
    let mut export = place.command(&["snapshot", "export", &snapshot, "-o", "-"]);
    let mut export = export
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(export.stdout.take());
    common::wait(export).is(0, "", "");
    place.stockade(&["kill", &id]).code_is(0);
}

#[test]
fn twenty_copies_are_twenty_different_machines() {
    const IDENTITY_SCRIPT: &str = "uname -n; cat /proc/sys/kernel/random/uuid; \
                            head -c 16 /dev/urandom | od -An -tx1; cat /etc/machine-id 2>/dev/null";
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.shell(&id, "echo kept > file").is(0, "", "");
    let forked = place.stockade(&["fork", &id, "-n", "20"]);
    forked.code_is(0);
    let all: Vec<&str> = forked.stdout.lines().chain([id.as_str()]).collect();
    let mut seen = std::collections::BTreeSet::new();
    for one in &all {
        let told = place.shell(one, IDENTITY_SCRIPT).stdout;
        assert!(told.lines().count() >= 3, "{told}");
        for line in told.lines() {
            assert!(seen.insert(line.to_owned()), "{line} is there twice: {told}");
        }
        let own = format!("echo {one} > file; cat file");
        place.shell(one, &own).is(0, &format!("{one}\n"), "");
    }
    for one in &all {
        place.shell(one, "cat file").is(0, &format!("{one}\n"), "");
    }
    place.stockade(&[&["kill"][..], &all].concat()).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_copy_of_one_that_ends_with_its_program_does_not_live_for_ever() {
    let place = Lasting::new();
    let run = ["run", "--detach", "--no-workspace", "--", "sleep", "50"];
    let id = place.json(&run)["sandbox"].as_str().unwrap().to_owned();
    let copy = place.stockade(&["fork", &id]).stdout.trim().to_owned();
    assert!(place.listed(&id).unwrap()["idle"].is_null());
    assert!(!place.listed(&copy).unwrap()["idle"].is_null());
    place.stockade(&["kill", &id, &copy]).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_fork_that_cannot_be_finished_leaves_no_copy() {
    let place = Lasting::new();
    let config = place.path("home/.config/stockade");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "[defaultQuota]\nsandboxes = 4\n").unwrap();
    let id = place.create(&["--no-workspace"]);
    place.stockade(&["fork", &id, "-n", "20"]).is_refused(&["of at most 4"]);
    place.stockade(&["ps", "-q"]).is(0, &format!("{id}\n"), "");
    place.stockade(&["snapshot", "ls", "-q"]).is(0, "", "");
    place.stockade(&["fork", &id, "-n", "3"]).code_is(0);
}

#[test]
fn a_copy_of_a_sandbox_that_reads_a_kept_workspace_reads_it_too() {
    let place = Lasting::new();
    place.write("given", "by the host");
    let made = place.stockade(&["create", "--overlay", "--read-only"]);
    let id = made.stdout.trim_end();
    made.code_is(0);
    let forked = place.stockade(&["fork", id]);
    let copy = forked.stdout.trim_end().to_owned();
    forked.is(0, &format!("{copy}\n"), "");
    place.shell(&copy, "cat given").is(0, "by the host", "");
    place.stockade(&["kill", &copy]).code_is(0);
    place.stockade(&["kill", id]).code_is(0);
    place.assert_all_is_gone();
}

#[test]
fn a_fork_that_is_interrupted_leaves_no_copy() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    let mut fork = place.command(&["fork", &id, "-n", "400"]);
    let fork = fork.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let count = || place.stockade(&["ps", "-q"]).stdout.lines().count();
    eventually("a copy is there", || count() > 1);
    common::signal(&fork, Signal::INT);
    common::wait(fork).is(130, "", "");
    place.stockade(&["ps", "-q"]).is(0, &format!("{id}\n"), "");
    place.stockade(&["snapshot", "ls", "-q"]).is(0, "", "");
    place.stockade(&["kill", &id]).code_is(0);
    place.assert_all_is_gone();
}
