//! What is tried on the containers of Docker and of Podman alike, each of the test's own.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engines::{ContainerEngine, EngineKind};
use crate::sample;
use stockade_backends::docker::{Docker, DockerOptions};
use stockade_core::{Backend, Command, Ending, ErrorCode, HostPath, Image, SandboxSpec, Workspace};
use stockade_engine::{Engine as Stockade, EngineConfig};
use stockade_tck::{
    Case, ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, KitOptions, MARK_VARIABLE, OnHost, Report,
    Status, Subject, cases, hostile, probe_bytes, run, write_image,
};

/// Image that a test imports with settings of its own.
const DECLARED_IMAGE: &str = "localhost/stockade-tck/declared:1";
/// Image with the probe in it.
const PROBE_IMAGE: &str = "localhost/stockade-tck/probe:1";

/// Rounds in which an engine is killed: in a sample, and in a long run.
const KILL_ROUNDS: [u64; 2] = [10, 50];
/// The time that C-31 allows, and a margin for a busy machine's own clients.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A directory with the probe in it.
pub fn create_probe_root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let probe = root.path().join("probe");
    std::fs::write(&probe, probe_bytes()).unwrap();
    std::fs::set_permissions(&probe, std::fs::Permissions::from_mode(0o755)).unwrap();
    root
}

fn give_image(engine: &ContainerEngine) {
    engine.import_image(create_probe_root().path(), PROBE_IMAGE);
}

pub fn make_backend(socket: &Path) -> Docker {
    with_runtime(socket, None)
}

pub fn with_runtime(socket: &Path, runtime: Option<&str>) -> Docker {
    let (socket, runtime) = (Some(socket.to_owned()), runtime.map(str::to_owned));
    Docker::new(DockerOptions { socket, runtime }, Arc::new(|_| {}))
}

/// The engine as a subject of the kit, with the process that is killed on it.
async fn make_subject(engine: &ContainerEngine, runtime: Option<&str>) -> Arc<OnHost> {
    give_image(engine);
    let process = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let socket = engine.socket.to_string_lossy();
    let place =
        runtime.map_or(format!("docker:{socket}"), |name| format!("docker:{name}@{socket}"));
    let subject = OnHost::new(Arc::new(with_runtime(&engine.socket, runtime)))
        .with_image(PROBE_IMAGE.parse().unwrap())
        .with_engine_process(process, vec![place]);
    let measured = subject.backend().probe().await;
    assert_eq!(measured.unavailable, None, "{}", engine.log());
    Arc::new(subject)
}

fn read_case_filter() -> Vec<String> {
    std::env::var("STOCKADE_TCK_ONLY").map(|text| vec![text]).unwrap_or_default()
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
    let least = if read_case_filter().is_empty() { least } else { 1 };
    assert!(passed >= least, "only {passed} cases ran");
}

pub async fn judge_engine(kind: EngineKind, least: usize) {
    let engine = ContainerEngine::start(kind);
    let subject = make_subject(&engine, None).await;
    assert_report(&run(subject, &KitOptions { only: read_case_filter(), jobs: 4 }).await, least);
    assert_eq!(engine.list_containers(), Vec::<String>::new());
}

/// Runs the cases that another OCI runtime could fail: isolation, limits, kill and destroy. All cases in a long run.
pub async fn judge_runtime(kind: EngineKind, runtime: &str, least: usize) {
    let engine = ContainerEngine::start(kind);
    let subject = make_subject(&engine, Some(runtime)).await;
    const RUNTIME_CLAUSES: [&str; 5] = ["C-11", "C-16", "C-30", "C-31", "C-32"];
    let changed = |case: &Case| case.isolation || RUNTIME_CLAUSES.contains(&case.clause);
    let names = cases::all().into_iter().filter(changed).map(|case| case.name.to_owned()).collect();
    let only = sample::pick_rounds([&names, &Vec::new()]).clone();
    assert_report(&run(subject, &KitOptions { only, jobs: 4 }).await, least);
    assert_eq!(engine.list_containers(), Vec::<String>::new());
}

pub async fn run_hostile_corpus(kind: EngineKind) {
    let engine = ContainerEngine::start(kind);
    let subject = make_subject(&engine, None).await;
    assert_report(&hostile::run(subject, read_case_filter()).await, 15);
    assert_eq!(engine.list_containers(), Vec::<String>::new());
}

