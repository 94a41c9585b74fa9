//! Files through the tools: read, written, edited, patched, listed, searched, collected; in a sandbox
//! and locally with the same results.
use std::os::unix::fs::PermissionsExt;

use crate::common::{ALL_PLACES, ToolBench, Where, test};
use serde_json::{Value, json};
use stockade_core::ErrorCode;

fn mode(bench: &ToolBench, name: &str) -> u32 {
    std::fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o7777
}

fn names(bench: &ToolBench, dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(bench.path(dir)).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_read_by_lines_with_numbers() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("f", "one\ntwo\nthree\n");
            let answer = bench.call("read_file", json!({ "path": "f" })).await.unwrap();
            assert_eq!(answer.text, "     1\tone\n     2\ttwo\n     3\tthree\n");
            let part = json!({ "path": "/workspace/f", "offset": 2, "limit": 1 });
            let part = bench.ok("read_file", part).await;
            assert_eq!((&part["content"], &part["nextOffset"]), (&json!("two\n"), &json!(3)));
            bench.write("bin", b"\x89PNG\r\n\x1a\n\0\0");
            let answer = bench.ok("read_file", json!({ "path": "bin" })).await;
            assert_eq!((&answer["binary"], &answer["mime"]), (&json!(true), &json!("image/png")));
            bench
                .refuses("read_file", json!({ "path": "none" }), ErrorCode::NotFound, "none")
                .await;
            bench.refuses("read_file", json!({ "path": "." }), ErrorCode::Invalid, "`.`").await;
            bench.close().await;
        }
    });
}

#[test]
fn a_write_replaces_in_one_step_and_keeps_the_mode() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            let new = json!({ "path": "a/b/new", "content": "text" });
            assert_eq!(bench.ok("write_file", new).await["created"], true);
            assert_eq!(bench.read("a/b/new"), "text");
            bench.write("script", "old");
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(bench.path("script"), executable).unwrap();
            bench.ok("write_file", json!({ "path": "script", "content": "new" })).await;
            assert_eq!((bench.read("script").as_str(), mode(&bench, "script")), ("new", 0o755));
            assert_eq!(names(&bench, "."), ["a", "script"], "nothing temporary is left");
            let big = "x".repeat(3 << 20);
            bench.ok("write_file", json!({ "path": "big", "content": big })).await;
            assert_eq!(bench.read("big"), big);
            let dir = json!({ "path": "a", "content": "" });
            bench.refuses("write_file", dir, ErrorCode::Invalid, "`a` is a directory").await;
            let below = json!({ "path": "script/x", "content": "" });
            bench.refuses("write_file", below, ErrorCode::Invalid, "script/x").await;
            bench.close().await;
        }
    });
}

#[test]
fn an_edit_is_exact_or_refused() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("f", "a\r\nb\r\na");
            let twice = json!({ "path": "f", "old_string": "a", "new_string": "x" });
            bench.refuses("edit_file", twice, ErrorCode::Invalid, "2 times, on lines 1, 3").await;
            let once = json!({ "path": "f", "old_string": "a\nb", "new_string": "x\ny" });
            bench.ok("edit_file", once).await;
            assert_eq!(bench.read("f"), "x\r\ny\r\na");
            let absent = json!({ "path": "none", "old_string": "a", "new_string": "x" });
            bench.refuses("edit_file", absent, ErrorCode::NotFound, "none").await;
            bench.close().await;
        }
    });
}

#[test]
fn a_patch_changes_everything_or_nothing() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("old", "one\ntwo\n");
            bench.write("gone", "bye\n");
            bench.write("moving", "x\n");
            let patch = "*** Begin Patch\n*** Add File: new/deep/f\n+hello\n*** Update File: old\n@@\n-two\n+TWO\n\
                         *** Delete File: gone\n*** Update File: moving\n*** Move to: moved\n*** End Patch\n";
            bench.ok("apply_patch", json!({ "patch": patch })).await;
            assert_eq!(bench.read("new/deep/f"), "hello\n");
            assert_eq!(bench.read("old"), "one\nTWO\n");
            assert_eq!(bench.read("moved"), "x\n");
            assert_eq!(names(&bench, "."), ["moved", "new", "old"]);
            let half = "--- a/old\n+++ b/old\n@@ -1 +1 @@\n-one\n+ONE\n--- a/moved\n+++ b/moved\n@@ -1 +1 @@\n-y\n+z\n";
            bench
                .refuses("apply_patch", json!({ "patch": half }), ErrorCode::Invalid, "`moved`")
                .await;
            assert_eq!(bench.read("old"), "one\nTWO\n", "nothing was changed");
            bench.close().await;
        }
    });
}

