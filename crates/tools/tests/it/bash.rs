//! Commands through the tools: waited for and in the background, in a sandbox and locally.
use std::sync::Arc;
use std::time::Duration;

use crate::common::{NATIVE_AND_LOCAL, ToolBench, Where, test};
use serde_json::{Value, json};
use stockade_core::ErrorCode;
use stockade_engine::Event;
use stockade_tools::{Call, Cancelled};

#[test]
fn exec_answers_with_every_field_wherever_it_runs() {
    test(async {
        for place in NATIVE_AND_LOCAL {
            let bench = ToolBench::new(place).await;
            bench.write("sub/x", "");
            let line = "echo out; echo err >&2; exit 3";
            let args = json!({ "command": line, "working_directory": "sub" });
            let done = bench.ok("bash", args).await;
            let mut fields: Vec<_> = done.as_object().unwrap().keys().map(String::as_str).collect();
            fields.sort_unstable();
            let expected = [
                "command",
                "durationMs",
                "endedBy",
                "executionEnvironment",
                "exitCode",
                "jobId",
                "limitExceeded",
                "networkDenied",
                "sandboxProviderId",
                "sandboxSessionId",
                "signal",
                "stderr",
                "stdout",
                "timedOut",
                "truncated",
                "workingDirectory",
            ];
            assert_eq!(fields, expected, "{place:?}");
            assert_eq!(done["command"], line);
            assert_eq!((&done["stdout"], &done["stderr"]), (&json!("out\n"), &json!("err\n")));
            assert_eq!((&done["exitCode"], &done["timedOut"]), (&json!(3), &json!(false)));
            let (environment, provider, directory) = match place {
                Where::Native => ("sandbox", json!("native"), "/workspace/sub".to_owned()),
                Where::Landlock => unreachable!("it is not among these"),
                Where::Local => {
                    ("local", Value::Null, bench.path("sub").to_str().unwrap().to_owned())
                }
            };
            assert_eq!(done["executionEnvironment"], environment);
            assert_eq!(done["sandboxProviderId"], provider);
            assert_eq!(done["sandboxSessionId"].is_null(), place == Where::Local);
            assert_eq!(done["workingDirectory"], directory);
            let pwd =
                bench.ok("bash", json!({ "command": "pwd", "working_directory": "sub" })).await;
            assert_eq!(pwd["stdout"], format!("{directory}\n"), "{place:?}");
            bench.close().await;
        }
    });
}

#[test]
fn time_signals_and_failures_to_start_are_told_apart() {
    test(async {
        for place in NATIVE_AND_LOCAL {
            let bench = ToolBench::new(place).await;
            let done = bench.ok("bash", json!({ "command": "sleep 60", "timeout_ms": 100 })).await;
            assert_eq!((&done["timedOut"], &done["exitCode"]), (&json!(true), &json!(-1)));
            let done = bench.ok("bash", json!({ "command": "kill -9 $$" })).await;
            assert_eq!((&done["signal"], &done["exitCode"]), (&json!("SIGKILL"), &json!(-1)));
            let absent = json!({ "command": "true", "working_directory": "absent" });
            let done = bench.ok("bash", absent).await;
            assert!(done["stderr"].as_str().unwrap().contains("not started"), "{done}");
            let done = bench.ok("bash", json!({ "command": "cat", "input": "given" })).await;
            assert_eq!(done["stdout"], "given");
            bench.close().await;
        }
    });
}

#[test]
fn long_output_is_cut_in_the_middle_and_kept_whole_for_logs() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        let done =
            bench.ok("bash", json!({ "command": "seq 1 100000; printf '\\033\\377'" })).await;
        let stdout = done["stdout"].as_str().unwrap();
        assert!(stdout.len() < 32_000 && stdout.starts_with("1\n2\n"), "{}", stdout.len());
        assert!(stdout.ends_with("100000\n\u{1b}\u{fffd}"));
        assert!(stdout.contains("bytes left out") && stdout.contains("offset 15000"));
        assert_eq!(done["truncated"], true);
        let job = done["jobId"].as_str().unwrap();
        let args = json!({ "action": "logs", "job_id": job, "offset": 15000, "limit": 20 });
        let logs = bench.ok("bash", args).await;
        let whole: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
        assert_eq!(logs["data"], whole[15000..15020]);
        assert_eq!(logs["totalBytes"], whole.len() + 2);
        bench.close().await;
    });
}

