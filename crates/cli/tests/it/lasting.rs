//! Sandboxes that live on after the command that made them, used by real processes one after the
//! other and at the same time.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use crate::common;
use crate::common::lasting::{Lasting, eventually};
use crate::common::{CliPlace, start, wait};

#[test]
fn the_beginning_of_an_id_is_enough() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let short = &id[..8];
    place.stockade(&["exec", short, "echo", "hi"]).is(0, "hi\n", "");
    let job = place.stockade(&["exec", "--detach", short, "--shell", "echo out; sleep 100"]);
    let job = job.stdout.trim_end().to_owned();
    eventually("its output", || {
        place.stockade(&["logs", short, "--job", &job[..8]]).stdout == "out\n"
    });
    assert_eq!(place.json(&["audit", "show", &job[..8]])["started"]["event"]["job"], *job);
    place.stockade(&["kill", short]).is(0, &format!("{id}\n"), "");
    place.stockade(&["logs", &job[..8]]).code_is(0);
    let shown = place.json(&["audit", "show", &job]);
    assert_eq!(shown["stopped"]["event"]["outcome"]["ending"], "killed");
    place.stockade(&["exec", short, "true"]).is_refused(&["no sandbox"]);
}

#[test]
fn a_sandbox_lives_on_from_command_to_command() {
    let place = Lasting::new();
    let id = place.create(&[]);
    place.shell(&id, "echo kept > /tmp/kept; exit 3").is(3, "", "");
    place.shell(&id, "cat /tmp/kept; echo apart >&2").is(0, "kept\n", "apart\n");
    place.stockade(&["exec", &id, "no-such-program"]).code_is(127);
    place.stockade(&["kill", &id]).is(0, &format!("{id}\n"), "");
    place.assert_all_is_gone();
}

#[test]
fn two_sandboxes_share_nothing() {
    let place = Lasting::new();
    let (one, other) = (place.create(&["--no-workspace"]), place.create(&["--no-workspace"]));
    place.shell(&one, "echo mine > /tmp/x; echo mine > /workspace/x").is(0, "", "");
    place.shell(&other, "ls /tmp /workspace").is(0, "/tmp:\n\n/workspace:\n", "");
}

#[test]
fn every_process_of_the_user_sees_it() {
    let place = Lasting::new();
    let id = place.create(&["--label", "for=test", "--tenant", "team", "--idle", "5m"]);
    let seen = place.listed(&id).unwrap();
    for (field, expected) in
        [("backend", "native"), ("tenant", "team"), ("state", "alive"), ("idle", "5m")]
    {
        assert_eq!(seen[field], expected, "{seen}");
    }
    assert_eq!(seen["labels"]["for"], "test");
    assert!(fs::read_to_string(format!("/proc/{}/comm", seen["pid"])).unwrap() == "stockade\n");
    let table = place.stockade(&["ps"]);
    for part in ["ID ", "RUNNING", id.as_str(), "team", "alive", "for=test", "(idle)"] {
        assert!(table.stdout.contains(part), "{part}: {}", table.stdout);
    }
    place.stockade(&["ps", "-q"]).is(0, &format!("{id}\n"), "");
}

#[test]
fn a_detached_command_runs_on_and_its_log_can_be_followed() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let line = "echo one; echo err >&2; until [ -e go ]; do sleep 0.02; done; echo two; exit 4";
    let job = place.stockade(&["exec", &id, "--detach", "--shell", line]).stdout;
    let job = job.trim_end();
    let (follower, first) = start(place.command(&["logs", "-f", &id]));
    assert_eq!(first, "one");
    assert_eq!(place.running(&id), [job]);
    place.stockade(&["logs", &id]).is(0, "one\n", "err\n");
    place.write("go", "");
    wait(follower).is(0, "two\n", "err\n");
    let log = place.json(&["logs", &id, "--job", job]);
    assert_eq!((&log["job"], &log["stdout"]), (&job.into(), &"one\ntwo\n".into()));
    assert_eq!((&log["outcome"]["exitCode"], &log["missingBytes"]), (&4.into(), &0.into()));
    assert_eq!(place.running(&id), [""; 0]);
    place.stockade(&["logs", &id, "--job", "nojob"]).is_refused(&["nojob", "audit list"]);
}

