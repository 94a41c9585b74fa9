//! The scripts that run the tests.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The report of a whole run is larger than a pipe's buffer: `sort | head` would die of SIGPIPE and, with
/// `pipefail`, end the script.
#[test]
fn the_slowest_tests_of_a_long_report_are_listed_without_ending_the_script() {
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut text = String::new();
    for number in 0..5_000 {
        let name = format!("a_test_whose_name_is_as_long_as_they_are_{number}");
        writeln!(text, r#"<testcase name="{name}" classname="crate::it" time="{number}.5">"#)
            .unwrap();
    }
    fs::write(report.path(), text).unwrap();
    let steps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/steps");
    let script = r#"set -euo pipefail; . "$1"; report=$2; step one; summary; echo ended"#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).arg(steps).arg(report.path());
    let ran = bash.env("CARGO_TARGET_DIR", report.path().with_extension("none")).output().unwrap();
    let printed = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success() && printed.ends_with("ended\n"), "{:?}: {printed}", ran.status);
    assert_eq!(printed.lines().filter(|line| line.contains("a_test_whose")).count(), 10);
    assert!(printed.contains("\n4999.5 crate::it"), "{printed}");
}
