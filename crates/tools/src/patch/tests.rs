//! The two forms against files in memory.

use proptest::prelude::*;

use super::change::{PatchAction, PatchChange};
use super::text::Text;
use super::*;

/// What one file becomes.
fn applied(patch: &str, old: &str) -> Result<String, String> {
    let changes = parse_patch(patch).map_err(|error| error.to_string())?;
    let [PatchChange { action, .. }] = changes.as_slice() else {
        return Err(format!("{} files", changes.len()));
    };
    let mut text = Text::read(old.as_bytes());
    match action {
        PatchAction::Add { text: new, .. } => text = new.clone(),
        PatchAction::Delete { hunks } | PatchAction::Update { hunks, .. } => {
            text.apply(hunks).map_err(|(line, misfit)| format!("line {line}: {misfit}"))?;
        }
    }
    Ok(String::from_utf8(text.write()).unwrap())
}

const UNIFIED_DIFF: &str = "--- a/f\n+++ b/f\n@@ -2,3 +2,3 @@\n two\n-three\n+THREE\n four\n";
const OLD_TEXT: &str = "one\ntwo\nthree\nfour\n";

#[test]
fn a_unified_diff_is_applied_where_it_says() {
    assert_eq!(applied(UNIFIED_DIFF, OLD_TEXT).unwrap(), "one\ntwo\nTHREE\nfour\n");
}

#[test]
fn a_hunk_that_moved_is_found_nearby() {
    let moved = format!("zero\nzero\n{OLD_TEXT}");
    assert_eq!(applied(UNIFIED_DIFF, &moved).unwrap(), "zero\nzero\none\ntwo\nTHREE\nfour\n");
}

#[test]
fn context_that_differs_in_the_least_is_refused() {
    for old in ["one\ntwo\nthree\nfour!\n", "one\ntwo\n three\nfour\n", ""] {
        assert!(applied(UNIFIED_DIFF, old).unwrap_err().contains("not found"), "{old:?}");
    }
}

#[test]
fn two_places_as_near_as_each_other_are_refused() {
    let diff = "--- f\n+++ f\n@@ -3 +3 @@\n-x\n+y\n";
    assert!(applied(diff, "a\nx\nb\nx\nc\n").unwrap_err().contains("several places"));
}

#[test]
fn line_ends_are_kept() {
    let windows = OLD_TEXT.replace('\n', "\r\n");
    assert_eq!(applied(UNIFIED_DIFF, &windows).unwrap(), "one\r\ntwo\r\nTHREE\r\nfour\r\n");
    let open = OLD_TEXT.trim_end();
    assert_eq!(applied(UNIFIED_DIFF, open).unwrap(), "one\ntwo\nTHREE\nfour");
}

#[test]
fn a_hunk_with_wrong_counts_is_refused_by_its_line() {
    for (diff, line) in [
        ("--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n+d\n", "line 7"),
        ("--- f\n+++ f\n@@ -1,3 +1,3 @@\n a\n-b\n+c\n", "line 7"),
        ("--- f\n+++ f\n@@ -1,x +1 @@\n", "line 3"),
        ("--- f\n", "line 2"),
    ] {
        let error = applied(diff, "a\nb\n").unwrap_err();
        assert!(error.contains(line), "{diff:?}: {error}");
    }
}

#[test]
fn git_headers_are_understood() {
    let rename = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n";
    let changes = parse_patch(rename).unwrap();
    let to = Some("y".parse().unwrap());
    assert_eq!(changes[0].path.as_str(), "x");
    assert_eq!(changes[0].action, PatchAction::Update { hunks: vec![], to, mode: None });
    let new = "diff --git a/n b/n\nnew file mode 100755\nindex 0..1\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+hi\n";
    let text = Text { lines: vec![b"hi".to_vec()], open: false };
    assert_eq!(parse_patch(new).unwrap()[0].action, PatchAction::Add { text, mode: Some(0o755) });
    let empty = "diff --git a/n b/n\nnew file mode 100644\nindex 0..0\n";
    assert!(matches!(parse_patch(empty).unwrap()[0].action, PatchAction::Add { .. }));
    let gone = "diff --git a/n b/n\ndeleted file mode 100644\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-hi\n";
    assert_eq!(applied(gone, "hi\n").unwrap(), "");
    let mode = "diff --git a/n b/n\nold mode 100644\nnew mode 100755\n";
    assert!(matches!(
        parse_patch(mode).unwrap()[0].action,
        PatchAction::Update { mode: Some(0o755), .. }
    ));
}

