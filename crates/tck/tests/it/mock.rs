//! The whole kit on the mock backend: everything above the walls keeps the contract.

use std::sync::Arc;

use stockade_tck::simulated::Simulated;
use stockade_tck::{KitOptions, Report, Status, run};

async fn run_kit_on_mock() -> Report {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let subject = Simulated::default().with_engine_process(engine);
    run(Arc::new(subject), &KitOptions::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_mock_passes_every_case_it_declares_the_features_for() {
    let report = run_kit_on_mock().await;
    println!("{}", report.table());
    assert_eq!(report.failures(), Vec::<&str>::new());
    let skipped = |case: &&stockade_tck::CaseReport| matches!(case.status, Status::Skipped(_));
    for case in report.cases.iter().filter(skipped) {
        let Status::Skipped(reason) = &case.status else { continue };
        assert!(reason.starts_with("needs "), "{}: {reason}", case.name);
    }
}
