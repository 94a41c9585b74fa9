//! A workspace that was made to do harm, through every tool, in a sandbox and locally: nothing outside
//! is read or written, nothing hangs, and errors name the path.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{ALL_PLACES, ToolBench, Where, test};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use serde_json::{Value, json};
use stockade_core::ErrorCode;

const OUTSIDE_SECRET: &str = "the-secret-outside";

/// Builds the workspace. What lies outside of it holds the secret.
async fn hostile(place: Where) -> ToolBench {
    let bench = ToolBench::new(place).await;
    std::fs::create_dir(bench.outside("out")).unwrap();
    std::fs::write(bench.outside("out/secret"), OUTSIDE_SECRET).unwrap();
    bench.write("dir/inner", "inner\n");
    let link = |target: &str, name: &str| symlink(target, bench.path(name)).unwrap();
    link("/etc", "etc");
    link("/etc/passwd", "passwd");
    link("..", "up");
    link("../out", "out");
    link("../out/secret", "leak");
    link("dir/../../out", "around");
    link("loop", "loop");
    link(".", "self");
    link("/proc/self/root", "magic");
    link("dir/inner", "fine");
    bench.write("new\nline", "text\n");
    bench.write("-rf", "text\n");
    bench.write(" ", "text\n");
    bench.write("File", "upper\n");
    bench.write("file", "lower\n");
    std::fs::write(bench.path("").join(OsStr::from_bytes(b"bad\xff")), "text\n").unwrap();
    std::fs::File::create(bench.path("huge")).unwrap().set_len(1 << 40).unwrap();
    let anyone = Mode::from_raw_mode(0o666);
    mknodat(CWD, bench.path("pipe"), FileType::Fifo, anyone, 0).unwrap();
    std::fs::hard_link(bench.outside("out/secret"), bench.path("hard")).unwrap();
    bench
}

/// Paths that lead out, and what they lead to.
const ESCAPING_PATHS: [&str; 8] = [
    "etc/passwd",
    "passwd",
    "up/out/secret",
    "out/secret",
    "leak",
    "around/secret",
    "self/self/leak",
    "magic/etc/passwd",
];

/// Fails unless the call is refused, naming the path, and unless the secret stays where it is.
async fn keeps_out(bench: &ToolBench, tool: &str, args: Value, path: &str) {
    let error = bench.refused(tool, args).await;
    let fits = [ErrorCode::PathEscapes, ErrorCode::Invalid].contains(&error.code);
    assert!(fits, "{tool} {path}: {error:?}");
    assert!(error.message.contains(path), "{tool} {path}: {error}");
    assert!(!error.message.contains(OUTSIDE_SECRET), "{tool} {path}: {error}");
}

fn assert_untouched(bench: &ToolBench) {
    let out = std::fs::read_dir(bench.outside("out")).unwrap().count();
    assert_eq!(out, 1, "something was made outside");
    assert_eq!(std::fs::read_to_string(bench.outside("out/secret")).unwrap(), OUTSIDE_SECRET);
}

#[test]
fn no_path_leads_a_tool_outside() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            for path in ESCAPING_PATHS {
                keeps_out(&bench, "read_file", json!({ "path": path }), path).await;
                keeps_out(&bench, "write_file", json!({ "path": path, "content": "x" }), path)
                    .await;
                let edit = json!({ "path": path, "old_string": "secret", "new_string": "x" });
                keeps_out(&bench, "edit_file", edit, path).await;
                keeps_out(&bench, "grep", json!({ "pattern": "secret", "path": path }), path).await;
                let patch = format!(
                    "*** Begin Patch\n*** Update File: {path}\n@@\n-{OUTSIDE_SECRET}\n+x\n*** End Patch"
                );
                keeps_out(&bench, "apply_patch", json!({ "patch": patch }), path).await;
                let delete = format!("*** Begin Patch\n*** Delete File: {path}\n*** End Patch");
                keeps_out(&bench, "apply_patch", json!({ "patch": delete }), path).await;
                let found = bench.ok("artifacts", json!({ "paths": [path] })).await;
                let problem = found["artifacts"][0]["problem"].as_str();
                assert!(problem.is_some_and(|problem| problem.contains(path)), "{place:?} {found}");
            }
            assert_untouched(&bench);
            bench.close().await;
        }
    });
}