#[test]
fn what_was_written_before_a_failure_is_put_back() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("a", "a\n");
            bench.write("file", "f\n");
            // The last file cannot be written: a file stands where its directory would be.
            let patch = "*** Begin Patch\n*** Add File: fresh/dir/x\n+x\n*** Update File: a\n@@\n-a\n+b\n\
                         *** Add File: file/below\n+x\n*** End Patch\n";
            let error = bench.refused("apply_patch", json!({ "patch": patch })).await;
            assert!(error.message.contains("file/below"), "{error}");
            assert_eq!(bench.read("a"), "a\n");
            assert_eq!(names(&bench, "."), ["a", "file"], "{place:?}: {error}");
            bench.close().await;
        }
    });
}

#[test]
fn directories_are_listed_in_bounds() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("d/e/f", "12345");
            let flat = bench.call("list_dir", json!({})).await.unwrap();
            assert_eq!(flat.text, "d/\n");
            let deep = bench.call("list_dir", json!({ "depth": 3 })).await.unwrap();
            assert_eq!(deep.text, "d/\nd/e/\nd/e/f\t5\n");
            for n in 0..50 {
                bench.write(&format!("many/{n:02}"), "");
            }
            let some = bench.ok("list_dir", json!({ "path": "many", "limit": 10 })).await;
            assert_eq!(some["entries"].as_array().unwrap().len(), 10);
            assert_eq!(
                (&some["truncated"], &some["entries"][9]["path"]),
                (&json!(true), &json!("09"))
            );
            let mut seen = Vec::new();
            let mut offset = json!(0);
            while offset.is_u64() {
                let args = json!({ "depth": 2, "limit": 7, "offset": offset });
                let page = bench.ok("list_dir", args).await;
                seen.extend(page["entries"].as_array().unwrap().iter().cloned());
                offset = page["nextOffset"].clone();
            }
            let whole = bench.ok("list_dir", json!({ "depth": 2 })).await;
            assert_eq!((Value::from(seen), json!(53)), (whole["entries"].clone(), json!(53)));
            bench
                .refuses("list_dir", json!({ "path": "d/e/f" }), ErrorCode::Invalid, "d/e/f")
                .await;
            bench.close().await;
        }
    });
}

#[test]
fn files_are_found_by_name_and_ignore_files_are_honoured() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            for name in
                ["a.rs", "src/b.rs", "src/deep/c.rs", "target/d.rs", ".hidden/e.rs", "f.txt"]
            {
                bench.write(name, "");
            }
            bench.write(".gitignore", "target/\n/src/deep\n");
            let found = |args| async { bench.ok("glob", args).await["files"].clone() };
            assert_eq!(found(json!({ "pattern": "**/*.rs" })).await, json!(["a.rs", "src/b.rs"]));
            assert_eq!(found(json!({ "pattern": "*.rs" })).await, json!(["a.rs"]));
            let all = json!({ "pattern": "**/*.rs", "no_ignore": true, "hidden": true });
            let all = found(all).await;
            assert_eq!(
                all,
                json!([".hidden/e.rs", "a.rs", "src/b.rs", "src/deep/c.rs", "target/d.rs"])
            );
            let below = json!({ "pattern": "**/*.rs", "path": "src" });
            assert_eq!(found(below).await, json!(["b.rs"]), "rules from above hold below");
            let few = bench.ok("glob", json!({ "pattern": "**", "limit": 1 })).await;
            assert_eq!((&few["files"], &few["truncated"]), (&json!(["a.rs"]), &json!(true)));
            bench.refuses("glob", json!({ "pattern": "a[" }), ErrorCode::Invalid, "glob").await;
            let none = json!({ "pattern": "*", "path": "none" });
            bench.refuses("glob", none, ErrorCode::NotFound, "none").await;
            bench.close().await;
        }
    });
}