#[test]
fn a_run_that_is_detached_takes_its_sandbox_with_it() {
    let place = Lasting::new();
    let line = "echo one; until [ -e go ]; do sleep 0.02; done; echo two";
    let done = place.stockade(&["run", "--detach", "--shell", line]);
    let (id, job) = done.stdout.trim_end().split_once(' ').unwrap();
    assert_eq!(place.running(id), [job]);
    let (follower, first) = start(place.command(&["logs", "-f", id]));
    assert_eq!(first, "one");
    place.write("go", "");
    wait(follower).is(0, "two\n", "");
    eventually("the sandbox is gone", || place.listed(id).is_none());
    eventually("its owner is gone", || place.stockade(&["ps", "-q"]).stdout.is_empty());
    place.assert_all_is_gone();
}

#[test]
fn logs_outlive_the_program_and_its_sandbox() {
    let place = Lasting::new();
    let line = "echo out; echo err >&2; exit 3";
    let done = place.stockade(&["run", "--detach", "--shell", line]);
    let (id, job) = done.stdout.trim_end().split_once(' ').unwrap();
    eventually("its owner is gone", || place.stockade(&["ps", "-q"]).stdout.is_empty());
    for args in
        [&["logs", id][..], &["logs", "-f", id], &["logs", id, "--job", job], &["logs", job]]
    {
        place.stockade(args).is(0, "out\n", "err\n");
    }
    let log = place.json(&["logs", id]);
    assert_eq!((&log["job"], &log["sandbox"]), (&job.into(), &id.into()));
    assert_eq!((&log["stdout"], &log["stderr"]), (&"out\n".into(), &"err\n".into()));
    assert_eq!((&log["outcome"]["exitCode"], &log["missingBytes"]), (&3.into(), &0.into()));
    let shown = place.stockade(&["audit", "show", job]).stdout;
    assert!(shown.contains(&format!("logs/{job}")), "{shown}");
    place.stockade(&["logs", id, "--job", "nojob"]).is_refused(&[id, "audit list"]);
}

#[test]
fn logs_of_a_lasting_sandbox_are_there_after_its_end_and_after_its_owners_death() {
    let place = Lasting::new();
    let (ended, slain) = (place.create(&[]), place.create(&[]));
    place.shell(&ended, "echo one").is(0, "one\n", "");
    place.shell(&ended, "echo two").is(0, "two\n", "");
    place.stockade(&["kill", &ended]).code_is(0);
    place.stockade(&["logs", &ended]).is(0, "two\n", "");
    let line = "echo said; sleep 1000";
    place.stockade(&["exec", &slain, "--detach", "--shell", line]).code_is(0);
    eventually("it has said so", || place.stockade(&["logs", &slain]).stdout == "said\n");
    place.slay_owner(&slain);
    place.stockade(&["logs", &slain]).is(0, "said\n", "stockade: how it ended is not known yet\n");
    place.stockade(&["run", "true"]).is(0, "", "");
    let told = "stockade: it ended at an unknown time: its engine died before it\n";
    place.stockade(&["logs", &slain]).is(0, "said\n", told);
}

#[test]
fn logs_are_bounded_and_their_users_alone_whatever_the_umask() {
    let place = Lasting::new();
    let line = "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 30000000; echo end";
    let command = place.command(&["run", "--detach", "--max-output", "100m", "--shell", line]);
    let done = common::finish(common::under("000", &command));
    let (id, _) = done.stdout.trim_end().split_once(' ').unwrap();
    eventually("its owner is gone", || place.stockade(&["ps", "-q"]).stdout.is_empty());
    let logs = std::fs::read_dir(place.state().join("logs")).unwrap().flatten();
    let found: Vec<_> = logs.map(|entry| entry.metadata().unwrap()).collect();
    assert!(found.iter().all(|one| one.permissions().mode() & 0o777 == 0o600), "{found:?}");
    let bytes: u64 = found.iter().map(|one| one.len()).sum();
    assert!((1 << 20..13 << 20).contains(&bytes), "{bytes}");
    let read = place.stockade(&["logs", id]);
    assert!(read.stdout.starts_with("0123456789") && read.stdout.ends_with("end\n"));
    assert!(read.stderr.contains("bytes before this are no longer there"), "{}", read.stderr);
}

#[test]
fn output_that_is_not_kept_is_said_to_be_so() {
    let place = Lasting::new();
    place.stockade(&["run", "echo", "out"]).is(0, "out\n", "");
    let jobs = place.json(&["audit", "list"]);
    let id = jobs[0]["started"]["event"]["sandbox"].as_str().unwrap();
    place.stockade(&["logs", id]).is_refused(&["was not kept", "run --detach"]);
}

