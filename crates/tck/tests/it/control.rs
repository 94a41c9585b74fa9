//! The kit on a backend without walls: every case about walls has to fail there, or it proves nothing.

use std::sync::Arc;

use stockade_tck::control::{Control, EXCUSED_CASES};
use stockade_tck::{CaseReport, KitOptions, Status, cases, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_walls_the_cases_about_walls_fail_and_no_others() {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let subject = Control::default().with_engine_process(engine);
    let report = run(Arc::new(subject), &KitOptions::default()).await;
    println!("{}", report.table());
    let isolation = |case: &CaseReport| {
        cases::all().iter().any(|known| known.name == case.name && known.isolation)
    };
    let excused = |case: &CaseReport| EXCUSED_CASES.iter().any(|(name, _)| *name == case.name);
    let mut wrong = Vec::new();
    for case in &report.cases {
        let failed = matches!(case.status, Status::Failed(_));
        if failed != (isolation(case) || excused(case)) {
            wrong.push((case.name, &case.status));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
