//! The whole kit on the landlock backend: for the user who runs the test, also where user namespaces are
//! forbidden.

use std::process::Command;
use std::sync::Arc;

use crate::ordinary;
use stockade_backends::landlock::Landlock;
use stockade_backends::native::Native;
use stockade_core::{Backend, BackendName, SandboxSpec};
use stockade_engine::{Engine, EngineConfig};
use stockade_tck::{KitOptions, OnHost, Status, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_landlock_backend_passes_every_case_it_declares_the_features_for() {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let subject = OnHost::new(Arc::new(Landlock::new()))
        .without_namespaces()
        .leaving_nothing_in(std::env::temp_dir())
        .with_engine_process(engine, vec!["landlock".into()]);
    let report = run(Arc::new(subject), &KitOptions::default()).await;
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    assert!(passed > 80, "only {passed} cases ran");
}

/// Environment variable that tells this test that it runs where user namespaces are forbidden.
const NO_NAMESPACES_VARIABLE: &str = "STOCKADE_TEST_NO_USER_NAMESPACES";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn where_user_namespaces_are_forbidden_native_says_so_and_landlock_is_taken() {
    if std::env::var_os(NO_NAMESPACES_VARIABLE).is_none() {
        return again_without_user_namespaces();
    }
    let native = Native::new().probe().await;
    let (reason, remedy) = native.unavailable.unwrap_or_default();
    assert!(reason.contains("namespace"), "{reason}");
    assert!(remedy.contains("max_user_namespaces") || remedy.contains("landlock"), "{remedy}");
    let state = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(Native::new()), Arc::new(Landlock::new())];
    let config = EngineConfig::at(state.path().join("state"));
    let engine = Engine::open(config, backends).await.unwrap_or_else(|error| panic!("{error}"));
    let selection = engine.explain(&SandboxSpec::default()).await;
    assert_eq!(selection.chosen, Some(BackendName::literal("landlock")), "{selection:?}");
    let command = stockade_core::Command::shell("exit 7");
    let ran = engine.run(SandboxSpec::default(), command).await;
    let outcome = ran.unwrap_or_else(|error| panic!("{error}")).outcome().await;
    assert_eq!(outcome.ending, stockade_core::Ending::Exited(7));
}

/// Runs this test once more, inside a user namespace in which no further one may be made.
fn again_without_user_namespaces() {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  echo 0 > /proc/sys/user/max_mnt_namespaces && exec \"$@\"";
    let test = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let name = "landlock::where_user_namespaces_are_forbidden_native_says_so_and_landlock_is_taken";
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(test)
        .args(["--exact", name, "--nocapture"])
        .env(NO_NAMESPACES_VARIABLE, "1")
        .output()
        .unwrap_or_else(|error| panic!("unshare: {error}"));
    let text = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}

#[test]
fn the_landlock_backend_passes_for_an_ordinary_user_too() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "the_landlock_backend_passes_every_case_it_declares_the_features_for",
    );
}
