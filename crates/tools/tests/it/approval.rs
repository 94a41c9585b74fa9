//! Whether it may happen, apart from where: rules, persons, silence, and the record of each.
use crate::common::{ALL_PLACES, ToolBench, Where, test};
use serde_json::{Value, json};
use stockade_core::ErrorCode;
use stockade_engine::Event;
use stockade_tools::{ApprovalConfig, Decision, ToolboxOptions};

fn rules(json: Value) -> impl FnOnce(&mut ToolboxOptions) {
    let config: ApprovalConfig = serde_json::from_value(json).unwrap();
    move |options| options.approval = config
}

fn decisions(bench: &ToolBench) -> Vec<(String, bool, bool, String)> {
    let decided = bench.events().into_iter().filter_map(|event| {
        let Event::Decided { tool, allowed, asked, rule, .. } = event else { return None };
        Some((tool, allowed, asked, rule))
    });
    decided.collect()
}

#[test]
fn local_execution_asks_a_person_and_walls_do_not() {
    test(async {
        let bench = ToolBench::with(Where::Local, rules(json!({}))).await;
        bench.ok("bash", json!({ "command": "true" })).await;
        bench.write("f", "x");
        bench.ok("read_file", json!({ "path": "f" })).await;
        let asked: Vec<_> = bench
            .whose
            .asked
            .lock()
            .unwrap()
            .iter()
            .map(|question| question.text.clone())
            .collect();
        assert_eq!(asked.len(), 2);
        assert!(asked[0].contains("`bash`") && asked[0].contains("true"), "{asked:?}");
        assert_eq!(decisions(&bench)[0], ("bash".into(), true, true, "default".into()));
        bench.close().await;
        let bench = ToolBench::new(Where::Native).await;
        bench.ok("bash", json!({ "command": "true" })).await;
        assert!(bench.whose.asked.lock().unwrap().is_empty());
        assert_eq!(decisions(&bench), [("bash".into(), true, false, "default".into())]);
        bench.close().await;
    });
}

#[test]
fn a_no_and_no_answer_in_time_stop_it_before_anything_happens() {
    test(async {
        let bench = ToolBench::with(Where::Local, rules(json!({ "askTimeout": "50ms" }))).await;
        for answer in [Some(Decision::No { because: "rather not".into() }), None] {
            *bench.whose.answer.lock().unwrap() = answer.clone();
            let names = if answer.is_some() { "rather not" } else { "no answer" };
            for (tool, args) in [
                ("bash", json!({ "command": "touch made" })),
                ("bash", json!({ "action": "start", "command": "touch made" })),
                ("write_file", json!({ "path": "made", "content": "" })),
                (
                    "apply_patch",
                    json!({ "patch": "*** Begin Patch\n*** Add File: made\n*** End Patch" }),
                ),
            ] {
                bench.refuses(tool, args, ErrorCode::Denied, names).await;
            }
        }
        assert!(!bench.path("made").exists());
        assert!(decisions(&bench).iter().all(|(_, allowed, asked, _)| !allowed && *asked));
        let started =
            bench.events().into_iter().any(|event| matches!(event, Event::Started { .. }));
        assert!(!started, "nothing was run");
        bench.close().await;
    });
}

#[test]
fn rules_look_at_programs_and_not_at_strings() {
    test(async {
        let config = json!({ "rules": [
            { "verdict": "deny", "name": "no touching", "match": { "programs": ["touch"] } },
            { "verdict": "allow", "match": { "programs": ["echo", "cat"] } },
        ]});
        let bench = ToolBench::with(Where::Local, rules(config)).await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "asked".into() });
        bench.ok("bash", json!({ "command": "echo 'touch x' | cat" })).await;
        for (line, names) in [
            ("touch x", "no touching"),
            ("echo a && /usr/bin/touch x", "no touching"),
            ("echo $(touch x)", "asked"),
            ("echo a > x", "asked"),
            ("sh -c 'touch x'", "asked"),
        ] {
            bench.refuses("bash", json!({ "command": line }), ErrorCode::Denied, names).await;
        }
        let chosen = json!({ "command": "echo a", "env": { "PATH": "." } });
        bench.refuses("bash", chosen, ErrorCode::Denied, "asked").await;
        assert!(!bench.path("x").exists());
        bench.close().await;
    });
}

#[test]
fn no_spelling_of_a_path_gets_past_a_rule_about_it() {
    test(async {
        let config = json!({ "rules": [
            { "verdict": "deny", "match": { "paths": ["private/**"] } },
            { "verdict": "allow" },
        ]});
        for place in ALL_PLACES {
            let bench = ToolBench::with(place, rules(config.clone())).await;
            bench.write("private/x", "hidden");
            let whole = bench.path("private/x").to_str().unwrap().to_owned();
            for path in
                ["private/x", "./private//x", "a/../private/x", "/workspace/private/x", &whole]
            {
                bench
                    .refuses("read_file", json!({ "path": path }), ErrorCode::Denied, "rule 1")
                    .await;
                let args = json!({ "paths": ["fine", path] });
                bench.refuses("artifacts", args, ErrorCode::Denied, "rule 1").await;
            }
            let patch =
                "*** Begin Patch\n*** Update File: fine\n*** Move to: private/y\n*** End Patch";
            bench
                .refuses("apply_patch", json!({ "patch": patch }), ErrorCode::Denied, "rule 1")
                .await;
            bench.close().await;
        }
    });
}

