//! `stockade clean`: what it frees, what it keeps, and what it says before it frees anything.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use stockade_fs::{Locked, Sharing};

use crate::common::{CliPlace, signal, start};
use rustix::process::Signal;

/// Makes a file that was not used for two hours, and the directories above it.
fn leave(path: &Path, bytes: usize) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![1_u8; bytes]).unwrap();
    let old = SystemTime::now() - Duration::from_secs(7200);
    File::open(path).unwrap().set_modified(old).unwrap();
    path.to_owned()
}

/// Leaves a template, an image and a draft of machines, and answers where they are.
fn leave_machines(place: &CliPlace) -> [PathBuf; 3] {
    let store = place.path("home/.cache/stockade/microvm");
    leave(&store.join("templates/t/memory"), 100_000);
    leave(&store.join("new-half/file"), 10_000);
    [store.join("templates/t"), leave(&store.join("images/i"), 50_000), store.join("new-half")]
}

fn clean(place: &CliPlace, args: &[&str]) -> Value {
    let mut words = vec!["clean", "--json"];
    words.extend(args);
    let done = place.stockade(&words);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

fn kind<'a>(answer: &'a Value, kind: &str) -> &'a Value {
    let kinds = answer["kinds"].as_array().unwrap();
    kinds.iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {answer}"))
}

#[test]
fn a_dry_run_tells_what_a_run_frees_and_frees_nothing() {
    let place = CliPlace::new();
    let machines = leave_machines(&place);
    let told = clean(&place, &["--dry-run"]);
    assert_eq!(told["dryRun"], true);
    assert!(told["freedBytes"].as_u64().unwrap() >= 160_000, "{told}");
    assert!(machines.iter().all(|path| path.exists()));
    let freed = clean(&place, &[]);
    assert_eq!((&freed["freedBytes"], &freed["dryRun"]), (&told["freedBytes"], &false.into()));
    assert!(machines.iter().all(|path| !path.exists()));
    assert_eq!(clean(&place, &[])["freedBytes"], 0);
}

#[test]
fn the_table_names_each_kind_and_the_sum_is_talk() {
    let place = CliPlace::new();
    leave_machines(&place);
    let done = place.stockade(&["clean", "--dry-run"]);
    assert_eq!(done.code, 0, "{done:?}");
    for part in ["KIND", "WOULD FREE", "microvm images", "microvm templates", "output of pruned"] {
        assert!(done.stdout.contains(part), "{}", done.stdout);
    }
    assert!(done.stderr.ends_with("would be freed\n"), "{}", done.stderr);
}

#[test]
fn what_is_in_use_and_what_was_used_lately_stays() {
    let place = CliPlace::new();
    let [template, image, draft] = leave_machines(&place);
    let user = Locked::attempt(File::open(&image).unwrap(), Sharing::Shared).unwrap().unwrap();
    let answer = clean(&place, &["--older-than", "1h"]);
    assert_eq!(kind(&answer, "microvm images")["inUse"], 1);
    // The directories themselves are new.
    assert!(image.exists() && template.exists() && draft.exists());
    drop(user);
    clean(&place, &["--older-than", "1h"]);
    assert!(!image.exists() && template.exists());
    let maker = File::create(place.path("home/.cache/stockade/microvm/lock")).unwrap();
    let maker = Locked::attempt(maker, Sharing::Exclusive).unwrap().unwrap();
    clean(&place, &[]);
    assert!(template.exists() && draft.exists(), "a machine is being made");
    drop(maker);
    clean(&place, &[]);
    assert!(!template.exists() && !draft.exists());
}

#[test]
fn workspaces_snapshots_the_journal_and_its_output_stay() {
    let place = CliPlace::new();
    place.write("a", "a");
    place.stockade(&["run", "--overlay", "--shell", "echo b > b"]).code_is(0);
    let id = place.stockade(&["create"]).stdout.trim().to_owned();
    place.stockade(&["exec", &id, "--", "echo", "said"]).is(0, "said\n", "");
    place.stockade(&["snapshot", "take", &id]).code_is(0);
    let list = |args: &[&str]| place.stockade(args).stdout;
    let listed = [
        list(&["workspace", "ls", "-q"]),
        list(&["snapshot", "ls", "--json"]),
        list(&["audit", "list", "--all"]),
    ];
    let answer = clean(&place, &[]);
    assert_eq!(kind(&answer, "output of pruned jobs")["freedEntries"], 0, "{answer}");
    // A sandbox that lives is not in the way, nor is it ended.
    place.stockade(&["exec", &id, "--", "true"]).code_is(0);
    place.stockade(&["rm", &id]).code_is(0);
    assert_eq!(listed[0], list(&["workspace", "ls", "-q"]));
    assert_eq!(listed[1], list(&["snapshot", "ls", "--json"]));
    assert!(list(&["audit", "list", "--all"]).contains("echo said"), "{}", listed[2]);
    place.stockade(&["audit", "verify"]).code_is(0);
}

#[test]
fn output_of_jobs_that_the_journal_has_forgotten_is_freed() {
    let place = CliPlace::new();
    place.stockade(&["run", "true"]).code_is(0);
    let log = leave(&place.state().join("logs/forgotten.0"), 1000);
    let answer = clean(&place, &[]);
    assert_eq!(kind(&answer, "output of pruned jobs")["freedEntries"], 1, "{answer}");
    assert!(!log.exists());
}

#[test]
fn what_a_killed_run_left_is_counted_and_cleared() {
    let place = CliPlace::new();
    let mut command = place.command(&["run", "--shell", "echo up; sleep 300"]);
    command.stdin(std::process::Stdio::null());
    let (mut child, line) = start(command);
    assert_eq!(line, "up");
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let dead = |answer: &Value| kind(answer, "sandboxes of dead processes").clone();
    let told = dead(&clean(&place, &["--dry-run"]));
    assert_eq!((&told["entries"], &told["freedEntries"]), (&1.into(), &1.into()));
    assert_eq!(dead(&clean(&place, &[]))["freedEntries"], 1);
    place.assert_nothing_is_left();
}

#[test]
fn a_cache_that_cannot_be_read_is_named_and_the_others_are_cleaned() {
    let place = CliPlace::new();
    let [template, ..] = leave_machines(&place);
    let kept = place.state().join("capabilities");
    fs::create_dir_all(place.state()).unwrap();
    fs::write(&kept, "a file where a directory belongs").unwrap();
    let done = place.stockade(&["clean"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.stderr.contains("capabilities"), "{}", done.stderr);
    assert!(!template.exists());
}