pub async fn names_are_kept(kind: EngineKind) {
    let engine = ContainerEngine::start(kind);
    give_image(&engine);
    let before =
        engine.read_client_output(&["image", "inspect", "--format", "{{.Id}}", PROBE_IMAGE]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("image.tar");
    write_image(&file, probe_bytes(), &[PROBE_IMAGE]).unwrap();
    let stockade = Stockade::open(
        EngineConfig::at(place.path().join("state")),
        vec![Arc::new(make_backend(&engine.socket))],
    );
    let image = Image::Oci(HostPath::try_from(file).unwrap());
    let backend = "docker".parse().unwrap();
    let spec = SandboxSpec { backend, image, ..SandboxSpec::default() };
    let ran = stockade.await.unwrap().run(spec, Command::program(["/probe", "exit", "5"])).await;
    assert_eq!(ran.unwrap().outcome().await.ending, Ending::Exited(5));
    assert_eq!(
        engine.read_client_output(&["image", "inspect", "--format", "{{.Id}}", PROBE_IMAGE]),
        before
    );
}

/// Kills a Stockade that builds and removes, at instants that are spread over all it does, and looks
/// with the engine's own client for what is left when the next one has opened.
pub async fn kill_many(kind: EngineKind) {
    let engine = ContainerEngine::start(kind);
    let (state, workspace) = (tempfile::tempdir().unwrap(), create_probe_root());
    let mark = format!("killed{}{kind:?}", std::process::id());
    let (kills, whole) = (sample::pick_rounds(KILL_ROUNDS), KILL_ROUNDS[1]);
    let mut reaped = 0;
    // A short run takes every so many of the instants that a long one takes all of.
    for round in (0..kills).map(|round| round * whole / kills) {
        let mut child = Program::new(env!("CARGO_BIN_EXE_stockade-tck-engine"))
            .args([&format!("docker:{}", engine.socket.display()), "churn"])
            .env(ENGINE_STATE, state.path().join("state"))
            .env(ENGINE_WORKSPACE, workspace.path())
            .env(MARK_VARIABLE, &mark)
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
        let next: Arc<dyn Backend> = Arc::new(make_backend(&engine.socket));
        let stockade = Stockade::open(config, vec![next]).await.unwrap();
        reaped += stockade.reap().await.unwrap().len();
        let until = Instant::now() + CLEANUP_TIMEOUT;
        loop {
            // Every client that connects removes what was made only to measure. The engine may still be
            // making it, and then the next client does.
            make_backend(&engine.socket).list().await.unwrap();
            let mut left = engine.list_containers();
            left.extend(engine.list_helpers());
            left.extend(HostObserver::default().search(&[&mark]));
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "after kill {round}: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    println!("{kills} kills: nothing left; {reaped} were reaped by the next engine");
}

/// An engine with an image of this directory and these instructions, and a Stockade on it.
pub async fn with_image(
    kind: EngineKind,
    root: &Path,
    changes: &[&str],
) -> (ContainerEngine, Stockade, tempfile::TempDir) {
    let engine = ContainerEngine::start(kind);
    let place = tempfile::tempdir().unwrap();
    let tar = place.path().join("root.tar");
    let packed = Program::new("tar").arg("-C").arg(root).arg("-cf").arg(&tar).arg(".").status();
    assert!(packed.unwrap().success());
    let changes: Vec<_> = changes.iter().flat_map(|change| ["--change", change]).collect();
    engine.read_client_output(
        &[&["import"], &changes[..], &[tar.to_str().unwrap(), DECLARED_IMAGE]].concat(),
    );
    let config = EngineConfig::at(place.path().join("state"));
    let stockade =
        Stockade::open(config, vec![Arc::new(make_backend(&engine.socket))]).await.unwrap();
    (engine, stockade, place)
}

/// A sandbox of that image.
pub fn of_declared() -> SandboxSpec {
    let image = Image::Named(DECLARED_IMAGE.parse().unwrap());
    SandboxSpec { backend: "docker".parse().unwrap(), image, ..SandboxSpec::default() }
}

/// What an image declares beside its files has no effect.
pub async fn declares_in_vain(kind: EngineKind) {
    let root = create_probe_root();
    std::fs::create_dir(root.path().join("data")).unwrap();
    let changes = [
        "VOLUME /data",
        "VOLUME /srv/db",
        "HEALTHCHECK --interval=1s CMD [\"/probe\", \"exit\", \"0\"]",
        "ENTRYPOINT [\"/probe\", \"exit\", \"9\"]",
        "USER 4242",
        "ENV LD_PRELOAD=/evil.so",
        "LABEL stockade.owner=somebody",
    ];
    // Podman knows fewer instructions here.
    let known = |change: &&&str| kind == EngineKind::Docker || !change.starts_with("HEALTHCHECK");
    let changes: Vec<_> = changes.iter().filter(known).copied().collect();
    let (engine, stockade, _place) = with_image(kind, root.path(), &changes).await;
    let id = stockade.create(of_declared()).await.unwrap();
    let name = format!("stockade-{id}");
    let seen = engine.read_client_output(&[
        "inspect",
        "--format",
        "{{json .Mounts}} {{json .Config}}",
        &name,
    ]);
    assert!(!seen.contains("\"volume\""), "{seen}");
    if kind == EngineKind::Docker {
        assert!(seen.contains("\"Healthcheck\":{\"Test\":[\"NONE\"]"), "{seen}");
        assert!(seen.contains("\"StopSignal\":\"SIGKILL\""), "{seen}");
    }
    assert_eq!(engine.read_client_output(&["volume", "ls", "-q"]), "");
    for path in ["/data/file", "/srv/db/file"] {
        let write = Command::program(["/probe", "write", path, "x"]);
        stockade.exec(&id, write).await.unwrap().outcome().await;
        let sandbox = stockade.sandbox(&id).unwrap();
        let found = sandbox.files().unwrap().stat(&path.parse().unwrap()).await;
        assert_eq!(found.unwrap_err().code(), ErrorCode::NotFound, "{path}");
    }
    let ran = stockade.exec(&id, Command::program(["/probe", "exit", "5"])).await.unwrap();
    assert_eq!(ran.outcome().await.ending, Ending::Exited(5));
    stockade.destroy(&id).await.unwrap();
    assert_eq!(engine.read_client_output(&["volume", "ls", "-q"]), "");
    assert_eq!(engine.list_containers(), Vec::<String>::new());
}

/// A link leads no mount into another one, and the agent's nowhere; others do no harm.
pub async fn links_lead_nowhere(kind: EngineKind) {
    let root = create_probe_root();
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, root.path().join(at)).unwrap();
    std::fs::create_dir_all(root.path().join("private/var/tmp")).unwrap();
    link("private/var", "var");
    let (engine, stockade, _place) = with_image(kind, root.path(), &[]).await;
    let ran = stockade.run(of_declared(), Command::program(["/probe", "exit", "5"])).await;
    assert_eq!(ran.unwrap().outcome().await.ending, Ending::Exited(5));
    drop((engine, stockade));

    std::fs::remove_dir(root.path().join("private/var/tmp")).unwrap();
    link("/workspace/made-by-a-link", "private/var/tmp");
    let (engine, stockade, _place) = with_image(kind, root.path(), &[]).await;
    let workspace = create_probe_root();
    let local = HostPath::try_from(workspace.path().to_owned()).unwrap();
    let spec = SandboxSpec { workspace: Workspace::Local(local), ..of_declared() };
    let error = stockade.create(spec).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Denied, "{error}");
    assert!(error.to_string().contains("link at `/var/tmp`"), "{error}");
    assert!(!workspace.path().join("made-by-a-link").exists());
    assert_eq!(engine.list_containers(), Vec::<String>::new());
    drop((engine, stockade));

    // In place of the agent, with a volume behind it.
    std::fs::remove_file(root.path().join("private/var/tmp")).unwrap();
    std::fs::create_dir(root.path().join("hidden")).unwrap();
    std::fs::copy(root.path().join("probe"), root.path().join("hidden/agent")).unwrap();
    link("/hidden/agent", ".stockade-agent");
    let (engine, stockade, _place) = with_image(kind, root.path(), &["VOLUME /hidden"]).await;
    let error = stockade.create(of_declared()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Denied, "{error}");
    assert_eq!(engine.list_containers(), Vec::<String>::new());
    assert_eq!(engine.read_client_output(&["volume", "ls", "-q"]), "");
}