#[test]
fn no_directory_leads_a_tool_outside() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            for path in ["etc", "up", "out", "around", "magic", "self/out"] {
                keeps_out(&bench, "list_dir", json!({ "path": path }), path).await;
                keeps_out(&bench, "glob", json!({ "pattern": "*", "path": path }), path).await;
                keeps_out(&bench, "grep", json!({ "pattern": "x", "path": path }), path).await;
                let new = format!("{path}/new");
                keeps_out(&bench, "write_file", json!({ "path": new, "content": "x" }), &new).await;
                let add = format!("*** Begin Patch\n*** Add File: {new}\n+x\n*** End Patch");
                keeps_out(&bench, "apply_patch", json!({ "patch": add }), &new).await;
                let away = format!(
                    "*** Begin Patch\n*** Update File: file\n*** Move to: {new}\n*** End Patch"
                );
                keeps_out(&bench, "apply_patch", json!({ "patch": away }), &new).await;
            }
            assert_eq!(bench.read("file"), "lower\n");
            assert_untouched(&bench);
            bench.close().await;
        }
    });
}

#[test]
fn searches_and_listings_of_everything_stay_inside_and_end() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            let everything = json!({ "no_ignore": true, "hidden": true, "limit": 5000 });
            let with = |more: Value| {
                let mut args = everything.clone();
                args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                args
            };
            // The hard link is a file of the workspace; what the links lead to is not.
            let hits = bench
                .ok("grep", with(json!({ "pattern": OUTSIDE_SECRET, "files_only": true })))
                .await;
            assert_eq!(hits["files"], json!(["hard"]), "{place:?}");
            let hits =
                bench.ok("grep", with(json!({ "pattern": "root:", "files_only": true }))).await;
            assert_eq!(hits["files"], json!([]));
            let hits =
                bench.ok("grep", with(json!({ "pattern": "text", "files_only": true }))).await;
            assert_eq!(hits["files"], json!([" ", "-rf", "bad\u{fffd}", "new\nline"]));
            let found = bench.ok("glob", with(json!({ "pattern": "**" }))).await;
            let found = found["files"].as_array().unwrap();
            assert!(found.contains(&json!("huge")) && found.contains(&json!("pipe")), "{found:?}");
            assert!(
                !found.iter().any(|path| path.as_str().unwrap().starts_with("etc/")),
                "{found:?}"
            );
            let listed = bench.ok("list_dir", json!({ "depth": 32, "limit": 5000 })).await;
            let listed = listed["entries"].as_array().unwrap();
            assert_eq!(listed.len(), 21, "{listed:?}");
            bench.close().await;
        }
    });
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            for path in ["pipe", "dir", "loop"] {
                keeps_out(&bench, "write_file", json!({ "path": path, "content": "x" }), path)
                    .await;
                let edit = json!({ "path": path, "old_string": "a", "new_string": "x" });
                keeps_out(&bench, "edit_file", edit, path).await;
                keeps_out(&bench, "read_file", json!({ "path": path }), path).await;
                let patch = format!("*** Begin Patch\n*** Delete File: {path}\n*** End Patch");
                keeps_out(&bench, "apply_patch", json!({ "patch": patch }), path).await;
            }
            keeps_out(&bench, "grep", json!({ "pattern": "x", "path": "pipe" }), "pipe").await;
            let found = bench.ok("artifacts", json!({ "paths": ["pipe", "dir", "huge"] })).await;
            for artifact in found["artifacts"].as_array().unwrap() {
                assert!(artifact["problem"].is_string(), "{artifact}");
            }
            bench.close().await;
        }
    });
}

#[test]
fn a_terabyte_of_nothing_is_described_searched_and_left_alone() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            let read = bench.ok("read_file", json!({ "path": "huge" })).await;
            assert_eq!((&read["binary"], &read["size"]), (&json!(true), &json!(1u64 << 40)));
            let grep = bench.ok("grep", json!({ "pattern": "x", "path": "huge" })).await;
            assert_eq!(grep["matches"], json!([]));
            let edit = json!({ "path": "huge", "old_string": "a", "new_string": "x" });
            bench.refuses("edit_file", edit, ErrorCode::TooLarge, "huge").await;
            bench.close().await;
        }
    });
}

#[test]
fn a_hard_link_is_replaced_and_not_written_through() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            let edit =
                json!({ "path": "hard", "old_string": OUTSIDE_SECRET, "new_string": "mine" });
            bench.ok("edit_file", edit).await;
            assert_eq!(bench.read("hard"), "mine");
            assert_untouched(&bench);
            bench.close().await;
        }
    });
}

#[test]
fn strange_names_are_names_like_any_other() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            for path in ["new\nline", "-rf", " ", "fine"] {
                assert!(
                    bench.ok("read_file", json!({ "path": path })).await["content"].is_string()
                );
                bench.ok("grep", json!({ "pattern": "t", "path": path })).await;
            }
            let answer = bench.call("list_dir", json!({})).await.unwrap();
            assert!(answer.text.contains("new\\nline\t5\n"), "{}", answer.text);
            bench.ok("write_file", json!({ "path": "file", "content": "changed" })).await;
            assert_eq!(
                (bench.read("File").as_str(), bench.read("file").as_str()),
                ("upper\n", "changed")
            );
            let link = json!({ "path": "fine", "content": "x" });
            bench.refuses("write_file", link, ErrorCode::Invalid, "symbolic link").await;
            bench.close().await;
        }
    });
}

