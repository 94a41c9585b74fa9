//! The whole kit on containers: of a Docker engine and of Podman behind the same interface, both of the
//! test's own.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

mod engines;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engines::{Engine, Kind};
use stockade_backends::docker::{Docker, Options as DockerOptions};
use stockade_core::{Backend, Command, Ending, ErrorCode, HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine as Stockade, EngineConfig};
use stockade_tck::{
    ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, MARK, OnHost, Options, Status, Subject,
    probe_bytes, run,
};

const IMAGE: &str = "localhost/stockade-tck/probe:1";

/// How often each engine is killed.
const KILLS: u64 = 50;
/// What C-31 allows, and a little for a busy machine's own clients.
const SOON: Duration = Duration::from_secs(10);

/// A directory with the probe in it.
fn furnished() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let probe = root.path().join("probe");
    std::fs::write(&probe, probe_bytes()).unwrap();
    std::fs::set_permissions(&probe, std::fs::Permissions::from_mode(0o755)).unwrap();
    root
}

fn give_image(engine: &Engine) {
    engine.import(furnished().path(), IMAGE);
}

fn backend(socket: &Path) -> Docker {
    let options = DockerOptions { socket: Some(socket.to_owned()), runtime: None };
    Docker::new(options, Arc::new(|_| {}))
}

async fn judge(kind: Kind) {
    let engine = Engine::start(kind);
    give_image(&engine);
    let process = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let socket = engine.socket.to_string_lossy().into_owned();
    let subject = OnHost::new(Arc::new(backend(&engine.socket)))
        .with_image(IMAGE.parse().unwrap())
        .with_engine_process(process, vec![format!("docker:{socket}")]);
    let measured = subject.backend().probe().await;
    assert_eq!(measured.unavailable, None, "{}", engine.log());
    let only = std::env::var("STOCKADE_TCK_ONLY").map(|text| vec![text]).unwrap_or_default();
    let report = run(Arc::new(subject), &Options { only, jobs: 4 }).await;
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
    assert_eq!(engine.containers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn docker_passes_every_case_it_declares_the_features_for() {
    judge(Kind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn podman_passes_every_case_it_declares_the_features_for() {
    judge(Kind::Podman).await;
}

/// Kills a Stockade that builds and removes, at instants that are spread over all it does, and looks
/// with the engine's own client for what is left when the next one has opened.
async fn kill_many(kind: Kind) {
    let engine = Engine::start(kind);
    let (state, workspace) = (tempfile::tempdir().unwrap(), furnished());
    let mark = format!("killed{}{kind:?}", std::process::id());
    let mut reaped = 0;
    for round in 0..KILLS {
        let mut child = Program::new(env!("CARGO_BIN_EXE_stockade-tck-engine"))
            .args([&format!("docker:{}", engine.socket.display()), "churn"])
            .env(ENGINE_STATE, state.path().join("state"))
            .env(ENGINE_WORKSPACE, workspace.path())
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // One in five before it has begun.
        if round % 5 != 0 {
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(round * 37 % 900));
        child.kill().unwrap();
        child.wait().unwrap();
        let config = EngineConfig::at(state.path().join("state"));
        let config = EngineConfig { reap_on_open: false, ..config };
        let next: Arc<dyn Backend> = Arc::new(backend(&engine.socket));
        let stockade = Stockade::open(config, vec![Arc::clone(&next)]).await.unwrap();
        reaped += stockade.reap().await.unwrap().len();
        // Its connecting alone removes what was made only to measure.
        next.list().await.unwrap();
        let until = Instant::now() + SOON;
        loop {
            let mut left = engine.containers();
            left.extend(HostObserver::default().search(&[&mark]));
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "after kill {round}: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    println!("{KILLS} kills: nothing left; {reaped} were reaped by the next engine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_in_docker_of_engines_killed_at_any_instant() {
    kill_many(Kind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_in_podman_of_engines_killed_at_any_instant() {
    kill_many(Kind::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_goes_away_is_named_and_its_containers_are_reaped_when_it_is_back() {
    let mut engine = Engine::start(Kind::Docker);
    let (state, workspace) = (tempfile::tempdir().unwrap(), furnished());
    let open = |socket: &Path| {
        let backend: Arc<dyn Backend> = Arc::new(backend(socket));
        Stockade::open(EngineConfig::at(state.path().join("state")), vec![backend])
    };
    let workspace = Workspace::Local(HostPath::try_from(workspace.path().to_owned()).unwrap());
    let spec =
        SandboxSpec { backend: "docker".parse().unwrap(), workspace, ..SandboxSpec::default() };
    let stockade = open(&engine.socket).await.unwrap();
    let id = stockade.create(spec.clone()).await.unwrap();
    let sleeping = Command::program(["./probe", "sleep", "60000"]);
    let execution = stockade.exec(&id, sleeping).await.unwrap();
    engine.crash();
    let ending = execution.outcome().await.ending.clone();
    assert!(matches!(ending, Ending::Lost(_)), "{ending:?}");
    let error = stockade.create(spec).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
    assert!(error.hint().is_some());
    drop((execution, stockade));
    // While it is away, what it left stops nobody.
    drop(open(&engine.socket).await.unwrap());
    engine.restart();
    let again = open(&engine.socket).await.unwrap();
    assert_eq!(again.list().await.unwrap().leases, []);
    assert_eq!(engine.containers(), Vec::<String>::new());
}
