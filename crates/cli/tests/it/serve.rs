//! `stockade serve` on its socket: what its own user can do, that a client may go and come back, and that nothing
//! is left when it ends.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::api::{ApiDaemon, exchange};
use crate::common::lasting::eventually;
use crate::common::{CliPlace, finish};

/// Echoes one line of its input between two of its own.
const ECHO_COMMAND: &str =
    r#"{"run": {"shell": "echo one; read line; echo got $line; exit 3"}, "stdin": "stream"}"#;

#[test]
fn a_client_that_comes_back_reads_on_and_learns_the_end() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create(r#"{"labels": {"a": "b"}}"#);
    let job = daemon.exec(&sandbox, ECHO_COMMAND);
    let first = daemon.events(&job, &[]).next().unwrap();
    assert_eq!((&*first.kind, &first.data), ("stdout", &json!({"text": "one\n"})));
    // The connection is gone; the program is not.
    let running = daemon.ask("GET", &format!("/v1/executions/{job}"), b"").json();
    assert_eq!(running["state"], "running");
    let input = daemon.ask("POST", &format!("/v1/executions/{job}/input?end=true"), b"it\n");
    assert_eq!(input.status, 204);
    let last = format!("Last-Event-ID: {}", first.id);
    for _ in 0..2 {
        let rest: Vec<_> = daemon.events(&job, &[&last]).collect();
        let kinds: Vec<_> = rest.iter().map(|event| &*event.kind).collect();
        assert_eq!(kinds, ["stdout", "exit"]);
        assert_eq!(rest[0].data, json!({"text": "got it\n"}));
        assert_eq!(rest[1].data["exitCode"], 3);
    }
    let ended = daemon.ask("GET", &format!("/v1/executions/{job}"), b"").json();
    assert_eq!((&ended["state"], &ended["outcome"]["exitCode"]), (&json!("ended"), &json!(3)));
    let record = daemon.ask("GET", &format!("/v1/jobs/{job}"), b"").json();
    assert_eq!(record["started"]["event"]["sandbox"], json!(sandbox));
    let listed = daemon.ask("GET", &format!("/v1/sandboxes/{sandbox}/executions"), b"").json();
    assert_eq!(listed["executions"][0]["id"], json!(job));
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn sandboxes_are_listed_by_label_state_and_page_and_deleted() {
    let daemon = ApiDaemon::start();
    let one = daemon.create(r#"{"labels": {"kind": "x"}}"#);
    let other = daemon.create(r#"{"labels": {"kind": "y"}}"#);
    let ids = |query: &str| {
        let page = daemon.ask("GET", &format!("/v1/sandboxes{query}"), b"").json();
        let ids = page["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].clone());
        (ids.collect::<Vec<_>>(), page["next"].clone())
    };
    assert_eq!(ids("?label=kind=x").0, [json!(one)]);
    assert_eq!(ids("?label=kind&state=running").0.len(), 2);
    assert_eq!(ids("?label=none").0.len(), 0);
    let (first, next) = ids("?limit=1");
    assert_eq!(first, std::slice::from_ref(&next));
    let (second, end) = ids(&format!("?limit=1&after={}", next.as_str().unwrap()));
    assert!(end.is_null() && second != first, "{second:?}");
    assert_eq!(daemon.ask("DELETE", &format!("/v1/sandboxes/{one}"), b"").status, 204);
    daemon.ask("GET", &format!("/v1/sandboxes/{one}"), b"").is_error(404, "not-found");
    daemon.ask("DELETE", &format!("/v1/sandboxes/{one}"), b"").is_error(404, "not-found");
    assert_eq!(ids("").0, [json!(other)]);
    // One that another process ends is said to have ended.
    daemon.place.stockade(&["kill", &other]).code_is(0);
    eventually("it is said to have ended", || ids("?state=ended").0 == [json!(other)]);
}

/// Every page of a list, one entry on each; the names or ids of the entries.
fn read_pages(daemon: &ApiDaemon, path: &str, list: &str, field: &str, key: &str) -> Vec<String> {
    let (mut found, mut next) = (Vec::new(), None::<serde_json::Value>);
    loop {
        let after = next.map(|next| format!("&{key}={}", next.to_string().trim_matches('"')));
        let path = format!("{path}limit=1{}", after.unwrap_or_default());
        let page = daemon.ask("GET", &path, b"").json();
        let entries = page[list].as_array().unwrap_or_else(|| panic!("{page}"));
        assert!(entries.len() <= 1, "{page}");
        let names = entries.iter().map(|entry| entry.pointer(field).unwrap());
        found.extend(names.map(|name| name.as_str().unwrap().to_owned()));
        if page["next"].is_null() {
            return found;
        }
        next = Some(page["next"].clone());
    }
}

#[test]
fn executions_jobs_and_files_are_listed_in_pages_and_usage_is_summed() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let mut jobs: Vec<_> =
        (0..3).map(|_| daemon.exec(&sandbox, r#"{"run": {"program": ["true"]}}"#)).collect();
    let path = format!("/v1/sandboxes/{sandbox}");
    let executions =
        read_pages(&daemon, &format!("{path}/executions?"), "executions", "/id", "after");
    assert_eq!(executions, jobs);
    jobs.reverse();
    let recorded = read_pages(&daemon, "/v1/jobs?", "jobs", "/started/event/job", "before");
    assert_eq!(recorded, jobs);
    for job in &jobs {
        assert_eq!(daemon.events(job, &[]).last().unwrap().kind, "exit");
    }
    let usage = daemon.ask("GET", "/v1/usage", b"").json();
    let (tenant, count) = (&usage["tenants"][0]["tenant"], &usage["tenants"][0]["jobs"]);
    assert_eq!((tenant, count), (&json!("default"), &json!(3)), "{usage}");
    let metrics = String::from_utf8(daemon.ask("GET", "/v1/metrics", b"").body).unwrap();
    assert!(metrics.contains("stockade_tenant_sandboxes{tenant=\"default\"} 1\n"), "{metrics}");
    let made = daemon.ask("POST", &format!("{path}/files/directory"), br#"{"path": "d"}"#);
    assert_eq!(made.status, 204, "{made:?}");
    for name in ["b", "a", "c"] {
        let put = daemon.ask("PUT", &format!("{path}/files?path=d/{name}"), b"");
        assert_eq!(put.status, 200, "{put:?}");
    }
    let files = format!("{path}/files/list?path=d&");
    assert_eq!(read_pages(&daemon, &files, "entries", "/name", "after"), ["a", "b", "c"]);
}

#[test]
fn the_same_key_makes_one_sandbox() {
    let daemon = ApiDaemon::start();
    let create = |key: &str, body: &[u8]| {
        let key = format!("Idempotency-Key: {key}");
        daemon.ask_with("POST", "/v1/sandboxes", &[&key], body)
    };
    let id = create("k1", b"{}").id(201);
    assert_eq!(create("k1", b"{}").id(201), id);
    assert_ne!(create("k2", b"{}").id(201), id);
    create("k1", br#"{"spec": {}}"#).is_error(409, "conflict");
    create("", b"{}").is_error(400, "invalid");
    let all = daemon.ask("GET", "/v1/sandboxes", b"").json();
    assert_eq!(all["sandboxes"].as_array().unwrap().len(), 2);
}

#[test]
fn files_go_in_and_out() {
    let daemon = ApiDaemon::start();
    let files = format!("/v1/sandboxes/{}/files", daemon.create("{}"));
    // More than one piece of a transfer.
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let put = daemon.ask("PUT", &format!("{files}?path=dir/big&mode=640"), &content);
    put.is_error(404, "not-found");
    let made = daemon.ask("POST", &format!("{files}/directory"), br#"{"path": "dir"}"#);
    assert_eq!(made.status, 204);
    let put = daemon.ask("PUT", &format!("{files}?path=dir/big&mode=640"), &content);
    assert_eq!((put.status, &put.json()["size"]), (200, &json!(3_000_000)), "{put:?}");
    let got = daemon.ask("GET", &format!("{files}?path=dir/big"), b"");
    assert!(got.head.contains("content-length: 3000000"), "{}", got.head);
    assert_eq!((got.status, got.body == content), (200, true));
    assert_eq!(daemon.ask("PUT", &format!("{files}?path=empty"), b"").status, 200);
    assert_eq!(daemon.ask("GET", &format!("{files}?path=empty"), b"").body, b"");
    let moved =
        daemon.ask("POST", &format!("{files}/move"), br#"{"from": "empty", "to": "dir/e"}"#);
    assert_eq!(moved.status, 204);
    let listed = daemon.ask("GET", &format!("{files}/list?path=dir"), b"").json();
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|e| &e["name"]).collect();
    assert_eq!(names, ["big", "e"]);
    let stat = daemon.ask("GET", &format!("{files}/stat?path=dir/big"), b"").json();
    assert_eq!((&stat["kind"], &stat["mode"]), (&json!("file"), &json!(0o640)));
    assert_eq!(daemon.ask("DELETE", &format!("{files}?path=dir"), b"").status, 204);
    daemon.ask("GET", &format!("{files}?path=dir/big"), b"").is_error(404, "not-found");
    for path in ["..%2f..%2fetc%2fpasswd", "../x", "", "a%00b"] {
        let reply = daemon.ask("GET", &format!("{files}?path={path}"), b"");
        assert_eq!(reply.status, 400, "{path}: {reply:?}");
    }
}

#[test]
fn a_part_of_a_file_is_read_by_its_range() {
    let daemon = ApiDaemon::start();
    let files = format!("/v1/sandboxes/{}/files?path=", daemon.create("{}"));
    // Longer than one piece of a transfer.
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(daemon.ask("PUT", &format!("{files}big"), &content).status, 200);
    let read = |range: &str| {
        let range = format!("Range: {range}");
        daemon.ask_with("GET", &format!("{files}big"), &[&range], b"")
    };
    for (range, start, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=1000-2500000", 1000, 2_500_001),
        ("bytes=2999999-", 2_999_999, 3_000_000),
        ("bytes=-10", 2_999_990, 3_000_000),
        ("bytes=5-99999999", 5, 3_000_000),
    ] {
        let part = read(range);
        assert_eq!((part.status, part.body == content[start..end]), (206, true), "{range}");
        let told = format!("content-range: bytes {start}-{}/3000000", end - 1);
        assert!(part.head.contains(&told), "{}", part.head);
        let length = format!("content-length: {}", end - start);
        assert!(part.head.lines().any(|line| line == length), "{}", part.head);
    }
    read("bytes=3000000-").is_error(416, "invalid");
    for whole in ["bytes=0-1,5-6", "lines=0-1"] {
        let got = read(whole);
        assert_eq!((got.status, got.body.len()), (200, content.len()), "{whole}");
    }
    assert_eq!(daemon.ask("PUT", &format!("{files}empty"), b"").status, 200);
    let empty = daemon.ask_with("GET", &format!("{files}empty"), &["Range: bytes=0-"], b"");
    empty.is_error(416, "invalid");
}

#[test]
fn jobs_are_found_by_label_backend_and_outcome_and_their_output_by_offset() {
    let daemon = ApiDaemon::start();
    let one = daemon.create(r#"{"labels": {"team": "a", "kind": "x"}}"#);
    let other = daemon.create(r#"{"labels": {"team": "b"}}"#);
    let exited = daemon.exec(&one, r#"{"run": {"shell": "printf abcdef; exit 3"}}"#);
    assert_eq!(daemon.events(&exited, &[]).last().unwrap().kind, "exit");
    let waiting = r#"{"run": {"shell": "echo first; read line; echo last"}, "stdin": "stream"}"#;
    let running = daemon.exec(&other, waiting);
    assert_eq!(daemon.events(&running, &[]).next().unwrap().kind, "stdout");
    let jobs = |query: &str| {
        let page = daemon.ask("GET", &format!("/v1/jobs?{query}"), b"").json();
        let jobs = page["jobs"].as_array().unwrap_or_else(|| panic!("{page}")).clone();
        let id =
            |job: serde_json::Value| job["started"]["event"]["job"].as_str().unwrap().to_owned();
        jobs.into_iter().map(id).collect::<Vec<_>>()
    };
    let both = [running.clone(), exited.clone()];
    assert_eq!(jobs("label=team"), both);
    assert_eq!(jobs("label=team=a,kind=x"), [&*exited]);
    assert_eq!(jobs("label=team=a,kind=y"), [""; 0]);
    assert_eq!(jobs("outcome=exited"), [&*exited]);
    assert_eq!(jobs("outcome=running&label=team"), [&*running]);
    assert_eq!(jobs("outcome=timed-out"), [""; 0]);
    assert_eq!(jobs("backend=native&tenant=default"), both);
    assert_eq!(jobs("backend=docker"), [""; 0]);
    assert_eq!(jobs("tenant=other"), [""; 0]);
    daemon.ask("GET", "/v1/jobs?outcome=odd", b"").is_error(400, "invalid");
    let output = |job: &str, query: &str| {
        daemon.ask("GET", &format!("/v1/jobs/{job}/output?{query}"), b"").json()
    };
    let whole =
        json!({"output": [{"offset": 0, "stream": "stdout", "text": "abcdef"}], "next": null});
    assert_eq!(output(&exited, ""), whole);
    assert_eq!(
        output(&exited, "offset=4")["output"],
        json!([{"offset": 4, "stream": "stdout", "text": "ef"}])
    );
    assert_eq!(output(&exited, "offset=99"), json!({"output": [], "next": null}));
    // Of one that runs there is a next page, where the output goes on.
    assert_eq!(output(&running, "")["next"], 6);
    let ended = daemon.ask("POST", &format!("/v1/executions/{running}/input?end=true"), b"\n");
    assert_eq!(ended.status, 204);
    assert_eq!(daemon.events(&running, &[]).last().unwrap().kind, "exit");
    eventually("its end is recorded", || output(&running, "offset=6")["next"].is_null());
    assert_eq!(output(&running, "offset=6")["output"][0]["text"], "last\n");
    daemon.ask("GET", "/v1/jobs/none/output", b"").is_error(404, "not-found");
}

/// One entry of a tar archive.
fn tar_entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut entry = vec![0; 512];
    entry[..name.len()].copy_from_slice(name.as_bytes());
    entry[100..107].copy_from_slice(b"0000750");
    entry[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    entry[156] = kind;
    entry[148..156].fill(b' ');
    let sum: u64 = entry.iter().map(|byte| u64::from(*byte)).sum();
    entry[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    entry.extend_from_slice(content);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

#[test]
fn directories_go_in_and_out_as_archives() {
    let daemon = ApiDaemon::start();
    let [from, to] = [(); 2].map(|()| format!("/v1/sandboxes/{}/files", daemon.create("{}")));
    let content: Vec<u8> = (0..2_500_000u32).map(|at| (at % 251) as u8).collect();
    let archive = [
        tar_entry("./", b'5', b""),
        tar_entry("./sub/deep/big", b'0', &content),
        tar_entry("empty", b'0', b""),
        tar_entry("link", b'2', b""),
        vec![0; 1024],
    ];
    let taken = daemon.ask("PUT", &format!("{from}/tar?path=tree"), &archive.concat());
    let expected = json!({
        "files": 2, "directories": 0, "bytes": 2_500_000, "leftOut": 1, "namesLeftOut": ["link"]
    });
    assert_eq!((taken.status, taken.json()), (200, expected));
    let stat = daemon.ask("GET", &format!("{from}/stat?path=tree/sub/deep/big"), b"").json();
    assert_eq!((&stat["size"], &stat["mode"]), (&json!(2_500_000), &json!(0o750)));
    let sent = daemon.ask("GET", &format!("{from}/tar?path=tree"), b"");
    assert!(sent.status == 200 && sent.head.contains("application/x-tar"), "{}", sent.head);
    assert!(sent.head.contains(&format!("content-length: {}", sent.body.len())), "{}", sent.head);
    // Nothing of it stays on the host.
    let left = std::fs::read_dir(daemon.place.state().join("archives")).unwrap();
    assert_eq!(left.count(), 0);
    let taken = daemon.ask("PUT", &format!("{to}/tar?path=copy"), &sent.body).json();
    assert_eq!((&taken["files"], &taken["leftOut"]), (&json!(2), &json!(0)));
    let copied = daemon.ask("GET", &format!("{to}?path=copy/sub/deep/big"), b"");
    assert!(copied.body == content, "{} bytes", copied.body.len());
    for (wrong, code, status) in [
        (tar_entry("../x", b'0', b"x"), "path-escapes", 400),
        (tar_entry("a/../../x", b'0', b"x"), "path-escapes", 400),
        (tar_entry("cut", b'0', &content)[..9000].to_vec(), "invalid", 400),
        (b"no archive".repeat(100), "invalid", 400),
    ] {
        daemon.ask("PUT", &format!("{to}/tar?path=wrong"), &wrong).is_error(status, code);
    }
    let missing = daemon.ask("GET", &format!("{to}/tar?path=nowhere"), b"");
    assert!((400..500).contains(&missing.status), "{missing:?}");
}

#[test]
fn a_long_command_runs_whole_and_is_shown_cut() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let line = format!(": {}; echo end", "x".repeat(100_000));
    let job = daemon.exec(&sandbox, &json!({ "run": { "shell": line } }).to_string());
    assert_eq!(daemon.events(&job, &[]).next().unwrap().data, json!({"text": "end\n"}));
    let view = daemon.ask("GET", &format!("/v1/executions/{job}"), b"").json();
    let record = daemon.ask("GET", &format!("/v1/jobs/{job}"), b"").json();
    for command in [&view["command"], &record["started"]["event"]["command"]] {
        let shown = command[2].as_str().unwrap();
        assert!(shown.len() <= 4096 && shown.contains("sha256:"), "{shown}");
    }
}

#[test]
fn programs_are_signalled_and_cancelled() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let trap =
        r#"{"run": {"shell": "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"}}"#;
    let job = daemon.exec(&sandbox, trap);
    assert_eq!(daemon.events(&job, &[]).next().unwrap().kind, "stdout");
    let path = format!("/v1/executions/{job}/signal");
    daemon.ask("POST", &path, br#"{"signal": "NONE"}"#).is_error(400, "invalid");
    assert_eq!(daemon.ask("POST", &path, br#"{"signal": "TERM"}"#).status, 204);
    assert_eq!(daemon.events(&job, &[]).last().unwrap().data["exitCode"], 7);
    let job = daemon.exec(&sandbox, r#"{"run": {"program": ["sleep", "1000"]}}"#);
    assert_eq!(daemon.ask("POST", &format!("/v1/executions/{job}/cancel"), b"").status, 200);
    assert_eq!(daemon.events(&job, &[]).last().unwrap().data["ending"], "cancelled");
    let job = daemon.exec(&sandbox, r#"{"run": {"program": ["/nowhere"]}}"#);
    assert_eq!(daemon.events(&job, &[]).last().unwrap().data["ending"], "start-failed");
}

#[test]
fn what_would_wait_for_a_paused_sandbox_is_refused_at_once() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let job = daemon.exec(&sandbox, ECHO_COMMAND);
    assert_eq!(daemon.events(&job, &[]).next().unwrap().kind, "stdout");
    let (path, job) = (format!("/v1/sandboxes/{sandbox}"), format!("/v1/executions/{job}"));
    let paused = daemon.ask("POST", &format!("{path}/pause"), b"");
    if paused.status == 422 {
        println!("skipped: no control group can be frozen here");
        assert!(std::env::var_os("CI").is_none(), "CI has a freezer");
        return;
    }
    assert_eq!((paused.status, &paused.json()["state"]), (200, &json!("paused")));
    let command = r#"{"run": {"program": ["true"]}}"#;
    for (method, path, body) in [
        ("POST", format!("{path}/executions"), command),
        ("POST", format!("{path}/attached"), command),
        ("GET", format!("{path}/files?path=x"), ""),
        ("PUT", format!("{path}/files?path=x"), "x"),
        ("GET", format!("{path}/files/list?path=."), ""),
        ("GET", format!("{path}/files/part?path=x"), ""),
        ("POST", format!("{path}/files/directory"), r#"{"path": "d"}"#),
        ("POST", format!("{path}/snapshots"), ""),
        ("POST", format!("{job}/input"), "it\n"),
        ("POST", format!("{job}/signal"), r#"{"signal": "INT"}"#),
        ("POST", format!("{job}/resize"), r#"{"rows": 1, "cols": 1}"#),
    ] {
        let refused = daemon.ask(method, &path, body.as_bytes());
        refused.is_error(400, "invalid");
        assert_eq!(refused.json()["error"]["remedy"], "resume it first", "{method} {path}");
    }
    assert_eq!(daemon.ask("POST", &format!("{path}/resume"), b"").status, 200);
    assert_eq!(daemon.ask("POST", &format!("{job}/input?end=true"), b"it\n").status, 204);
    let id = job.rsplit('/').next().unwrap();
    assert_eq!(daemon.events(id, &[]).last().unwrap().data["exitCode"], 3);
}

#[test]
fn a_program_that_is_cancelled_in_a_paused_sandbox_resumes_it_and_that_is_told() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let job = daemon.exec(&sandbox, ECHO_COMMAND);
    assert_eq!(daemon.events(&job, &[]).next().unwrap().kind, "stdout");
    let path = format!("/v1/sandboxes/{sandbox}");
    let paused = daemon.ask("POST", &format!("{path}/pause"), b"");
    if paused.status == 422 {
        println!("skipped: no control group can be frozen here");
        assert!(std::env::var_os("CI").is_none(), "CI has a freezer");
        return;
    }
    assert_eq!((paused.status, &paused.json()["state"]), (200, &json!("paused")));
    assert_eq!(daemon.ask("POST", &format!("/v1/executions/{job}/cancel"), b"").status, 200);
    assert_eq!(daemon.events(&job, &[]).last().unwrap().data["ending"], "cancelled");
    assert_eq!(daemon.ask("GET", &path, b"").json()["state"], "running");
    let job = daemon.exec(&sandbox, r#"{"run": {"program": ["true"]}}"#);
    assert_eq!(daemon.events(&job, &[]).last().unwrap().data["exitCode"], 0);
}

#[test]
fn a_program_that_times_out_in_a_paused_sandbox_resumes_it_and_that_is_told() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let path = format!("/v1/sandboxes/{sandbox}");
    // A machine that was too slow to pause it before that is given more time.
    for seconds in [1, 4, 16] {
        let begun = Instant::now();
        let run = json!({ "program": ["sleep", "1000"] });
        let command = json!({ "run": run, "wallTime": format!("{seconds}s") });
        let job = daemon.exec(&sandbox, &command.to_string());
        let paused = daemon.ask("POST", &format!("{path}/pause"), b"");
        if paused.status == 422 {
            println!("skipped: no control group can be frozen here");
            assert!(std::env::var_os("CI").is_none(), "CI has a freezer");
            return;
        }
        assert_eq!(paused.status, 200, "{paused:?}");
        let paused_in_time = begun.elapsed() < Duration::from_secs(seconds);
        assert_eq!(daemon.events(&job, &[]).last().unwrap().data["ending"], "timed-out");
        if paused_in_time {
            assert_eq!(daemon.ask("GET", &path, b"").json()["state"], "running");
            let job = daemon.exec(&sandbox, r#"{"run": {"program": ["true"]}}"#);
            assert_eq!(daemon.events(&job, &[]).last().unwrap().data["exitCode"], 0);
            return;
        }
        assert_eq!(daemon.ask("POST", &format!("{path}/resume"), b"").status, 200);
    }
    panic!("the sandbox was never paused before its program had timed out");
}

#[test]
fn a_snapshot_brings_files_back_and_begins_another_sandbox() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let files = format!("/v1/sandboxes/{sandbox}/files?path=note");
    assert_eq!(daemon.ask("PUT", &files, b"before").status, 200);
    let snapshot = daemon.ask("POST", &format!("/v1/sandboxes/{sandbox}/snapshots"), b"").id(201);
    assert_eq!(daemon.ask("PUT", &files, b"after").status, 200);
    let choice = json!({ "snapshot": snapshot }).to_string();
    let restored =
        daemon.ask("POST", &format!("/v1/sandboxes/{sandbox}/restore"), choice.as_bytes());
    assert_eq!((restored.status, daemon.ask("GET", &files, b"").body), (200, b"before".to_vec()));
    let from = json!({ "from": snapshot }).to_string();
    let copy = daemon.ask("POST", "/v1/sandboxes", from.as_bytes()).id(201);
    let copied = daemon.ask("GET", &format!("/v1/sandboxes/{copy}/files?path=note"), b"");
    assert_eq!(copied.body, b"before");
    let forked = daemon.ask("POST", &format!("/v1/sandboxes/{sandbox}/fork"), br#"{"count": 2}"#);
    assert_eq!(forked.json()["sandboxes"].as_array().unwrap().len(), 2);
    assert_eq!(daemon.ask("DELETE", &format!("/v1/snapshots/{snapshot}"), b"").status, 204);
    daemon.ask("GET", &format!("/v1/snapshots/{snapshot}"), b"").is_error(404, "not-found");
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn when_it_ends_readers_learn_the_end_and_nothing_is_left() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let job = daemon.exec(&sandbox, r#"{"run": {"shell": "echo ready; sleep 1000"}}"#);
    let mut events = daemon.events(&job, &[]);
    assert_eq!(events.next().unwrap().kind, "stdout");
    let socket = daemon.socket.clone();
    let seen = std::fs::symlink_metadata(&socket).unwrap();
    assert!(seen.file_type().is_socket() && seen.mode() & 0o777 == 0o600);
    daemon.ask_to_end();
    assert_eq!(events.last().unwrap().data["ending"], "cancelled");
    let (place, done) = daemon.wait_for_end();
    done.code_is(0);
    assert!(!socket.exists());
    place.assert_nothing_is_left();
}

#[test]
fn a_second_daemon_is_told_where_the_first_is_and_a_killed_one_is_replaced() {
    let daemon = ApiDaemon::start();
    let socket = daemon.socket.display().to_string();
    let second = finish(daemon.place.command(&["serve"]));
    second.is_refused(&["runs already", &socket, "STOCKADE_STATE_DIR"]);
    assert_eq!(daemon.ask("GET", "/v1/health", b"").status, 200);
    let id = daemon.create("{}");
    let daemon = ApiDaemon::start_in(daemon.kill(), &[]);
    assert_eq!(daemon.ask("GET", "/v1/sandboxes", b"").json()["sandboxes"], json!([]));
    daemon.ask("GET", &format!("/v1/sandboxes/{id}"), b"").is_error(404, "not-found");
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn bad_requests_are_refused_in_one_shape() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let executions = format!("/v1/sandboxes/{sandbox}/executions");
    for (path, body, status, code) in [
        ("/v1/sandboxes", "not json", 400, "invalid"),
        ("/v1/sandboxes", "[]", 400, "invalid"),
        ("/v1/sandboxes", r#"{"spec": {"netwrok": "none"}}"#, 400, "invalid"),
        ("/v1/sandboxes", r#"{"spec": {"backend": "brick"}}"#, 404, "not-found"),
        ("/v1/sandboxes", r#"{"from": "none"}"#, 404, "not-found"),
        ("/v1/sandboxes", r#"{"spec": {"limits": {"memory": "1"}}}"#, 422, "refused"),
        ("/v1/sandboxes", r#"{"spec": {"limits": {"openFiles": 1}}}"#, 422, "refused"),
        ("/v1/sandboxes", r#"{"spec": {"limits": {"processes": 4294967295}}}"#, 422, "refused"),
        (&executions, "", 400, "invalid"),
        (&executions, r#"{"run": {"program": []}}"#, 422, "refused"),
        (&executions, r#"{"run": {"shell": "true"}, "timeout": "1s"}"#, 400, "invalid"),
        ("/v1/nothing", "", 404, "not-found"),
        ("/v1/health", "", 405, "method-not-allowed"),
    ] {
        let reply = daemon.ask("POST", path, body.as_bytes());
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
        reply.is_error(status, code);
    }
    let large = vec![b' '; 2 << 20];
    daemon.ask("POST", "/v1/sandboxes", &large).is_error(413, "too-large");
    assert_eq!(daemon.ask("GET", "/v1/health", b"").status, 200);
}

/// Sends bytes as they are; everything that is answered.
fn send_raw(daemon: &ApiDaemon, request: &str) -> String {
    let mut stream = daemon.connect();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn heads_that_are_too_long_or_can_be_read_in_two_ways_are_refused() {
    let daemon = ApiDaemon::start();
    let two_hosts = daemon.ask_with("GET", "/v1/health", &["Host: localhost"], b"");
    two_hosts.is_error(400, "invalid");
    daemon.ask("GET", "http://evil.example/v1/health", b"").is_error(400, "invalid");
    // The client sends a length of its own.
    let two_lengths = daemon.ask_with("POST", "/v1/sandboxes", &["Content-Length: 2"], b"{}");
    two_lengths.is_error(400, "invalid");
    for lengths in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
    ] {
        let reply = send_raw(
            &daemon,
            &format!("POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n{lengths}\r\n\r\n0\r\n\r\n"),
        );
        assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("Content-Length"), "{reply}");
    }
    assert_eq!(daemon.ask("GET", "/v1/sandboxes", b"").json()["sandboxes"], json!([]));
    let mut stream = daemon.connect();
    // The server answers before it has read everything.
    let _ = write!(stream, "GET /v1/health HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(256 << 10));
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(daemon.ask("GET", "/v1/health", b"").status, 200);
}

#[test]
fn the_sockets_own_user_names_paths_of_the_host() {
    let daemon = ApiDaemon::start();
    daemon.place.write("hello", "from the host");
    let local = json!({ "workspace": { "local": daemon.place.workspace() } }).to_string();
    let sandbox = daemon.create(&local);
    let hello = daemon.ask("GET", &format!("/v1/sandboxes/{sandbox}/files?path=hello"), b"");
    assert_eq!(hello.body, b"from the host");
}

/// What git on the host is configured by, and what is applied later, lies there.
#[test]
fn no_request_names_a_tree_of_the_state_directory() {
    let daemon = ApiDaemon::start();
    for tree in ["git/one/store", "git/one/tree", "workspaces/one/upper", "workspaces/one/copy"] {
        let path = daemon.place.state().join(tree);
        std::fs::create_dir_all(&path).unwrap();
        let local = json!({ "spec": { "workspace": { "local": path } } }).to_string();
        let refused = daemon.ask("POST", "/v1/sandboxes", local.as_bytes());
        let told = String::from_utf8_lossy(&refused.body);
        assert!(told.contains("lies in the state directory"), "{tree}: {told}");
    }
}

#[test]
fn addresses_that_others_reach_and_listening_without_tokens_are_refused() {
    let place = CliPlace::new();
    let remote = place.stockade(&["serve", "--listen", "0.0.0.0:0"]);
    remote.is_refused(&["0.0.0.0", "--tls-cert", "TLS proxy", "ssh -L"]);
    place.stockade(&["serve", "--listen", "127.0.0.1:0"]).is_refused(&["stockade token new"]);
    place.stockade(&["serve", "--listen", "nowhere"]).is_refused(&["--listen"]);
    place.stockade(&["serve", "--max-sandboxes", "0"]).is_refused(&["--max-sandboxes"]);
}

/// As a service manager starts a daemon: with what it has opened as descriptor 3.
fn serve_passed(place: &CliPlace, passed: OwnedFd, flags: &str) -> Command {
    let variables = "export LISTEN_PID=$$ LISTEN_FDS=1";
    let mut command =
        place.script(&format!("exec 3<&0 0</dev/null; {variables}; exec stockade serve {flags}"));
    command.stdin(passed);
    command
}

#[test]
fn a_socket_that_a_service_manager_has_opened_is_used_and_left_to_it() {
    let place = CliPlace::new();
    let path = place.path("passed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // It is there before the daemon.
    let early = UnixStream::connect(&path).unwrap();
    let command = serve_passed(&place, listener.try_clone().unwrap().into(), "--json");
    let daemon = ApiDaemon::start_command(place, command);
    assert_eq!(daemon.socket, path);
    assert_eq!(exchange(early, "GET", "/v1/health", &["Host: localhost"], b"").status, 200);
    let sandbox = daemon.create("{}");
    let open = daemon.exec(&sandbox, r#"{"run": {"shell": "ls -l /proc/self/fd"}}"#);
    let told: Vec<_> = daemon.events(&open, &[]).map(|event| event.data.to_string()).collect();
    assert!(!told.concat().contains("socket:"), "{told:?}");
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
    UnixStream::connect(&path).unwrap();
    drop(listener);
}

#[test]
fn what_was_passed_and_is_no_socket_that_listens_is_refused() {
    let place = CliPlace::new();
    let (connected, _peer) = UnixStream::pair().unwrap();
    let no_socket = std::fs::File::open("/dev/null").unwrap();
    let over_tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for passed in [OwnedFd::from(connected), no_socket.into(), over_tcp.into()] {
        finish(serve_passed(&place, passed, "")).is_refused(&["service manager", "ListenStream="]);
    }
}

#[test]
fn a_socket_on_which_a_service_manager_listens_is_not_replaced() {
    let daemon = ApiDaemon::start();
    let path = daemon.socket.clone();
    let (place, done) = daemon.end();
    done.code_is(0);
    let _manager = UnixListener::bind(&path).unwrap();
    place.stockade(&["serve"]).is_refused(&["service manager", "systemctl"]);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_passed_socket_is_kept_from_guests() {
    let place = CliPlace::new();
    let path = place.workspace().join("passed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let command = serve_passed(&place, listener.into(), "--json");
    let daemon = ApiDaemon::start_command(place, command);
    let workspace = daemon.place.workspace();
    let local = json!({ "spec": { "workspace": { "local": workspace } } }).to_string();
    let refused = daemon.ask("POST", "/v1/sandboxes", local.as_bytes());
    assert!(String::from_utf8_lossy(&refused.body).contains("socket of the daemon"), "{refused:?}");
}