/// In memory where there is room for a million names, which is several times as fast.
fn fast() -> PathBuf {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(shm) if shm.f_favail > 1_200_000 => "/dev/shm".into(),
        Ok(_) | Err(_) => std::env::temp_dir(),
    }
}

#[test]
fn a_directory_of_a_million_entries_is_refused_or_cut() {
    test(async {
        let bench = ToolBench::on(&fast(), Where::Local, |_| {}).await;
        std::fs::create_dir(bench.path("big")).unwrap();
        // Links to a few files: an inode of its own for each would take longer than the test.
        for chunk in 0..20 {
            let seed = bench.path(&format!("seed{chunk}"));
            std::fs::write(&seed, "").unwrap();
            for n in 0..50_000 {
                std::fs::hard_link(&seed, bench.path(&format!("big/{chunk}-{n}"))).unwrap();
            }
        }
        let error = bench.refused("list_dir", json!({ "path": "big" })).await;
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert!(error.message.contains("big"), "{error}");
        assert!(error.remedy.as_ref().unwrap().contains("`glob`, such as `big/a*`"), "{error}");
        let found = bench.ok("glob", json!({ "pattern": "big/*", "limit": 10 })).await;
        assert_eq!(
            (found["files"].as_array().unwrap().len(), &found["truncated"]),
            (10, &json!(true))
        );
        let found = bench.ok("glob", json!({ "pattern": "big/7-123*" })).await;
        assert_eq!(found["files"].as_array().unwrap().len(), 111);
        bench.close().await;
    });
}

/// Swaps a directory of the workspace for a link to the outside and back, as fast as it can.
fn swap(bench: &ToolBench, over: &Arc<AtomicBool>) -> std::thread::JoinHandle<u32> {
    let (dir, link) = (bench.path("swap"), bench.path("swap-link"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("secret"), "harmless").unwrap();
    symlink("../out", &link).unwrap();
    let over = Arc::clone(over);
    std::thread::spawn(move || {
        let mut rounds = 0;
        while !over.load(Ordering::Relaxed) {
            // In one step, so that there is always one or the other.
            renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            rounds += 1;
        }
        rounds
    })
}

#[test]
fn links_that_are_swapped_in_while_tools_run_lead_nowhere() {
    test(async {
        for place in ALL_PLACES {
            let bench = hostile(place).await;
            let over = Arc::new(AtomicBool::new(false));
            let swapping = swap(&bench, &over);
            for round in 0..60 {
                for (tool, args) in [
                    ("read_file", json!({ "path": "swap/secret" })),
                    ("artifacts", json!({ "paths": ["swap/secret"] })),
                    ("grep", json!({ "pattern": "secret|harmless", "path": "swap" })),
                    ("list_dir", json!({ "path": "swap" })),
                ] {
                    // Refused or not, what comes back is never from outside.
                    if let Ok(answer) = bench.call(tool, args).await {
                        let told = format!("{}{}", answer.text, answer.structured);
                        assert!(!told.contains(OUTSIDE_SECRET), "{place:?} {tool}: {told}");
                    }
                }
                let _ = bench
                    .call("write_file", json!({ "path": format!("swap/w{round}"), "content": "w" }))
                    .await;
                let patch =
                    format!("*** Begin Patch\n*** Add File: swap/p{round}/x\n+p\n*** End Patch");
                let _ = bench.call("apply_patch", json!({ "patch": patch })).await;
                let edit = json!({ "path": "swap/secret", "old_string": "harmless", "new_string": "harmless" });
                let _ = bench.call("edit_file", edit).await;
            }
            over.store(true, Ordering::Relaxed);
            assert!(swapping.join().unwrap() > 100, "it swapped all the while");
            assert_untouched(&bench);
            bench.close().await;
        }
    });
}

#[test]
fn an_edit_that_no_memory_could_hold_is_refused() {
    test(async {
        let bench = ToolBench::new(Where::Local).await;
        bench.write("many", "a".repeat(1 << 20));
        let edit = json!({
            "path": "many", "old_string": "a", "new_string": "b".repeat(1 << 20), "replace_all": true,
        });
        bench.refuses("edit_file", edit, ErrorCode::TooLarge, "many").await;
        assert_eq!(bench.read("many").len(), 1 << 20);
        bench.close().await;
    });
}
