//! The whole kit on the containers of a Docker engine of the test's own.

use std::path::Path;
use std::process::Command as Program;
use std::sync::Arc;

use stockade_core::{Backend, Command, Ending, ErrorCode, HostPath, Image, SandboxSpec, Workspace};
use stockade_engine::{Engine as Stockade, EngineConfig};

use crate::containers::{
    create_probe_root, declares_in_vain, judge_engine, kill_many, links_lead_nowhere, make_backend,
    names_are_kept, of_declared, run_hostile_corpus, with_image,
};
use crate::engines::{ContainerEngine, EngineKind};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn docker_passes_every_case_it_declares_the_features_for() {
    judge_engine(EngineKind::Docker, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_programs_end_in_the_right_outcome_in_docker() {
    run_hostile_corpus(EngineKind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_takes_no_name_from_an_image_of_dockers() {
    names_are_kept(EngineKind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_of_earlier_states_of_a_directory_are_removed() {
    let engine = ContainerEngine::start(EngineKind::Docker);
    let (place, root) = (tempfile::tempdir().unwrap(), create_probe_root());
    let config = EngineConfig::at(place.path().join("state"));
    let stockade =
        Stockade::open(config, vec![Arc::new(make_backend(&engine.socket))]).await.unwrap();
    for state in ["first", "second", "third"] {
        std::fs::write(root.path().join("state"), state).unwrap();
        let image = Image::Directory(HostPath::try_from(root.path().to_owned()).unwrap());
        let backend = "docker".parse().unwrap();
        let spec = SandboxSpec { backend, image, ..SandboxSpec::default() };
        let ran = stockade.run(spec, Command::program(["/probe", "exit", "0"])).await.unwrap();
        assert_eq!(ran.outcome().await.ending, Ending::Exited(0));
    }
    let made = engine.read_client_output(&["images", "--format", "{{.Repository}}"]);
    assert_eq!(
        made.lines().filter(|line| line.ends_with("stockade/directory")).count(),
        1,
        "{made}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_engines_is_told_with_the_remedy_and_nothing_is_left() {
    let engine = ContainerEngine::start_with_room(EngineKind::Docker, 48 << 20);
    let (place, root) = (tempfile::tempdir().unwrap(), create_probe_root());
    // Nothing that could be packed.
    let noise = Program::new("head").args(["-c", "64M", "/dev/urandom"]).output().unwrap().stdout;
    std::fs::write(root.path().join("noise"), noise).unwrap();
    let config = EngineConfig::at(place.path().join("state"));
    let stockade =
        Stockade::open(config, vec![Arc::new(make_backend(&engine.socket))]).await.unwrap();
    let image = Image::Directory(HostPath::try_from(root.path().to_owned()).unwrap());
    let backend = "docker".parse().unwrap();
    let spec = SandboxSpec { backend, image, ..SandboxSpec::default() };
    let error = stockade.create(spec).await.unwrap_err();
    assert!(error.to_string().contains("no space left"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("disk")), "{error}");
    assert_eq!(stockade.list().await.unwrap().leases, []);
    assert_eq!(engine.list_containers(), Vec::<String>::new());
    let made = engine.read_client_output(&["images", "--format", "{{.Repository}}"]);
    assert!(!made.contains("stockade/directory"), "{made}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_in_docker_of_engines_killed_at_any_instant() {
    kill_many(EngineKind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_goes_away_is_named_and_its_containers_are_reaped_when_it_is_back() {
    let mut engine = ContainerEngine::start(EngineKind::Docker);
    let (state, workspace) = (tempfile::tempdir().unwrap(), create_probe_root());
    let open = |socket: &Path| {
        let backend: Arc<dyn Backend> = Arc::new(make_backend(socket));
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
    // While the engine is away, what it left does not block opening.
    drop(open(&engine.socket).await.unwrap());
    engine.restart();
    let again = open(&engine.socket).await.unwrap();
    assert_eq!(again.list().await.unwrap().leases, []);
    assert_eq!(engine.list_containers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_image_declares_has_no_effect_in_docker() {
    declares_in_vain(EngineKind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_in_an_image_lead_no_mount_elsewhere_in_docker() {
    links_lead_nowhere(EngineKind::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_the_hosts_that_names_the_sandbox_outlives_it() {
    let (_engine, stockade, _place) =
        with_image(EngineKind::Docker, create_probe_root().path(), &[]).await;
    let id = stockade.create(of_declared()).await.unwrap();
    let mut bystander = Program::new("sh")
        .args(["-c", "read line", &format!("stockade-{id}")])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    stockade.destroy(&id).await.unwrap();
    assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
    drop(bystander.stdin.take());
    assert_eq!(bystander.wait().unwrap().code(), Some(1), "the end of its input ends it");
}
