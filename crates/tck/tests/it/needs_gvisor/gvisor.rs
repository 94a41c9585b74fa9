//! The whole kit on the gvisor backend, the hostile corpus, and what happens when its runtime fails.
//! Where no `runsc` is installed each test is reported as ignored; not so in CI, where it then fails.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ordinary;
use crate::sample;
use stockade_backends::gvisor::Gvisor;
use stockade_core::{
    Backend, Command, Ending, HostPath, Mount, SandboxSpec, SnapshotKind, Workspace,
};
use stockade_engine::{Engine, EngineConfig};
use stockade_tck::{
    ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, KitOptions, MARK_VARIABLE, OnHost, Report,
    Status, hostile, probe_bytes, run,
};

fn make_subject() -> OnHost {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    OnHost::new(Arc::new(Gvisor::new())).with_engine_process(engine, vec!["gvisor".into()])
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_gvisor_backend_passes_every_case_it_declares_the_features_for() {
    let only = std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only]);
    let least = if only.is_empty() { 100 } else { 1 };
    assert_report(
        &run(Arc::new(make_subject()), &KitOptions { only, ..KitOptions::default() }).await,
        least,
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_programs_end_in_the_right_outcome_on_gvisor_too() {
    let only = std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only]);
    assert_report(&hostile::run(Arc::new(make_subject()), only).await, 1);
}

#[test]
fn the_gvisor_backend_passes_for_an_ordinary_user_too() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "the_gvisor_backend_passes_every_case_it_declares_the_features_for",
    );
}

/// Rounds in which an engine is killed: in a sample, and in a long run.
const KILL_ROUNDS: [u64; 2] = [10, 50];
/// The time that C-31 allows, and a margin for a busy machine.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(15);

fn create_probe_workspace() -> tempfile::TempDir {
    let base = tempfile::Builder::new().prefix("stockade-gvisor-test-").tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let workspace = base.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("probe"), probe_bytes()).unwrap();
    fs::set_permissions(workspace.join("probe"), fs::Permissions::from_mode(0o755)).unwrap();
    base
}