#[test]
fn a_background_process_lives_on_is_fed_followed_and_stopped() {
    test(async {
        for place in NATIVE_AND_LOCAL {
            let bench = ToolBench::new(place).await;
            let line = "while read -r word; do echo \"got $word\"; done; echo over; sleep 600";
            let job = bench.ok("bash", json!({ "action": "start", "command": line })).await;
            assert_eq!(job["state"], "running");
            let id = job["jobId"].as_str().unwrap().to_owned();
            let logs = |offset: u64| json!({ "action": "logs", "job_id": id, "offset": offset, "wait_ms": 30_000 });
            bench.ok("bash", json!({ "action": "write", "job_id": id, "input": "one\n" })).await;
            let first = bench.ok("bash", logs(0)).await;
            assert_eq!(first["data"], "got one\n", "{place:?}");
            let rest =
                json!({ "action": "write", "job_id": id, "input": "two\n", "close_input": true });
            bench.ok("bash", rest).await;
            let mut seen = String::new();
            let mut at = first["nextOffset"].as_u64().unwrap();
            while !seen.ends_with("over\n") {
                let next = bench.ok("bash", logs(at)).await;
                seen.push_str(next["data"].as_str().unwrap());
                at = next["nextOffset"].as_u64().unwrap();
            }
            assert_eq!(seen, "got two\nover\n");
            let list = bench.ok("bash", json!({ "action": "list" })).await;
            assert_eq!(list["jobs"][0]["jobId"], id.as_str());
            let stopped = bench.ok("bash", json!({ "action": "stop", "job_id": id })).await;
            assert_eq!(stopped["state"], "ended");
            let again = bench.ok("bash", logs(0)).await;
            assert_eq!(
                again["data"], "got one\ngot two\nover\n",
                "the whole is there after the end"
            );
            let absent = json!({ "action": "logs", "job_id": "abc" });
            bench.refuses("bash", absent, ErrorCode::NotFound, "abc").await;
            bench.close().await;
        }
    });
}

#[test]
fn a_signal_can_be_sent_instead_of_killing() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        let line = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done";
        let job = bench.ok("bash", json!({ "action": "start", "command": line })).await;
        let id = job["jobId"].clone();
        bench.ok("bash", json!({ "action": "logs", "job_id": id, "wait_ms": 30_000 })).await;
        let stop = json!({ "action": "stop", "job_id": id, "signal": "SIGINT", "wait_ms": 30_000 });
        let stopped = bench.ok("bash", stop).await;
        assert_eq!((&stopped["state"], &stopped["exitCode"]), (&json!("ended"), &json!(7)));
        let wrong = json!({ "action": "stop", "job_id": id, "signal": "SIGNOTHING" });
        bench.refuses("bash", wrong, ErrorCode::Invalid, "SIGNOTHING").await;
        bench.close().await;
    });
}

