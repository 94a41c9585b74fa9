//! Sandboxes that go down from outside, the bound on how many an agent makes, and what is checked before
//! a person is asked.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ToolBench, Where, test};
use serde_json::{Value, json};
use stockade_backends::landlock::Landlock;
use stockade_backends::native::Native;
use stockade_core::{
    Backend, ErrorCode, HostPath, Limits, Network, SandboxId, SandboxSpec, Workspace,
};
use stockade_engine::{Leases, StateDir};
use stockade_tools::{ApprovalConfig, LocalOptions, SandboxQuota};

/// Takes the walls away without a handle, as `stockade kill` does.
async fn kill_from_outside(place: Where, id: &SandboxId) {
    let backend: Arc<dyn Backend> = match place {
        Where::Native => Arc::new(Native::new()),
        Where::Landlock => Arc::new(Landlock::new()),
        Where::Local => Arc::new(stockade_backends::local::Local::default()),
    };
    backend.destroy(id).await.unwrap();
}

async fn id(bench: &ToolBench) -> SandboxId {
    bench.toolbox.binding().await.unwrap().sandbox_id.parse().unwrap()
}

/// Waits until the lease is given back without anybody calling a tool.
async fn let_go(bench: &ToolBench, id: &SandboxId) {
    while bench.engine.list().await.unwrap().leases.iter().any(|lease| lease.body.id == *id) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_lost_sandbox_is_told_once_and_replaced() {
    for place in [Where::Native, Where::Landlock] {
        test(async move {
            let bench = ToolBench::new(place).await;
            bench.ok("bash", json!({ "command": "echo x > kept; echo y > /tmp/gone" })).await;
            let started = json!({ "action": "start", "command": "sleep 98765" });
            let job = bench.ok("bash", started).await["jobId"].clone();
            let old = id(&bench).await;
            kill_from_outside(place, &old).await;
            let_go(&bench, &old).await;
            let ran = bench.ok("bash", json!({ "command": "cat kept; cat /tmp/gone" })).await;
            let notice = ran["notice"].as_str().unwrap();
            for part in [old.as_str(), "was lost (", "outside the workspace", "new one"] {
                assert!(notice.contains(part), "{part}: {notice}");
            }
            assert_eq!(ran["stdout"], "x\n");
            assert_ne!(ran["exitCode"], 0);
            assert_ne!(id(&bench).await, old);
            let again = bench.ok("bash", json!({ "command": "true" })).await;
            assert_eq!(again["notice"], Value::Null);
            let gone = json!({ "action": "status", "job_id": job });
            bench.refuses("bash", gone, ErrorCode::NotFound, "no job").await;
            bench.close().await;
        });
    }
}

/// Ends a sandbox on purpose, as `stockade kill` does.
async fn kill_on_purpose(bench: &ToolBench, place: Where, id: &SandboxId) {
    let leases = Leases::open(&StateDir::open(bench.state()).unwrap()).unwrap();
    let request = leases.request_kill(id).unwrap();
    kill_from_outside(place, id).await;
    let_go(bench, id).await;
    drop(request);
}

#[test]
fn a_sandbox_that_another_process_ends_on_purpose_is_not_told_as_lost() {
    for (place, busy) in [(Where::Native, false), (Where::Native, true), (Where::Landlock, true)] {
        test(async move {
            let bench = ToolBench::new(place).await;
            bench.ok("bash", json!({ "command": "true" })).await;
            if busy {
                let started = json!({ "action": "start", "command": "sleep 98765" });
                bench.ok("bash", started).await;
            }
            let old = id(&bench).await;
            kill_on_purpose(&bench, place, &old).await;
            let ran = bench.ok("bash", json!({ "command": "true" })).await;
            let notice = ran["notice"].as_str().unwrap();
            for part in [old.as_str(), "ended on purpose by another process", "new one"] {
                assert!(notice.contains(part), "{part}: {notice}");
            }
            assert!(!notice.contains("was lost ("), "{notice}");
            bench.close().await;
        });
    }
}

#[test]
fn a_named_sandbox_that_another_process_ends_on_purpose_says_so() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        let made = bench.ok("sandbox_create", json!({})).await["sandboxId"].clone();
        let id: SandboxId = made.as_str().unwrap().parse().unwrap();
        kill_on_purpose(&bench, Where::Native, &id).await;
        let use_it = json!({ "command": "true", "sandbox_id": id });
        bench.refuses("bash", use_it, ErrorCode::Gone, "ended on purpose").await;
        bench.close().await;
    });
}

#[test]
fn a_lost_sandbox_that_was_named_says_so_and_can_be_destroyed() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        let mut made = Vec::new();
        for _ in 0..2 {
            let one = bench.ok("sandbox_create", json!({})).await;
            made.push(one["sandboxId"].as_str().unwrap().parse::<SandboxId>().unwrap());
        }
        for id in &made {
            kill_from_outside(Where::Native, id).await;
            let_go(&bench, id).await;
        }
        let use_it = json!({ "command": "true", "sandbox_id": made[0] });
        bench.refuses("bash", use_it, ErrorCode::Gone, "was lost (").await;
        bench.ok("sandbox_destroy", json!({ "sandbox_id": made[1] })).await;
        bench.close().await;
    });
}

