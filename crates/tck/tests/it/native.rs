//! The whole kit on the native backend: real walls on this host, for the user who runs the test.

use std::sync::Arc;

use crate::ordinary;
use stockade_backends::native::Native;
use stockade_tck::{KitOptions, OnHost, Status, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_native_backend_passes_every_case_it_declares_the_features_for() {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let subject =
        OnHost::new(Arc::new(Native::new())).with_engine_process(engine, vec!["native".into()]);
    let report = run(Arc::new(subject), &KitOptions::default()).await;
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
}

#[test]
fn the_native_backend_passes_for_an_ordinary_user_too() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "the_native_backend_passes_every_case_it_declares_the_features_for",
    );
}