#[test]
fn cancelling_and_dropping_kill_what_runs() {
    test(async {
        for place in NATIVE_AND_LOCAL {
            let bench = ToolBench::new(place).await;
            let (canceller, cancelled) = Cancelled::pair();
            let call = Call { cancelled, ..bench.caller() };
            let args = json!({ "command": "echo here > mark; sleep 600" });
            let running = bench.toolbox.call("bash", args.clone(), &call);
            let watch = async {
                while !bench.path("mark").exists() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                canceller.cancel();
            };
            let (answer, ()) = tokio::join!(running, watch);
            assert_eq!(answer.unwrap_err().code, ErrorCode::Gone);
            std::fs::remove_file(bench.path("mark")).unwrap();
            let caller = bench.caller();
            tokio::select! {
                _ = bench.toolbox.call("bash", args, &caller) => unreachable!("it sleeps"),
                () = async {
                    while !bench.path("mark").exists() {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                } => {}
            }
            let jobs = bench.ok("bash", json!({ "action": "list" })).await;
            for job in jobs["jobs"].as_array().unwrap() {
                let status =
                    json!({ "action": "status", "job_id": job["jobId"], "wait_ms": 30_000 });
                assert_eq!(bench.ok("bash", status).await["state"], "ended", "{place:?}");
            }
            bench.close().await;
        }
    });
}

#[test]
fn every_execution_is_recorded_with_its_decision_wherever_it_runs() {
    test(async {
        for place in NATIVE_AND_LOCAL {
            let bench = ToolBench::new(place).await;
            let done = bench.ok("bash", json!({ "command": "true" })).await;
            let job = done["jobId"].as_str().unwrap().parse().unwrap();
            let job = bench.engine.journal().job(&job).unwrap().unwrap();
            let Event::Started { backend, boundary, without, .. } = &job.started.event else {
                unreachable!("a job starts with its start")
            };
            match place {
                Where::Native | Where::Landlock => assert_eq!(backend.as_str(), "native"),
                Where::Local => {
                    assert_eq!((backend.as_str(), boundary.name()), ("local", "none"));
                    assert!(!without.is_empty(), "the walls are given up by name");
                }
            }
            let decided = job.decided.expect("the decision is part of the record").event;
            assert!(
                matches!(decided, Event::Decided { allowed: true, tool, .. } if tool == "bash")
            );
            bench.close().await;
        }
    });
}

#[test]
fn concurrent_first_calls_share_one_sandbox_and_a_dead_one_is_replaced() {
    test(async {
        let bench = Arc::new(ToolBench::new(Where::Native).await);
        let call = |bench: &Arc<ToolBench>| {
            let bench = Arc::clone(bench);
            tokio::spawn(async move { bench.ok("bash", json!({ "command": "true" })).await })
        };
        let calls: Vec<_> = (0..5).map(|_| call(&bench)).collect();
        let mut ids = Vec::new();
        for call in calls {
            ids.push(call.await.unwrap()["sandboxSessionId"].as_str().unwrap().to_owned());
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
        bench.engine.destroy(&ids[0].parse().unwrap()).await.unwrap();
        let calls: Vec<_> = (0..5).map(|_| call(&bench)).collect();
        let mut notices = Vec::new();
        for call in calls {
            let done = call.await.unwrap();
            assert_ne!(done["sandboxSessionId"], ids[0]);
            notices.extend(done["notice"].as_str().map(str::to_owned));
        }
        // However many notice it at once, it is told once.
        assert!(notices.len() == 1 && notices[0].contains(&ids[0]), "{notices:?}");
        bench.toolbox.close().await;
        bench.refuses("bash", json!({ "command": "true" }), ErrorCode::Gone, "over").await;
    });
}

#[test]
fn arguments_are_refused_by_the_name_of_their_field() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        for (tool, args, names) in [
            ("bash", json!({ "comand": "x" }), "comand"),
            ("bash", json!({}), "command"),
            ("bash", json!({ "command": 1 }), "command"),
            ("bash", json!({ "action": "fly" }), "action"),
            ("bash", json!({ "command": "x", "working_directory": "../x" }), "working_directory"),
            ("read_file", json!({}), "path"),
            ("read_file", json!({ "path": "../../x" }), "path"),
            ("write_file", json!({ "path": "x" }), "content"),
            ("sandbox_create", json!({ "network": "everything" }), "network"),
            ("sandbox_destroy", json!({ "sandbox_id": "../x" }), "sandbox_id"),
        ] {
            bench.refuses(tool, args, ErrorCode::Invalid, names).await;
        }
        bench.refuses("rm", json!({}), ErrorCode::NotFound, "rm").await;
        let other = json!({ "command": "true", "sandbox_id": "abc" });
        bench.refuses("bash", other, ErrorCode::NotFound, "abc").await;
        bench.close().await;
    });
}

#[test]
fn without_a_sandbox_and_without_local_execution_calls_are_refused_with_the_remedy() {
    test(async {
        let bench = ToolBench::with(Where::Native, |options| options.bound = None).await;
        let error = bench.refused("bash", json!({ "command": "true" })).await;
        assert!(error.remedy.unwrap().contains("sandbox_create"));
        let secret = json!({ "labels": { "team": "a", "apiKey": "s3" } });
        bench.refuses("sandbox_create", secret, ErrorCode::Refused, "looks like a secret").await;
        let made = bench.ok("sandbox_create", json!({ "labels": { "team": "a" } })).await;
        assert_eq!(made["labels"], json!({ "team": "a" }));
        let id = made["sandboxId"].clone();
        let done = bench.ok("bash", json!({ "command": "echo hi", "sandbox_id": id })).await;
        assert_eq!(done["sandboxSessionId"], id);
        assert_eq!(bench.ok("sandbox_list", json!({})).await["sandboxes"][0]["sandboxId"], id);
        bench.ok("sandbox_destroy", json!({ "sandbox_id": id })).await;
        assert_eq!(bench.ok("sandbox_list", json!({})).await["sandboxes"], json!([]));
        bench.close().await;
    });
}