#[test]
fn an_agent_makes_no_more_sandboxes_than_its_quota() {
    test(async {
        let bench =
            ToolBench::with(Where::Native, |options| options.quota = SandboxQuota::new(2)).await;
        // The bound one is the user's, and does not count.
        bench.ok("bash", json!({ "command": "true" })).await;
        let one = bench.ok("sandbox_create", json!({})).await["sandboxId"].clone();
        let two = bench.ok("sandbox_create", json!({})).await["sandboxId"].clone();
        bench.refuses("sandbox_create", json!({}), ErrorCode::QuotaExceeded, "2 sandboxes").await;
        bench.ok("sandbox_destroy", json!({ "sandbox_id": one })).await;
        bench.ok("sandbox_create", json!({})).await;
        // One that was lost makes room too.
        let two: SandboxId = two.as_str().unwrap().parse().unwrap();
        kill_from_outside(Where::Native, &two).await;
        let_go(&bench, &two).await;
        bench.ok("sandbox_create", json!({})).await;
        bench.close().await;
    });
}

#[test]
fn the_default_quota_is_finite() {
    test(async {
        let bench = ToolBench::new(Where::Landlock).await;
        for _ in 0..SandboxQuota::DEFAULT_SANDBOXES {
            bench.ok("sandbox_create", json!({})).await;
        }
        bench.refuses("sandbox_create", json!({}), ErrorCode::QuotaExceeded, "as many").await;
        bench.close().await;
    });
}

#[test]
fn a_path_that_would_be_refused_is_no_question() {
    test(async {
        let ask = |options: &mut stockade_tools::ToolboxOptions| {
            options.approval = ApprovalConfig::default();
        };
        let bench = ToolBench::with(Where::Local, ask).await;
        symlink("/etc", bench.path("out")).unwrap();
        for (tool, args) in [
            ("read_file", json!({ "path": "/etc/hostname" })),
            ("read_file", json!({ "path": "out/hostname" })),
            ("write_file", json!({ "path": "/etc/x", "content": "x" })),
            ("edit_file", json!({ "path": "out/hostname", "old_string": "a", "new_string": "b" })),
            ("list_dir", json!({ "path": "/etc" })),
            ("glob", json!({ "pattern": "*", "path": "/etc" })),
            ("grep", json!({ "pattern": "x", "path": "out" })),
            ("bash", json!({ "command": "true", "working_directory": "/etc" })),
        ] {
            bench.refuses(tool, args, ErrorCode::PathEscapes, "").await;
            let asked = bench.whose.asked.lock().unwrap().len();
            assert_eq!(asked, 0, "{tool} was asked about");
        }
        let found = bench.ok("artifacts", json!({ "paths": ["/etc/hostname", "out"] })).await;
        assert!(found["artifacts"][0]["problem"].is_string(), "{found}");
        assert_eq!(bench.whose.asked.lock().unwrap().len(), 0, "artifacts were asked about");
        bench.ok("bash", json!({ "command": "true" })).await;
        assert_eq!(bench.whose.asked.lock().unwrap().len(), 1);
        bench.close().await;
    });
}

#[test]
fn a_job_that_was_stopped_says_so() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        let started = json!({ "action": "start", "command": "sleep 98765" });
        let job = bench.ok("bash", started).await["jobId"].clone();
        let stopped = bench.ok("bash", json!({ "action": "stop", "job_id": job })).await;
        assert_eq!(stopped["endedBy"], "stopped");
        assert!(stopped["note"].as_str().unwrap().contains("was stopped"), "{stopped}");
        let ended = bench.ok("bash", json!({ "command": "exit 3" })).await;
        assert_eq!((&ended["endedBy"], &ended["exitCode"]), (&json!("exit"), &json!(3)));
        bench.close().await;
    });
}

#[test]
fn local_execution_honours_what_is_said_or_refuses_it_by_name() {
    test(async {
        let bench = ToolBench::new(Where::Local).await;
        let host: HostPath = bench.path("").try_into().unwrap();
        let plain = SandboxSpec { workspace: Workspace::Local(host), ..Default::default() };
        let mut good = plain.clone();
        good.tenant = "acme".parse().unwrap();
        good.labels.insert("team".into(), "a".into());
        good.limits.wall_time = Some(stockade_core::Span::secs(5));
        LocalOptions::new(good).await.unwrap();
        let limits = Limits { memory: Some(stockade_core::Bytes::mib(64)), ..Limits::default() };
        let loopback = SandboxSpec { network: Network::Loopback, ..plain.clone() };
        for (spec, names) in [
            (SandboxSpec { read_only: true, ..plain.clone() }, "read-only-workspace"),
            (SandboxSpec { limits, ..plain.clone() }, "memory-limit"),
            (loopback, "loopback-network"),
            (SandboxSpec { user: Some("1:1".parse().unwrap()), ..plain.clone() }, "chosen-user"),
            (SandboxSpec { workspace: Workspace::Ephemeral, ..plain.clone() }, "directory"),
        ] {
            let error = LocalOptions::new(spec).await.unwrap_err();
            assert!(error.message().contains(names), "{names}: {error}");
        }
        bench.close().await;
    });
}