#[test]
fn a_mail_around_the_diff_is_left_out_and_nothing_else() {
    let mail = format!("From: somebody\nSubject: x\n\n{UNIFIED_DIFF}-- \n2.39.5\n\n");
    assert_eq!(applied(&mail, OLD_TEXT).unwrap(), "one\ntwo\nTHREE\nfour\n");
    let stray = format!("{UNIFIED_DIFF}+stray\n");
    assert!(
        applied(&stray, OLD_TEXT).unwrap_err().contains("line 8"),
        "{:?}",
        applied(&stray, OLD_TEXT)
    );
}

#[test]
fn paths_that_escape_and_files_named_twice_are_refused() {
    let error = parse_patch("--- a/../../f\n+++ b/../../f\n@@ -1 +1 @@\n-a\n+b\n").unwrap_err();
    assert!(error.message.contains("../../f"), "{error}");
    let twice =
        format!("{UNIFIED_DIFF}{}", UNIFIED_DIFF.replace("a/f", "a/./f").replace("b/f", "b/./f"));
    assert!(parse_patch(&twice).unwrap_err().message.contains("twice"));
}

const BEGIN_PATCH: &str =
    "*** Begin Patch\n*** Update File: f\n@@ fn b\n x\n-y\n+z\n*** End Patch\n";

#[test]
fn a_begin_patch_finds_its_place_by_what_stands_around() {
    let old = "fn a\n x\ny\nfn b\nx\ny\n";
    assert_eq!(applied(BEGIN_PATCH, old).unwrap(), "fn a\n x\ny\nfn b\nx\nz\n");
    let without = BEGIN_PATCH.replace("@@ fn b\n", "");
    assert_eq!(applied(&without, "x\ny\n").unwrap(), "x\nz\n");
    assert!(applied(&without, "x\ny\nx\ny\n").unwrap_err().contains("lines 1, 3"));
    assert!(applied(BEGIN_PATCH, "x\ny\n").unwrap_err().contains("no line reads `fn b`"));
}

#[test]
fn a_begin_patch_appends_at_the_end() {
    let patch = "*** Begin Patch\n*** Update File: f\n@@\n+z\n*** End of File\n*** End Patch";
    assert_eq!(applied(patch, "a\nb\n").unwrap(), "a\nb\nz\n");
    let patch = "*** Begin Patch\n*** Update File: f\n b\n+z\n*** End of File\n*** End Patch";
    assert_eq!(applied(patch, "b\na\nb\n").unwrap(), "b\na\nb\nz\n");
}

#[test]
fn begin_patches_add_delete_and_move() {
    let patch = "*** Begin Patch\n*** Add File: a\n+one\n+\n*** Delete File: b\n*** Update File: c\n*** Move to: d\n@@\n-x\n+y\n*** End Patch\n";
    let changes = parse_patch(patch).unwrap();
    assert_eq!(changes.len(), 3);
    let text = Text { lines: vec![b"one".to_vec(), vec![]], open: false };
    assert_eq!(changes[0].action, PatchAction::Add { text, mode: None });
    assert_eq!(changes[1].action, PatchAction::Delete { hunks: vec![] });
    assert!(
        matches!(&changes[2].action, PatchAction::Update { to: Some(to), .. } if to.as_str() == "d")
    );
}