#[test]
fn two_clients_at_once_do_not_disturb_each_other() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let line = |name: &str| {
        format!("echo {name}; until [ -e go-{name} ]; do sleep 0.02; done; echo {name} end")
    };
    let (a, first_a) = start(place.command(&["exec", &id, "--shell", &line("a")]));
    let (b, first_b) = start(place.command(&["exec", &id, "--shell", &line("b")]));
    assert_eq!((first_a.as_str(), first_b.as_str()), ("a", "b"));
    assert_eq!(place.running(&id).len(), 2);
    place.write("go-b", "");
    wait(b).is(0, "b end\n", "");
    assert_eq!(place.running(&id).len(), 1);
    place.write("go-a", "");
    wait(a).is(0, "a end\n", "");
}

#[test]
fn input_and_output_pass_byte_for_byte() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let sent: Vec<u8> =
        (0..3_000_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let mut command = place.command(&["exec", "-i", &id, "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, sending) = (child.stdin.take().unwrap(), sent.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&sending).unwrap());
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert_eq!(wait(child).code, 0);
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
}

#[test]
fn flags_of_one_command_hold_for_it_alone() {
    let place = Lasting::new();
    let id = place.create(&["--env", "A=1", "--env", "B=2"]);
    let line = "echo $A$B; pwd";
    place.stockade(&["exec", &id, "--env", "B=3", "--workdir", "/tmp", "--shell", line]).is(
        0,
        "13\n/tmp\n",
        "",
    );
    place.shell(&id, line).is(0, "12\n/workspace\n", "");
    let late = place.stockade(&["exec", &id, "--timeout", "200ms", "sleep", "100"]);
    assert_eq!(late.code, 124, "{late:?}");
    let cut = place.stockade(&["exec", &id, "--max-output", "3b", "echo", "abcdef"]);
    assert_eq!((cut.code, cut.stdout.as_str()), (0, "abc"), "{cut:?}");
}

#[test]
fn a_sandbox_whose_id_cannot_be_printed_is_named_on_standard_error() {
    let place = Lasting::new();
    for args in [&["create"][..], &["run", "--detach", "sleep", "1000"]] {
        let mut command = place.command(args);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        command.stdout(full).stderr(Stdio::piped());
        let done = wait(command.spawn().unwrap());
        done.code_is(125);
        let id = place.stockade(&["ps", "-q"]).stdout.trim_end().to_owned();
        assert!(done.stderr.contains(&format!("`stockade kill {id}`")), "{done:?}");
        assert!(done.stderr.contains("standard output cannot be written"), "{done:?}");
        place.stockade(&["kill", &id]).code_is(0);
    }
    place.assert_all_is_gone();
}

#[test]
fn every_command_answers_in_json_too() {
    let place = Lasting::new();
    let made = place.json(&["create"]);
    let id = made["sandbox"].as_str().unwrap();
    let ran = place.json(&["exec", id, "--shell", "echo out; echo err >&2"]);
    assert_eq!(
        (&ran["sandbox"], &ran["stdout"], &ran["stderr"]),
        (&id.into(), &"out\n".into(), &"err\n".into())
    );
    assert_eq!(ran["outcome"]["ending"], "exited");
    assert!(ran["backend"].is_string() && ran["boundary"].is_string(), "{ran}");
    let logged = place.json(&["logs", id]);
    assert_eq!((&logged["backend"], &logged["boundary"]), (&ran["backend"], &ran["boundary"]));
    let detached = place.json(&["exec", id, "--detach", "true"]);
    assert_eq!(detached["sandbox"], id);
    assert!(detached["job"].is_string());
    place.write("f", "data");
    assert_eq!(place.json(&["cp", "f", &format!("{id}:/tmp/f")])["bytes"], 4);
    assert_eq!(place.json(&["kill", id])["killed"][0], id);
    assert_eq!(place.json(&["rm", id])["removed"].as_array().unwrap().len(), 0);
    let error = place.json(&["exec", id, "true"]);
    assert_eq!(error["error"]["code"], "not-found");
}

#[test]
fn an_id_that_is_not_there_is_one_clear_line() {
    let place = Lasting::new();
    for args in [
        &["exec", "abc", "true"][..],
        &["shell", "abc"],
        &["logs", "abc"],
        &["kill", "abc"],
        &["cp", "abc:/etc/hosts", "."],
    ] {
        place.stockade(args).is_refused(&["`abc`", "stockade ps"]);
        let args = args.iter().map(|arg| arg.replace("abc", "A-b")).collect::<Vec<_>>();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        place.stockade(&args).is_refused(&["sandbox id"]);
    }
    let told = "stockade: no sandbox `abc`: nothing to remove\n";
    place.stockade(&["rm", "abc"]).is(0, "", told);
}

#[test]
fn bad_use_is_refused_with_the_remedy_and_leaves_nothing() {
    let place = Lasting::new();
    let id = place.create(&[]);
    place.stockade(&["create", "--idle", "0s"]).is_refused(&["--idle", "positive"]);
    place.stockade(&["create", "--lifetime", "soon"]).is_refused(&["soon", "30s"]);
    place.stockade(&["create", "--workspace", "/nowhere"]).is_refused(&["/nowhere"]);
    place
        .stockade(&["create", "--backend", "landlock", "--net", "example.org"])
        .is_refused(&["egress"]);
    place.stockade(&["exec", &id]).is_refused(&["no command", "exec ID"]);
    place.stockade(&["exec", &id, "-t", "sh"]).is_refused(&["terminal"]);
    place.stockade(&["exec", &id, "--detach", "-i", "cat"]).is_refused(&["--detach"]);
    place.stockade(&["run", "--detach", "-i", "cat"]).is_refused(&["--detach"]);
    place.stockade(&["shell", &id, "--mem", "1g"]).is_refused(&["--mem"]);
    place.stockade(&["cp", "a", "b"]).is_refused(&["ID:PATH"]);
    place.stockade(&["cp", "a:x", "b:y"]).is_refused(&["ID:PATH"]);
    place.stockade(&["kill"]).is_refused(&["ID"]);
    place.stockade(&["supervise"]).code_is(0);
    place.stockade(&["kill", "--all"]).is(0, &format!("{id}\n"), "");
    place.assert_all_is_gone();
}

#[test]
fn an_ordinary_user_has_lasting_sandboxes_and_nobody_elses() {
    let theirs = Lasting::new();
    let foreign = theirs.create(&[]);
    let place = Lasting(CliPlace::of_an_ordinary_user());
    let id = place.create(&[]);
    place.shell(&id, "echo hello").is(0, "hello\n", "");
    place.stockade(&["exec", &foreign, "true"]).is_refused(&[foreign.as_str(), "stockade ps"]);
    let mut elsewhere = place.command(&["exec", &foreign, "true"]);
    elsewhere.env("STOCKADE_STATE_DIR", theirs.state());
    if rustix::process::geteuid().is_root() {
        common::finish(elsewhere).is_refused(&["Permission denied"]);
    }
    place.stockade(&["kill", &id]).is(0, &format!("{id}\n"), "");
    place.assert_all_is_gone();
}

#[test]
fn nonsense_on_the_socket_harms_nobody() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let socket = place.state().join(format!("run/{id}.sock"));
    let modes = [socket.clone(), place.state().join("run")]
        .map(|path| fs::metadata(path).unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o600, 0o700]);
    let hello = br#"{"hello":{"version":99}}"#;
    let greeting = [&[u8::try_from(hello.len()).unwrap(), 0, 0, 0, 0, 0, 0, 0][..], hello].concat();
    for said in [&b"\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"\x02\0\0\0\0\0\0\0{]", &greeting] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(said).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || String::from_utf8_lossy(&answer).contains("another version"));
    }
    place.shell(&id, "echo well").is(0, "well\n", "");
}

