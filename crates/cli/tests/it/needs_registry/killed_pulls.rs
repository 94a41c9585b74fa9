//! `stockade image pull` that is killed at any instant, with the walls that it unpacks in: nothing half-published, the next
//! pull completes and leaves no sandbox of either.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::CliPlace;
use crate::common::image_commands::{cat_release, json, pull};
use crate::common::registry::TestRegistry;
use crate::sample::pick_rounds;

/// How many instants: a sample, and all of them with `--long`.
const KILLED_PULLS: [u32; 2] = [10, 50];

/// How long a pull takes when everything is measured already.
fn measure_pull(place: &CliPlace, name: &str) -> Duration {
    pull(place, name);
    place.stockade(&["image", "rm", name]).code_is(0);
    let started = Instant::now();
    pull(place, name);
    started.elapsed()
}

/// Kills a pull at this instant; whether it was still going on.
fn kill_pull(place: &CliPlace, name: &str, after: Duration) -> bool {
    let mut command = place.command(&["image", "pull", name]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(after);
    let is_interrupted = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    is_interrupted
}

#[test]
fn a_pull_that_is_killed_publishes_nothing_half_and_the_next_leaves_no_sandbox() {
    let registry = TestRegistry::start();
    let (place, name) = (CliPlace::new(), registry.name("1"));
    let whole = measure_pull(&place, &name);
    let pinned = format!("{name}@{}", pull(&place, &name));
    place.stockade(&["image", "rm", &name]).code_is(0);
    let (rounds, mut interrupted) = (pick_rounds(KILLED_PULLS), 0);
    for round in 0..rounds {
        // From the first instant to the last, each in its own part of the whole.
        interrupted += u32::from(kill_pull(&place, &name, whole * round / rounds));
        // With its name or before it got it.
        if json(&place, &["image", "ls"])["images"] != serde_json::json!([]) {
            cat_release(&place, &["--image", &pinned, "--pull", "never"]).is(0, "one\n", "");
        }
        pull(&place, &name);
        assert_eq!(place.leases(), [""; 0], "round {round} left a sandbox");
        for left in ["drafts", "partial"] {
            let left = fs::read_dir(place.state().join("images").join(left)).unwrap().count();
            assert_eq!(left, 0, "round {round} left something");
        }
        cat_release(&place, &["--image", &name, "--pull", "never"]).is(0, "one\n", "");
        place.stockade(&["image", "rm", &name]).code_is(0);
    }
    // The first comes at once. How many of the others come in time is a matter of pace, which is not asserted.
    assert!(interrupted > 0, "none of {rounds} within {whole:?}");
    place.assert_nothing_is_left();
}