#[test]
fn a_binding_is_safe_to_store() {
    test(async {
        let bench = ToolBench::with(Where::Native, |options| {
            let spec = options.bound.as_mut().unwrap();
            spec.labels.insert("team".into(), "a".into());
            // Admitted: neither its name nor its form says so. Not stored all the same.
            spec.labels.insert("note".into(), "password: sesame".into());
            spec.env.insert("SECRET".parse().unwrap(), "sesame".into());
        })
        .await;
        assert_eq!(bench.toolbox.binding().await, None);
        bench.ok("bash", json!({ "command": "true" })).await;
        let binding = serde_json::to_value(bench.toolbox.binding().await.unwrap()).unwrap();
        assert_eq!(
            (&binding["provider"], &binding["labels"]),
            (&json!("native"), &json!({ "team": "a" }))
        );
        assert!(!binding.to_string().contains("sesame"), "{binding}");
        bench.close().await;
    });
}

#[test]
fn labels_that_look_like_secrets_are_refused_and_not_told() {
    test(async {
        let bench = ToolBench::with(Where::Native, |options| {
            let spec = options.bound.as_mut().unwrap();
            spec.labels.insert("API_TOKEN".into(), "sesame".into());
        })
        .await;
        let error = bench.refused("bash", json!({ "command": "true" })).await;
        assert_eq!(error.code, ErrorCode::Refused, "{error:?}");
        assert!(!format!("{error:?}").contains("sesame"), "{error:?}");
        assert_eq!(bench.toolbox.binding().await, None);
        bench.close().await;
    });
}

#[test]
fn asking_for_more_than_was_set_out_needs_consent() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "too much".into() });
        bench.ok("sandbox_create", json!({ "network": "loopback" })).await;
        let more = json!({ "limits": { "wallTime": "10m" } });
        bench.refuses("sandbox_create", more.clone(), ErrorCode::Denied, "too much").await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::Yes);
        bench.ok("sandbox_create", more).await;
        bench.close().await;
    });
}

#[test]
fn records_hold_neither_environment_nor_input_nor_content() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        let args = json!({ "command": "cat", "env": { "X": "sesame" }, "input": "sesame" });
        bench.ok("bash", args).await;
        bench.ok("write_file", json!({ "path": "f", "content": "sesame" })).await;
        let edit = json!({ "path": "f", "old_string": "sesame", "new_string": "sesame2" });
        bench.ok("edit_file", edit).await;
        let told = format!("{:?}", bench.events());
        assert!(!told.contains("sesame"), "{told}");
        bench.close().await;
    });
}

#[test]
fn whoever_is_asked_sees_what_it_comes_to_and_no_record_holds_it() {
    test(async {
        let bench = ToolBench::with(Where::Local, rules(json!({}))).await;
        bench.write("dir/f", "old\n");
        let line = json!({
            "command": "cat", "input": "sesame-input", "working_directory": "dir",
            "env": { "LD_PRELOAD": "sesame-variable" },
        });
        bench.ok("bash", line).await;
        let start = json!({ "action": "start", "command": "cat" });
        let job = bench.ok("bash", start).await["jobId"].clone();
        let write = json!({
            "action": "write", "job_id": job, "input": "sesame-written", "close_input": true,
        });
        bench.ok("bash", write).await;
        bench.ok("write_file", json!({ "path": "g", "content": "sesame-content" })).await;
        let edit = json!({ "path": "dir/f", "old_string": "old", "new_string": "sesame-new" });
        bench.ok("edit_file", edit).await;
        let patch = "*** Begin Patch\n*** Add File: h\n+sesame-patch\n*** End Patch";
        bench.ok("apply_patch", json!({ "patch": patch })).await;
        let asked = bench.whose.asked.lock().unwrap().clone();
        for (at, secrets) in [
            (0, &["dir", "LD_PRELOAD", "sesame-variable", "sesame-input"][..]),
            (2, &["sesame-written"]),
            (3, &["sesame-content"]),
            (4, &["sesame-new"]),
            (5, &["sesame-patch"]),
        ] {
            for secret in secrets {
                assert!(asked[at].text.contains(secret), "{secret}: {}", asked[at].text);
            }
        }
        let recorded = bench.events().into_iter().filter_map(|event| {
            let Event::Decided { facts, .. } = event else { return None };
            Some(facts)
        });
        let recorded = recorded.collect::<Vec<_>>().join("\n");
        assert!(recorded.contains("variable LD_PRELOAD (15 bytes)"), "{recorded}");
        assert!(!recorded.contains("sesame"), "{recorded}");
        bench.close().await;
    });
}

#[test]
fn a_sandbox_that_is_more_than_was_set_out_is_asked_about_in_words() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "asked".into() });
        let more =
            json!({ "network": { "egress": ["a.example:443"] }, "limits": { "memory": "4g" } });
        bench.refuses("sandbox_create", more, ErrorCode::Denied, "asked").await;
        let asked = bench.whose.asked.lock().unwrap()[0].text.clone();
        assert!(asked.contains("a.example:443") && asked.contains("memory"), "{asked}");
        assert!(!asked.contains("on this machine"), "{asked}");
        bench.close().await;
    });
}