#[test]
fn a_state_directory_may_be_deeper_than_a_socket_path_may_be_long() {
    let place = Lasting::new();
    let deep = place.path(&format!("{0}/{0}/{0}", "d".repeat(60)));
    let finish = |args: &[&str]| {
        let mut command = place.command(args);
        common::finish({
            command.env("STOCKADE_STATE_DIR", &deep);
            command
        })
    };
    let id = finish(&["create"]).stdout;
    finish(&["exec", id.trim_end(), "echo", "deep"]).is(0, "deep\n", "");
    finish(&["kill", "--all"]).is(0, &id, "");
}

#[test]
fn a_process_in_namespaces_of_its_own_is_not_served() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    for namespace in
        [&["--user", "--map-root-user"][..], &["--user", "--map-root-user", "--pid", "--fork"]]
    {
        let own = place.command(&["exec", &id, "--", "echo", "reached"]);
        let mut command = std::process::Command::new("unshare");
        command.args(namespace).arg(own.get_program()).args(own.get_args());
        command.env_clear().current_dir(place.workspace());
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let done = common::finish(command);
        assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{done:?}");
        assert!(done.stderr.contains("namespace"), "{}", done.stderr);
    }
    place.shell(&id, "echo served").is(0, "served\n", "");
    place.stockade(&["kill", &id]).code_is(0);
}
