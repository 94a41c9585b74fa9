//! The whole kit on the gvisor backend, the hostile corpus, and what happens when its runtime fails.
//! Where no `runsc` is installed each test is reported as ignored; not so in CI, where it then fails.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

use std::sync::Arc;

use stockade_backends::gvisor::Gvisor;
use stockade_tck::{OnHost, Options, Report, Status, hostile, run};

fn subject() -> OnHost {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    OnHost::new(Arc::new(Gvisor::new()))
        .leaving_nothing_in(std::env::temp_dir())
        .with_engine_process(engine, vec!["gvisor".into()])
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_runsc, ignore = "runsc is not installed: run scripts/setup as root")]
async fn the_gvisor_backend_passes_every_case_it_declares_the_features_for() {
    let only = std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only]);
    let least = if only.is_empty() { 100 } else { 1 };
    judge(&run(Arc::new(subject()), &Options { only, ..Options::default() }).await, least);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_runsc, ignore = "runsc is not installed: run scripts/setup as root")]
async fn hostile_programs_end_in_the_right_outcome_on_gvisor_too() {
    let only = std::env::var("STOCKADE_TCK_ONLY").map_or(Vec::new(), |only| vec![only]);
    judge(&hostile::run(Arc::new(subject()), only).await, 1);
}
