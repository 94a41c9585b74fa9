//! The hostile corpus on the native backend: as the user who runs the test, and, where that is root, as an
//! ordinary user too.

use std::sync::Arc;

use crate::ordinary;
use stockade_backends::native::Native;
use stockade_tck::{OnHost, Status, hostile};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_programs_end_in_the_right_outcome_and_leave_nothing() {
    let only = std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only]);
    let report = hostile::run(Arc::new(OnHost::new(Arc::new(Native::new()))), only).await;
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) | Status::Skipped(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
}

#[test]
fn hostile_programs_fare_no_better_under_an_ordinary_user() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "hostile_programs_end_in_the_right_outcome_and_leave_nothing",
    );
}
