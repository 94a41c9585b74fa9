//! The whole kit on the wasm backend: in this process, and with workers inside native walls.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

use std::path::Path;
use std::sync::Arc;

use stockade_backends::wasm::{Settings, Wasm, Worker};
use stockade_tck::{OnHost, Options, Report, Status, run};

fn told(report: &Report) {
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) | Status::Skipped(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_wasm, ignore = "skipped: no compiler for WebAssembly; scripts/setup installs it")]
async fn the_wasm_backend_passes_every_case_it_declares_the_features_for() {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let subject = OnHost::of_wasm(Arc::new(Wasm::default()))
        .unwrap()
        .leaving_nothing_in(std::env::temp_dir())
        .with_engine_process(engine, vec!["wasm".into()]);
    let report = run(Arc::new(subject), &Options::default()).await;
    told(&report);
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    assert!(passed > 100, "only {passed} cases ran");
}

fn isolated() -> OnHost {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine");
    let worker = Worker { program: engine.into(), role: vec!["wasm-worker".into()] };
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wasm-cache");
    OnHost::of_wasm(Arc::new(Wasm::new(Settings::default().cached(&cache).isolated(worker))))
        .unwrap()
        .leaving_nothing_in(std::env::temp_dir())
        .with_engine_process(engine.into(), vec!["wasm-isolated".into()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_wasm, ignore = "skipped: no compiler for WebAssembly; scripts/setup installs it")]
async fn the_same_holds_where_each_program_has_a_worker_inside_native_walls() {
    let report = run(Arc::new(isolated()), &Options::default()).await;
    told(&report);
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    assert!(passed > 100, "only {passed} cases ran");
}
