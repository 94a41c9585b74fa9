//! The whole kit on the microvm backend, emulated, with one machine that all others are copies of. Where no
//! emulator, kernel or `mkfs.erofs` is installed each test is reported as ignored; not so in CI, where it
//! then fails.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

mod machines;

use std::sync::Arc;

use stockade_tck::{Options, Report, Status, hostile, run};

fn judge(report: &Report, least: usize) {
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) | Status::Skipped(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    assert!(passed >= least, "only {passed} cases ran");
}

fn only() -> Vec<String> {
    std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_microvm, ignore = "no virtual machine can be made: run scripts/setup as root")]
async fn the_microvm_backend_passes_every_case_it_declares_the_features_for() {
    let least = if only().is_empty() { 80 } else { 1 };
    let options = Options { only: only(), ..Options::default() };
    judge(&run(Arc::new(machines::subject()), &options).await, least);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_microvm, ignore = "no virtual machine can be made: run scripts/setup as root")]
async fn hostile_programs_end_in_the_right_outcome_on_microvm_too() {
    judge(&hostile::run(Arc::new(machines::subject()), only()).await, 1);
}
