//! Commands about images of a [`TestRegistry`](super::registry::TestRegistry), which have to succeed.

use serde_json::Value;

use super::{CliDone, CliPlace};

/// Shows the file that tells the images of a test registry apart.
pub fn cat_release(place: &CliPlace, flags: &[&str]) -> CliDone {
    let args = [&["run", "--no-workspace"], flags, &["--", "cat", "/etc/release"]].concat();
    place.stockade(&args)
}

/// What a command says in JSON.
pub fn json(place: &CliPlace, args: &[&str]) -> Value {
    let done = place.stockade(&[&["--json"], args].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

/// What the journal has about the executions of a program.
pub fn started(place: &CliPlace, program: &str) -> Vec<Value> {
    let jobs = json(place, &["audit", "list"]);
    let events = jobs.as_array().unwrap().iter().map(|job| job["started"]["event"].clone());
    let of =
        |event: &Value| event["command"][0].as_str().is_some_and(|word| word.ends_with(program));
    events.filter(of).collect()
}

/// Pulls an image; its digest.
pub fn pull(place: &CliPlace, name: &str) -> String {
    let done = place.stockade(&["image", "pull", name]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let digest = done.stdout.trim_end().to_owned();
    assert!(digest.starts_with("sha256:") && digest.len() == 71, "{digest}");
    digest
}