#[test]
fn a_begin_patch_that_does_not_end_or_says_nothing_is_refused() {
    for patch in [
        "*** Begin Patch\n*** Add File: a\n+x\n",
        "*** Begin Patch\n*** End Patch\n",
        "*** Begin Patch\nwhat\n*** End Patch\n",
        "*** Begin Patch\n*** Update File: a\n*** End Patch\n",
        "*** Begin Patch\n*** Update File: a\n@@\n x\n*** End Patch\n",
        "*** Begin Patch\n*** Update File: a\n@@\n?\n*** End Patch\n",
        "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\nmore\n",
        "",
        "hello",
    ] {
        assert!(parse_patch(patch).is_err(), "{patch:?}");
    }
}

fn file() -> impl Strategy<Value = String> {
    let line =
        prop_oneof!["[ab]{0,2}", Just("-- ".to_owned()), Just("@@ x".into()), Just("\\ y".into())];
    (proptest::collection::vec(line, 0..14), any::<bool>()).prop_map(|(lines, open)| {
        let text = lines.join("\n");
        if open || text.is_empty() { text } else { text + "\n" }
    })
}

/// What the system's own `diff` says, with this many lines of context.
fn diff(a: &str, b: &str, radius: usize) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), a).unwrap();
    std::fs::write(dir.path().join("b"), b).unwrap();
    let mut diff = std::process::Command::new("diff");
    diff.arg(format!("-U{radius}")).args(["--label", "a/f", "--label", "b/f", "a", "b"]);
    let output = diff.current_dir(dir.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_diff_of_two_files_turns_the_one_into_the_other(a in file(), b in file(), radius in 0usize..4) {
        prop_assume!(a != b);
        let diff = diff(&a, &b, radius);
        prop_assert_eq!(applied(&diff, &a), Ok(b), "{}", diff);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_it_panic(patch in "(\\PC|\n){0,200}", old in file()) {
        let _ = applied(&patch, &old);
    }

    #[test]
    fn nothing_that_looks_like_a_patch_makes_it_panic(
        lines in proptest::collection::vec(proptest::sample::select(vec![
            "*** Begin Patch", "*** End Patch", "*** Add File: a", "*** Update File: a", "*** Delete File: a",
            "*** Move to: b", "*** End of File", "@@", "@@ a", "@@ -1 +1 @@", "@@ -0,0 +1,2 @@", "@@ -9,2 +9 @@",
            "--- a/f", "+++ b/f", "--- /dev/null", "+++ /dev/null", "diff --git a/f b/f", "rename from f",
            "rename to \"g\\n\"", "new file mode 100644", "deleted file mode 100644", "\\ No newline", "+a", "-a", " a", "",
        ]), 0..24), old in file(),
    ) {
        let _ = applied(&lines.join("\n"), &old);
    }
}

/// Fails if it takes longer than anybody waits; most of these would take years if they were done naively.
fn soon<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    waiting.recv_timeout(std::time::Duration::from_secs(60)).unwrap()
}

#[test]
fn a_hunk_of_a_million_lines_is_read_at_once() {
    let lines = 1_000_000;
    let diff = format!("--- /dev/null\n+++ b/f\n@@ -0,0 +1,{lines} @@\n{}", "+\n".repeat(lines));
    assert_eq!(soon(move || applied(&diff, "")).unwrap().len(), lines);
}

#[test]
fn lines_that_are_all_alike_do_not_keep_anybody_busy() {
    let old = "a\n".repeat(1_000_000);
    let (context, heading) = (" a\n".repeat(300_000), "@@ a\n".repeat(300_000));
    for patch in [
        format!("*** Begin Patch\n*** Update File: f\n@@\n{context}-b\n+c\n*** End Patch"),
        format!("*** Begin Patch\n*** Update File: f\n@@ a\n{context}-b\n*** End Patch"),
        format!("*** Begin Patch\n*** Update File: f\n{heading}-b\n+c\n*** End Patch"),
    ] {
        let old = old.clone();
        let told = soon(move || applied(&patch, &old)).unwrap_err();
        assert!(told.contains("takes too long"), "{told}");
    }
}
