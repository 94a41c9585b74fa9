//! The whole kit on the wasm backend: in this process, and with workers inside native walls.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

use std::path::Path;
use std::sync::Arc;

use stockade_backends::wasm::{Settings, Wasm, Worker};
use stockade_core::{Command, Ending, HostPath, Image};
use stockade_engine::{Engine, EngineConfig};
use stockade_tck::{OnHost, Options, Report, Status, Subject, hostile, run, wasi_calls_bytes};

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

fn here() -> OnHost {
    OnHost::of_wasm(Arc::new(Wasm::default())).unwrap().leaving_nothing_in(std::env::temp_dir())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_wasm, ignore = "skipped: no compiler for WebAssembly; scripts/setup installs it")]
async fn webassembly_that_means_harm_ends_in_the_right_outcome_and_leaves_nothing() {
    for subject in [here(), isolated()] {
        let report = hostile::run_wasm(Arc::new(subject), Vec::new()).await;
        told(&report);
        assert_eq!(report.failures(), Vec::<&str>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(no_wasm, ignore = "skipped: no compiler for WebAssembly; scripts/setup installs it")]
async fn every_call_of_wasi_comes_out_as_it_has_to() {
    for subject in [here(), isolated()] {
        let state = tempfile::tempdir().unwrap();
        let module = state.path().join("calls.wasm");
        std::fs::write(&module, wasi_calls_bytes()).unwrap();
        let mut spec = subject.spec();
        spec.image = Image::Wasm(HostPath::try_from(module).unwrap());
        spec.env.insert("GIVEN".parse().unwrap(), "value".into());
        let config = EngineConfig::at(state.path().join("state"));
        let engine = Engine::open(config, vec![subject.backend()]).await.unwrap();
        let command = Command::program(["calls", "one", "two words"]);
        let (execution, mut output) = engine.run_followed(spec, command).await.unwrap();
        while let Some(event) = output.next().await {
            println!("{event:?}");
        }
        assert_eq!(execution.outcome().await.ending, Ending::Exited(77));
        engine.close().await.unwrap();
    }
}