#[test]
fn text_is_found_line_by_line() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("a.rs", "fn one() {}\nlet x = 1;\nfn two() {}\n");
            bench.write("b.txt", "FN three\n");
            bench.write("bin", b"fn \0 four\n");
            bench.write("long", format!("{}fn", "x".repeat(100_000)));
            let answer = bench.call("grep", json!({ "pattern": "^fn" })).await.unwrap();
            assert_eq!(answer.text, "a.rs:1:fn one() {}\na.rs:3:fn two() {}\n", "{place:?}");
            let around = json!({ "pattern": "x = 1", "context": 1 });
            let answer = bench.call("grep", around).await.unwrap();
            assert_eq!(answer.text, "a.rs-1-fn one() {}\na.rs:2:let x = 1;\na.rs-3-fn two() {}\n");
            let files = json!({ "pattern": "fn", "ignore_case": true, "files_only": true });
            assert_eq!(bench.ok("grep", files).await["files"], json!(["a.rs", "b.txt", "long"]));
            let only = json!({ "pattern": "fn", "glob": "*.rs", "files_only": true });
            assert_eq!(bench.ok("grep", only).await["files"], json!(["a.rs"]));
            let plain = json!({ "pattern": "one()", "fixed": true, "path": "a.rs" });
            assert_eq!(bench.ok("grep", plain).await["matches"][0]["line"], 1);
            let few = bench.ok("grep", json!({ "pattern": "fn", "limit": 1 })).await;
            assert_eq!(
                (few["matches"].as_array().unwrap().len(), &few["truncated"]),
                (1, &json!(true))
            );
            let long = bench.ok("grep", json!({ "pattern": "xxfn" })).await;
            assert!(long["matches"][0]["text"].as_str().unwrap().len() < 1000);
            bench.refuses("grep", json!({ "pattern": "(" }), ErrorCode::Invalid, "pattern").await;
            bench.close().await;
        }
    });
}

#[test]
fn artifacts_are_typed_and_bounded() {
    test(async {
        for place in ALL_PLACES {
            let bench = ToolBench::new(place).await;
            bench.write("a.json", "{}");
            bench.write("b.png", b"\x89PNG\r\n\x1a\nrest");
            bench.write("c", b"\xff\0");
            bench.write("large", vec![b'x'; 3 << 20]);
            let paths = json!({ "paths": ["a.json", "b.png", "c", "large", "none"] });
            let answer = bench.call("artifacts", paths).await.unwrap();
            let found = &answer.structured["artifacts"];
            assert_eq!(
                (&found[0]["mime"], &found[0]["content"]),
                (&json!("application/json"), &json!("{}"))
            );
            assert_eq!((&found[1]["picture"], &found[1]["content"]), (&json!(0), &json!(null)));
            assert_eq!(answer.images[0].bytes, b"\x89PNG\r\n\x1a\nrest");
            assert_eq!(
                (&found[2]["encoding"], &found[2]["content"]),
                (&json!("base64"), &json!("/wA="))
            );
            assert!(found[3]["problem"].as_str().unwrap().contains("large"), "{found}");
            assert!(found[4]["problem"].as_str().unwrap().contains("none"), "{found}");
            bench.close().await;
        }
    });
}

#[test]
fn the_sandboxs_own_tree_is_reached_by_absolute_paths_and_the_hosts_is_not() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        bench.ok("write_file", json!({ "path": "/tmp/x", "content": "in" })).await;
        let done = bench.ok("bash", json!({ "command": "cat /tmp/x" })).await;
        assert_eq!(done["stdout"], "in");
        assert_eq!(
            bench.ok("grep", json!({ "pattern": "in", "path": "/tmp/x" })).await["matches"][0]["line"],
            1
        );
        bench.close().await;
        let bench = ToolBench::new(Where::Local).await;
        for tool in ["read_file", "list_dir"] {
            bench.refuses(tool, json!({ "path": "/etc" }), ErrorCode::PathEscapes, "/etc").await;
        }
        let search = json!({ "pattern": "root", "path": "/etc/passwd" });
        bench.refuses("grep", search, ErrorCode::PathEscapes, "/etc/passwd").await;
        bench.write("f", "x");
        let whole = bench.path("f").to_str().unwrap().to_owned();
        assert_eq!(bench.ok("read_file", json!({ "path": whole })).await["content"], "x");
        bench.close().await;
    });
}
