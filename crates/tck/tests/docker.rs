//! The whole kit on containers: of a Docker engine and of Podman behind the same interface, both of the
//! test's own.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

mod engines;
mod ordinary;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engines::{Engine, Kind};
use stockade_backends::docker::{Docker, Options as DockerOptions};
use stockade_core::{
    Backend, Boundary, Command, Ending, ErrorCode, HostPath, Image, SandboxSpec, Workspace,
};
use stockade_engine::{Engine as Stockade, EngineConfig};
use stockade_tck::{
    ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, MARK, OnHost, Options, Report, Status, Subject,
    hostile, probe_bytes, run, write_image,
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
    with_runtime(socket, None)
}

fn with_runtime(socket: &Path, runtime: Option<&str>) -> Docker {
    let (socket, runtime) = (Some(socket.to_owned()), runtime.map(str::to_owned));
    Docker::new(DockerOptions { socket, runtime }, Arc::new(|_| {}))
}

/// The engine as a subject of the kit, with whoever is killed on it.
async fn subject(engine: &Engine, runtime: Option<&str>) -> Arc<OnHost> {
    give_image(engine);
    let process = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let socket = engine.socket.to_string_lossy();
    let place =
        runtime.map_or(format!("docker:{socket}"), |name| format!("docker:{name}@{socket}"));
    let subject = OnHost::new(Arc::new(with_runtime(&engine.socket, runtime)))
        .with_image(IMAGE.parse().unwrap())
        .with_engine_process(process, vec![place]);
    let measured = subject.backend().probe().await;
    assert_eq!(measured.unavailable, None, "{}", engine.log());
    Arc::new(subject)
}

fn only() -> Vec<String> {
    std::env::var("STOCKADE_TCK_ONLY").map(|text| vec![text]).unwrap_or_default()
}

fn approve(report: &Report, least: usize) {
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) | Status::Skipped(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    let least = if only().is_empty() { least } else { 1 };
    assert!(passed >= least, "only {passed} cases ran");
}

async fn judge(kind: Kind, runtime: Option<&str>, least: usize) {
    let engine = Engine::start(kind);
    let subject = subject(&engine, runtime).await;
    approve(&run(subject, &Options { only: only(), jobs: 4 }).await, least);
    assert_eq!(engine.containers(), Vec::<String>::new());
}

