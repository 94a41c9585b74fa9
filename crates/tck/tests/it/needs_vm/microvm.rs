//! The whole kit on the microvm backend, emulated, with one machine that all others are copies of. Where no
//! emulator, kernel or `mkfs.erofs` is installed each test is reported as ignored; not so in CI, where it
//! then fails.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machines;
use crate::ordinary;
use crate::sample;
use stockade_core::{Backend, Command, SandboxSpec};
use stockade_engine::{Engine, EngineConfig, OutputEvent};
use stockade_tck::{
    ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, KitOptions, MARK_VARIABLE, Report, Status,
    probe_bytes, run,
};

fn assert_report(report: &Report, least: usize) {
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) | Status::Skipped(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    assert!(passed >= least, "only {passed} cases ran");
}

fn read_case_filter() -> Vec<String> {
    std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_microvm_backend_passes_every_case_it_declares_the_features_for() {
    let least = if read_case_filter().is_empty() { 80 } else { 1 };
    // An emulated machine keeps a processor busy: more at once would only wait for each other.
    let options = KitOptions { only: read_case_filter(), jobs: 2 };
    assert_report(&run(Arc::new(machines::make_subject()), &options).await, least);
}

#[test]
fn copies_of_a_machine_are_different_machines_for_an_ordinary_user_too() {
    ordinary::run_as_ordinary_user(module_path!(), "copies_of_a_machine_are_different_machines");
}

/// Shell script that prints what no two machines may share: name, ids, and the kernel's random numbers.
const IDENTITY_SCRIPT: &str = "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id; \
                   cat /proc/sys/kernel/random/uuid; dd if=/dev/urandom bs=16 count=1 2>/dev/null | sha256sum";
/// Machines that are compared with each other.
const MACHINE_COUNT: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_machine_are_different_machines() {
    let state = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Backend> = machines::make_backend();
    let engine = Engine::open(EngineConfig::at(state.path()), vec![backend]).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..MACHINE_COUNT {
        let spec = SandboxSpec { backend: "microvm".parse().unwrap(), ..SandboxSpec::default() };
        ids.push(engine.create(spec).await.unwrap());
    }
    let mut seen = std::collections::BTreeSet::new();
    for id in &ids {
        let execution =
            engine.exec(id, Command::program(["sh", "-c", IDENTITY_SCRIPT])).await.unwrap();
        let mut reader = execution.subscribe();
        let mut text = Vec::new();
        while let Some(OutputEvent::Output { data, .. }) = reader.next().await {
            text.extend_from_slice(&data);
        }
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 5, "{text}");
        seen.extend(lines.into_iter().enumerate());
    }
    assert_eq!(seen.len(), 5 * MACHINE_COUNT, "{seen:?}");
    for id in ids {
        engine.destroy(&id).await.unwrap();
    }
}

/// Rounds in which an engine is killed: in a sample, and in a long run.
const KILL_ROUNDS: [u64; 2] = [10, 50];
/// The time that C-31 allows, and a margin for a busy machine.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(15);

/// What would carry traces: throw-away sandboxes, and those that were recorded.
fn collect_needles(base: &Path, engine: u32) -> Vec<String> {
    let journal = fs::read_to_string(base.join("state/journal.jsonl")).unwrap_or_default();
    let recorded = journal.lines().rev().take(12);
    let ids = recorded.filter_map(|line| line.split("\"sandbox\":\"").nth(1)?.split('"').next());
    let mut needles: Vec<String> = ids.map(str::to_owned).collect();
    needles.push(format!("probe{engine}n"));
    needles
}

fn until_none(what: &str, look: impl Fn() -> Vec<String>) {
    let until = Instant::now() + CLEANUP_TIMEOUT;
    loop {
        let left = look();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{what}: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_microvm_engines_killed_at_any_instant() {
    // So that what is killed is making sandboxes, and not the machine that they are copies of.
    let measured = machines::make_backend().probe().await;
    assert_eq!(measured.unavailable, None);
    let base = tempfile::Builder::new().prefix("stockade-microvm-test-").tempdir().unwrap();
    let workspace = base.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("probe"), probe_bytes()).unwrap();
    fs::set_permissions(workspace.join("probe"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut reaped = 0;
    let (kills, whole) = (sample::pick_rounds(KILL_ROUNDS), KILL_ROUNDS[1]);
    // A short run takes every so many of the instants that a long one takes all of.
    for round in (0..kills).map(|round| round * whole / kills) {
        let mut process = machines::engine_process();
        process.arg("churn").stdin(Stdio::null()).stdout(Stdio::piped());
        process.env(ENGINE_STATE, base.path().join("state")).env(ENGINE_WORKSPACE, &workspace);
        process.env(MARK_VARIABLE, format!("killed{}", std::process::id()));
        let mut child = process.spawn().unwrap();
        if round % 5 != 0 {
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(round * 37 % 900));
        child.kill().unwrap();
        child.wait().unwrap();
        let backend: Arc<dyn Backend> = machines::make_backend();
        let config = EngineConfig::at(base.path().join("state"));
        let config = EngineConfig { reap_on_open: false, ..config };
        let engine = Engine::open(config, vec![Arc::clone(&backend)]).await.unwrap();
        reaped += engine.reap().await.unwrap().len();
        let listed = backend.list().await.unwrap();
        let needles = collect_needles(base.path(), child.id());
        let left = listed.iter().find(|id| needles.iter().any(|needle| needle == id.as_str()));
        assert_eq!(left, None, "a sandbox is listed after kill {round}");
        let needles: Vec<&str> = needles.iter().map(String::as_str).collect();
        let observer = HostObserver::default();
        until_none(&format!("after kill {round}"), || observer.search(&needles));
    }
    println!("{kills} kills: nothing left; {reaped} were reaped by the next engine");
}
