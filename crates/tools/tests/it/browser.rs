//! A browser that was put there to do harm: whatever it answers, a call ends, says why, and leaves nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use stockade_core::{Bytes, ErrorCode, Limits, Mount};
use stockade_tools::{Call, Cancelled, ToolboxOptions};

use crate::applied::lay_over;
use crate::common::{ToolBench, Where, test};

/// Directory and name of the browser: over that of the host, or a new one where the host has none.
const PLACES: [(&str, &str); 2] =
    [("/usr/lib/chromium", "chromium"), ("/opt/google/chrome", "chrome")];
/// Makes its directory as a browser does. A request comes whole, and none before the one before was answered.
const PROLOGUE: &str = r#"#!/bin/sh
for flag; do case $flag in --user-data-dir=*) mkdir -p "${flag#*=}" ;; esac; done
answer() { dd bs=64k count=1 <&3 >/dev/null 2>&1; printf '%s\000' "$1" >&4; }
: >started
"#;

/// A bench whose browser is this script, and the directory where that lies.
async fn with_browser(script: &str) -> (ToolBench, tempfile::TempDir) {
    with_browser_and(script, |_| {}).await
}

async fn with_browser_and(
    script: &str,
    change: impl FnOnce(&mut ToolboxOptions),
) -> (ToolBench, tempfile::TempDir) {
    let (target, name) = PLACES[usize::from(!Path::new(PLACES[0].0).is_dir())];
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join(name);
    fs::write(&program, format!("{PROLOGUE}{script}\n")).unwrap();
    for path in [dir.path(), &program] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let source = dir.path().to_owned().try_into().unwrap();
    let mount = Mount { source, target: target.parse().unwrap(), read_only: true };
    let bench = ToolBench::with(Where::Native, |options| {
        change(options);
        options.bound.as_mut().unwrap().mounts.push(mount);
    });
    let bench = bench.await;
    bench.write("page.html", "<p>page");
    (bench, dir)
}

/// Answers the first requests with these results.
fn answers(results: &[&str]) -> String {
    let answer = |(at, result): (usize, &&str)| {
        format!("answer '{{\"id\":{},\"result\":{result}}}'\n", at + 1)
    };
    results.iter().enumerate().map(answer).collect()
}

/// Until the page is open; the next request is what it says about itself.
const OPENED: [&str; 7] = [
    r#"{"targetInfos":[{"type":"page","targetId":"P"}]}"#,
    r#"{"sessionId":"S"}"#,
    "{}",
    "{}",
    "{}",
    "{}",
    "{}",
];
const REPORT: &str = r#"{"result":{"value":{"url":"u","title":"t","text":"fine","textLeftOut":0,"elements":[],"elementsLeftOut":0}}}"#;

/// Opens a page that says this about itself.
fn with_page(report: &str) -> String {
    answers(&[&OPENED[..], &[report]].concat()) + "exec sleep 1000"
}

fn open_page() -> Value {
    json!({ "action": "open", "url": "page.html" })
}

async fn nothing_is_left(bench: &ToolBench) {
    let left = json!({ "command": "ls -d /tmp/stockade-browser-* 2>/dev/null | wc -l" });
    assert_eq!(bench.ok("bash", left).await["stdout"], "0\n");
}

#[test]
fn what_answers_as_a_browser_does_is_one() {
    test(async {
        let script = with_page(REPORT);
        let (bench, _dir) = with_browser(&script).await;
        let shown = bench.ok("browser", open_page()).await;
        assert_eq!((&shown["url"], &shown["text"]), (&json!("u"), &json!("fine")));
        bench.ok("browser", json!({ "action": "close" })).await;
        nothing_is_left(&bench).await;
        bench.close().await;
    });
}

#[test]
fn an_answer_of_another_shape_ends_the_call_and_not_the_host() {
    test(async {
        for (asked, result) in [(0, "[]"), (0, r#"{"targetInfos":5}"#), (1, "null"), (5, "7")] {
            let script = answers(&[&OPENED[..asked], &[result]].concat()) + "exec sleep 1000";
            let (bench, _dir) = with_browser(&script).await;
            bench.refuses("browser", open_page(), ErrorCode::Protocol, "cannot be read").await;
            nothing_is_left(&bench).await;
            bench.close().await;
        }
    });
}

#[test]
fn a_page_that_says_nothing_of_use_stays_open() {
    test(async {
        for result in ["[]", r#"{"result":5}"#, r#"{"result":{"value":[{"":0}]}}"#] {
            let script = with_page(result);
            let (bench, _dir) = with_browser(&script).await;
            bench
                .refuses("browser", open_page(), ErrorCode::Protocol, "the page has changed")
                .await;
            bench.ok("browser", json!({ "action": "close" })).await;
            nothing_is_left(&bench).await;
            bench.close().await;
        }
    });
}

#[test]
fn an_answer_without_an_end_is_not_kept() {
    test(async {
        let (bench, _dir) = with_browser("tr '\\0' ' ' </dev/zero >&4").await;
        bench.refuses("browser", open_page(), ErrorCode::TooLarge, "too large").await;
        nothing_is_left(&bench).await;
        bench.close().await;
    });
}

#[test]
fn a_browser_that_ends_says_why_and_the_next_one_is_started() {
    test(async {
        let (bench, _dir) = with_browser("echo its last words >&2; exit 3").await;
        for _ in 0..2 {
            bench.refuses("browser", open_page(), ErrorCode::Unavailable, "its last words").await;
            nothing_is_left(&bench).await;
        }
        bench.close().await;
    });
}

#[test]
fn a_flood_of_messages_keeps_no_call_from_being_cancelled() {
    test(async {
        let (bench, _dir) = with_browser("yes '{}' | tr '\\n' '\\0' >&4").await;
        let (canceller, cancelled) = Cancelled::pair();
        let call = Call { cancelled, ..bench.caller() };
        let opening = bench.toolbox.call("browser", open_page(), &call);
        let cancel = async {
            while !bench.path("started").exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            canceller.cancel();
        };
        let (opened, ()) = tokio::join!(opening, cancel);
        assert_eq!(opened.unwrap_err().code, ErrorCode::Gone);
        nothing_is_left(&bench).await;
        bench.close().await;
    });
}

#[test]
fn no_browser_stays_open_where_its_answers_would_be_cut() {
    test(async {
        let limits = Limits { output: Some(Bytes::mib(1)), ..Limits::default() };
        let narrow = |options: &mut ToolboxOptions| options.bound.as_mut().unwrap().limits = limits;
        let bench = ToolBench::with(Where::Native, narrow).await;
        bench.write("page.html", "<p>page");
        bench.refuses("browser", open_page(), ErrorCode::Refused, "output limit").await;
        bench.close().await;
    });
}

#[test]
fn nothing_is_applied_while_a_browser_may_be_writing() {
    test(async {
        let script = with_page(REPORT);
        let (bench, _dir) = with_browser_and(&script, lay_over).await;
        bench.ok("bash", json!({ "command": "echo new > file" })).await;
        bench.ok("browser", open_page()).await;
        bench.refuses("workspace_apply", json!({}), ErrorCode::Denied, "the browser").await;
        bench.ok("browser", json!({ "action": "close" })).await;
        bench.ok("workspace_apply", json!({})).await;
        assert_eq!(bench.read("file"), "new\n");
        bench.close().await;
    });
}