async fn attack(kind: Kind) {
    let engine = Engine::start(kind);
    let subject = subject(&engine, None).await;
    approve(&hostile::run(subject, only()).await, 15);
    assert_eq!(engine.containers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn docker_passes_every_case_it_declares_the_features_for() {
    judge(Kind::Docker, None, 100).await;
}

/// As root, and once more as an ordinary user, whose Podman then is without root too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn podman_passes_every_case_it_declares_the_features_for() {
    let least = if rustix::process::geteuid().is_root() { 100 } else { 90 };
    judge(Kind::Podman, None, least).await;
}

#[test]
fn podman_without_root_passes_too() {
    ordinary::repeat("podman_passes_every_case_it_declares_the_features_for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_runsc, ignore = "runsc is not installed: run scripts/setup as root")]
async fn docker_with_a_kernel_in_user_space_as_its_runtime_passes_too() {
    judge(Kind::Docker, Some("runsc"), 90).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_runsc, ignore = "runsc is not installed: run scripts/setup as root")]
async fn the_boundary_is_told_by_what_was_seen_and_not_by_a_name() {
    let engine = Engine::start(Kind::Docker);
    let shared = with_runtime(&engine.socket, Some("runc")).probe().await;
    let apart = with_runtime(&engine.socket, Some("runsc")).probe().await;
    assert_eq!((shared.unavailable, apart.unavailable), (None, None));
    assert_eq!(shared.boundary, Boundary::SharedKernel);
    assert_eq!(apart.boundary, Boundary::UserspaceKernel);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_programs_end_in_the_right_outcome_in_docker() {
    attack(Kind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_programs_end_in_the_right_outcome_in_podman() {
    attack(Kind::Podman).await;
}

async fn names_are_kept(kind: Kind) {
    let engine = Engine::start(kind);
    give_image(&engine);
    let before = engine.said(&["image", "inspect", "--format", "{{.Id}}", IMAGE]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("image.tar");
    write_image(&file, probe_bytes(), &[IMAGE]).unwrap();
    let stockade = Stockade::open(
        EngineConfig::at(place.path().join("state")),
        vec![Arc::new(backend(&engine.socket))],
    );
    let image = Image::Oci(HostPath::try_from(file).unwrap());
    let backend = "docker".parse().unwrap();
    let spec = SandboxSpec { backend, image, ..SandboxSpec::default() };
    let ran = stockade.await.unwrap().run(spec, Command::program(["/probe", "exit", "5"])).await;
    assert_eq!(ran.unwrap().outcome().await.ending, Ending::Exited(5));
    assert_eq!(engine.said(&["image", "inspect", "--format", "{{.Id}}", IMAGE]), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_takes_no_name_from_an_image_of_dockers() {
    names_are_kept(Kind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_takes_no_name_from_an_image_of_podmans() {
    names_are_kept(Kind::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_of_earlier_states_of_a_directory_are_removed() {
    let engine = Engine::start(Kind::Docker);
    let (place, root) = (tempfile::tempdir().unwrap(), furnished());
    let config = EngineConfig::at(place.path().join("state"));
    let stockade = Stockade::open(config, vec![Arc::new(backend(&engine.socket))]).await.unwrap();
    for state in ["first", "second", "third"] {
        std::fs::write(root.path().join("state"), state).unwrap();
        let image = Image::Directory(HostPath::try_from(root.path().to_owned()).unwrap());
        let backend = "docker".parse().unwrap();
        let spec = SandboxSpec { backend, image, ..SandboxSpec::default() };
        let ran = stockade.run(spec, Command::program(["/probe", "exit", "0"])).await.unwrap();
        assert_eq!(ran.outcome().await.ending, Ending::Exited(0));
    }
    let made = engine.said(&["images", "--format", "{{.Repository}}"]);
    assert_eq!(
        made.lines().filter(|line| line.ends_with("stockade/directory")).count(),
        1,
        "{made}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_engines_is_told_with_the_remedy_and_nothing_is_left() {
    let engine = Engine::start_with_room(Kind::Docker, 48 << 20);
    let (place, root) = (tempfile::tempdir().unwrap(), furnished());
    // Nothing that could be packed.
    let noise = Program::new("head").args(["-c", "64M", "/dev/urandom"]).output().unwrap().stdout;
    std::fs::write(root.path().join("noise"), noise).unwrap();
    let config = EngineConfig::at(place.path().join("state"));
    let stockade = Stockade::open(config, vec![Arc::new(backend(&engine.socket))]).await.unwrap();
    let image = Image::Directory(HostPath::try_from(root.path().to_owned()).unwrap());
    let backend = "docker".parse().unwrap();
    let spec = SandboxSpec { backend, image, ..SandboxSpec::default() };
    let error = stockade.create(spec).await.unwrap_err();
    assert!(error.to_string().contains("no space left"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("disk")), "{error}");
    assert_eq!(stockade.list().await.unwrap().leases, []);
    assert_eq!(engine.containers(), Vec::<String>::new());
    let made = engine.said(&["images", "--format", "{{.Repository}}"]);
    assert!(!made.contains("stockade/directory"), "{made}");
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
        let stockade = Stockade::open(config, vec![next]).await.unwrap();
        reaped += stockade.reap().await.unwrap().len();
        let until = Instant::now() + SOON;
        loop {
            // Whoever connects removes what was made only to measure. The engine may still be making it, and
            // then the next one does.
            backend(&engine.socket).list().await.unwrap();
            let mut left = engine.containers();
            left.extend(engine.helpers());
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
