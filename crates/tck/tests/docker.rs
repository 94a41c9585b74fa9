//! The whole kit on containers: of a Docker engine and of Podman behind the same interface, both of the
//! test's own.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

mod engines;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use engines::{Engine, Kind};
use stockade_backends::docker::{Docker, Options as DockerOptions};
use stockade_tck::{OnHost, Options, Status, Subject, probe_bytes, run};

const IMAGE: &str = "localhost/stockade-tck/probe:1";

fn give_image(engine: &Engine) {
    let root = tempfile::tempdir().unwrap();
    let probe = root.path().join("probe");
    std::fs::write(&probe, probe_bytes()).unwrap();
    std::fs::set_permissions(&probe, std::fs::Permissions::from_mode(0o755)).unwrap();
    engine.import(root.path(), IMAGE);
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
    let report = run(Arc::new(subject), &Options { only, jobs: 2 }).await;
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