fn engine_process(base: &Path, way: &str) -> Program {
    let mut engine = Program::new(env!("CARGO_BIN_EXE_stockade-tck-engine"));
    engine.args(["gvisor", way]).stdin(Stdio::null());
    engine.env(ENGINE_STATE, base.join("state")).env(ENGINE_WORKSPACE, base.join("workspace"));
    engine.env(MARK_VARIABLE, format!("killed{}", std::process::id()));
    engine
}

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
async fn nothing_is_left_of_gvisor_engines_killed_at_any_instant() {
    let base = create_probe_workspace();
    let mut reaped = 0;
    let (kills, whole) = (sample::pick_rounds(KILL_ROUNDS), KILL_ROUNDS[1]);
    // A short run takes every so many of the instants that a long one takes all of.
    for round in (0..kills).map(|round| round * whole / kills) {
        let mut process = engine_process(base.path(), "churn");
        // Wherever its temporary files lie, what it leaves is found.
        if round % 2 == 0 {
            process.env("TMPDIR", base.path());
        }
        let mut child = process.stdout(Stdio::piped()).spawn().unwrap();
        if round % 5 != 0 {
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(round * 37 % 600));
        child.kill().unwrap();
        child.wait().unwrap();
        let backend: Arc<dyn Backend> = Arc::new(Gvisor::new());
        let config = EngineConfig::at(base.path().join("state"));
        let config = EngineConfig { reap_on_open: false, ..config };
        let engine = Engine::open(config, vec![Arc::clone(&backend)]).await.unwrap();
        reaped += engine.reap().await.unwrap().len();
        // Its looking alone removes what was made only to measure.
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

fn write_fake_runtime(script: &str) -> (tempfile::TempDir, Gvisor) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("runsc");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let backend = Gvisor::with_program(&program);
    (place, backend)
}

fn nothing_of_this_process() {
    let trials = format!("probe{}n", std::process::id());
    let observer = HostObserver::default();
    until_none("of a trial is left", || observer.search(&[&trials]));
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_told_with_the_remedy() {
    let measured = Gvisor::with_program(Path::new("/nowhere/runsc")).probe().await;
    let (reason, remedy) = measured.unavailable.unwrap();
    assert!(reason.contains("not installed") && remedy.contains("runsc"), "{reason} {remedy}");
}

#[tokio::test]
async fn a_runtime_that_fails_is_told_in_its_own_words_and_leaves_nothing() {
    let (_place, backend) = write_fake_runtime("echo 'no luck today' >&2; exit 1");
    let (reason, _) = backend.probe().await.unavailable.unwrap();
    assert!(reason.contains("no luck today"), "{reason}");
    nothing_of_this_process();
}

#[tokio::test]
async fn a_runtime_that_hangs_is_given_up_in_time_with_all_that_it_started() {
    let sleep = format!("7{}", std::process::id());
    let (_place, backend) = write_fake_runtime(&format!("sleep {sleep} & sleep {sleep}"));
    let measured = tokio::time::timeout(Duration::from_secs(40), backend.probe()).await.unwrap();
    let (reason, _) = measured.unavailable.unwrap();
    assert!(reason.contains("did not answer"), "{reason}");
    nothing_of_this_process();
    until_none("of a runtime lives on", || HostObserver::default().search(&[&sleep]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_whose_runtime_is_killed_is_lost_and_leaves_nothing() {
    let base = create_probe_workspace();
    let backend: Arc<dyn Backend> = Arc::new(Gvisor::new());
    let config = EngineConfig::at(base.path().join("state"));
    let engine = Engine::open(config, vec![backend]).await.unwrap();
    let workspace = HostPath::try_from(base.path().join("workspace")).unwrap();
    let workspace = Workspace::Local(workspace);
    let spec =
        SandboxSpec { backend: "gvisor".parse().unwrap(), workspace, ..SandboxSpec::default() };
    let id = engine.create(spec).await.unwrap();
    let sleeping = Command::program(["./probe", "sleep", "60000"]);
    let execution = engine.exec(&id, sleeping).await.unwrap();
    let runtime = runtime_of(id.as_str()).unwrap();
    rustix::process::kill_process(runtime, rustix::process::Signal::KILL).unwrap();
    let ending = execution.outcome().await.ending.clone();
    assert!(matches!(ending, Ending::Lost(_)), "{ending:?}");
    engine.destroy(&id).await.unwrap();
    let observer = HostObserver::default();
    until_none("something is left", || observer.search(&[id.as_str()]));
}

/// The process whose last two arguments say that it runs this sandbox.
fn runtime_of(id: &str) -> Option<rustix::process::Pid> {
    let runs = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.contains(&id.as_bytes()) && words.contains(&b"run".as_slice())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(runs).and_then(rustix::process::Pid::from_raw)
}

#[test]
fn a_full_disk_is_told_with_the_remedy_and_nothing_is_left() {
    let base = create_probe_workspace();
    let engine = engine_process(base.path(), "churn");
    let script = "mount -t tmpfs -o size=256k,mode=1777 none /var/tmp && \"$@\"; code=$?; \
                  find /var/tmp -mindepth 2 -type d >&2; exit $code";
    let ran = Program::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(engine.get_program())
        .args(engine.get_args())
        .envs(engine.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("No space left"), "{said}");
    assert!(!said.contains("/gvisor-"), "{said}");
}

/// What the kit's engine process says first: that a program runs in its sandbox.
fn start_and_kill(mut engine: Program) {
    let mut child = engine.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.ends_with('\n'), "no sandbox was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_mask_of_the_engines_process_changes_nothing() {
    let base = create_probe_workspace();
    let engine = engine_process(base.path(), "serve");
    let mut masked = Program::new("sh");
    masked.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(engine.get_program()).arg("gvisor");
    masked.envs(engine.get_envs().filter_map(|(name, value)| Some((name, value?))));
    masked.stdin(Stdio::null());
    start_and_kill(masked);
    // What it left when it was killed is found and removed by the next.
    let config = EngineConfig::at(base.path().join("state"));
    let config = EngineConfig { reap_on_open: false, ..config };
    let backend = Arc::new(Gvisor::new());
    let engine = Engine::open(config, vec![Arc::clone(&backend) as _]).await.unwrap();
    let reaped = engine.reap().await.unwrap();
    assert_eq!(reaped.len(), 1);
    let left = backend.list().await.unwrap();
    assert!(reaped.iter().all(|gone| !left.contains(gone)), "{reaped:?} {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_that_nobody_waits_for_leaves_nothing() {
    for patience in [0, 20, 60, 150, 400] {
        let backend = Gvisor::new();
        let patience = Duration::from_millis(patience);
        let _ = tokio::time::timeout(patience, backend.probe()).await;
        drop(backend);
        let left = || HostObserver::default().search(&[&format!("probe{}n", std::process::id())]);
        // A trial on a platform that says nothing has seconds of its own.
        tokio::task::block_in_place(|| until_none("of a trial is left", left));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_would_hang_or_reach_the_hosts_files_is_refused() {
    let base = create_probe_workspace();
    let config = EngineConfig::at(base.path().join("state"));
    let engine = Engine::open(config, vec![Arc::new(Gvisor::new())]).await.unwrap();
    let given = base.path().join("given");
    fs::create_dir(&given).unwrap();
    let mount = Mount {
        source: HostPath::try_from(given).unwrap(),
        target: "/workspace/given".parse().unwrap(),
        read_only: false,
    };
    let plain = SandboxSpec { backend: "gvisor".parse().unwrap(), ..SandboxSpec::default() };
    let mounted = SandboxSpec { mounts: vec![mount], ..plain.clone() };
    let id = engine.create(mounted).await.unwrap();
    let taken = engine.sandbox(&id).unwrap().snapshot(SnapshotKind::Files, base.path()).await;
    assert!(taken.unwrap_err().hint().is_some());
    engine.destroy(&id).await.unwrap();
    let id = engine.create(plain).await.unwrap();
    let sandbox = engine.sandbox(&id).unwrap();
    sandbox.pause().await.unwrap();
    let taken = sandbox.snapshot(SnapshotKind::Files, base.path()).await;
    assert!(taken.unwrap_err().hint().is_some());
    sandbox.resume().await.unwrap();
    drop(sandbox);
    engine.destroy(&id).await.unwrap();
}
