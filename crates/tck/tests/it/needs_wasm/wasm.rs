//! The whole kit on the wasm backend: in this process, and with workers inside native walls.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::ordinary;
use stockade_backends::wasm::{Wasm, WasmSettings, Worker};
use stockade_core::{Bytes, Command, Ending, HostPath, Image, Workspace};
use stockade_engine::{Engine, EngineConfig, OutputEvent};
use stockade_tck::{KitOptions, OnHost, Report, Status, Subject, hostile, run, wasi_calls_bytes};

fn count_passed(report: &Report) -> usize {
    report.cases.iter().filter(|case| case.status == Status::Passed).count()
}

fn print_report(report: &Report) {
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) | Status::Skipped(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_wasm_backend_passes_every_case_it_declares_the_features_for() {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let subject = OnHost::of_wasm(Arc::new(Wasm::default()))
        .unwrap()
        .leaving_nothing_in("/tmp".into())
        .with_engine_process(engine, vec!["wasm".into()]);
    let report = run(Arc::new(subject), &KitOptions::default()).await;
    print_report(&report);
    assert_eq!(report.failures(), Vec::<&str>::new());
    assert!(count_passed(&report) > 100, "only {} cases ran", count_passed(&report));
}

fn isolated_subject() -> OnHost {
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine");
    let worker = Worker { program: engine.into(), role: vec!["wasm-worker".into()] };
    // The cache is this user's own: a user does not use the key of another.
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let own = std::fs::metadata(kept).unwrap().uid() == rustix::process::geteuid().as_raw();
    let cache = if own { kept.join("wasm-cache") } else { std::env::temp_dir().join("wasm-cache") };
    OnHost::of_wasm(Arc::new(Wasm::new(WasmSettings::default().cached(&cache).isolated(worker))))
        .unwrap()
        .leaving_nothing_in("/tmp".into())
        .with_engine_process(engine.into(), vec!["wasm-isolated".into()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_holds_where_each_program_has_a_worker_inside_native_walls() {
    let report = run(Arc::new(isolated_subject()), &KitOptions::default()).await;
    print_report(&report);
    assert_eq!(report.failures(), Vec::<&str>::new());
    assert!(count_passed(&report) > 100, "only {} cases ran", count_passed(&report));
}

fn in_process_subject() -> OnHost {
    OnHost::of_wasm(Arc::new(Wasm::default())).unwrap().leaving_nothing_in("/tmp".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn webassembly_that_means_harm_ends_in_the_right_outcome_and_leaves_nothing() {
    for subject in [in_process_subject(), isolated_subject()] {
        let report = hostile::run_wasm(Arc::new(subject), Vec::new()).await;
        print_report(&report);
        assert_eq!(report.failures(), Vec::<&str>::new());
        assert!(count_passed(&report) >= 12, "only {} cases ran", count_passed(&report));
    }
}

/// What a program that uses files says, with so much disk and so many open files, in a workspace where
/// there is a FIFO that no other process has open.
async fn run_files_program(subject: &OnHost, program: &Path, args: &[&str]) -> String {
    let state = tempfile::tempdir().unwrap();
    let work = tempfile::Builder::new().prefix("stockade-work-").tempdir().unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        work.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let mut spec = subject.spec();
    spec.image = Image::Wasm(HostPath::try_from(program.to_owned()).unwrap());
    spec.workspace = Workspace::Local(HostPath::try_from(work.path().to_owned()).unwrap());
    // What a loader would act on, and say a lot about, if this were the worker's own environment.
    spec.env.insert("LD_DEBUG".parse().unwrap(), "all".into());
    spec.limits.disk = Some(Bytes::mib(1));
    spec.limits.open_files = Some(40);
    let config = EngineConfig::at(state.path().join("state"));
    let engine = Engine::open(config, vec![subject.backend()]).await.unwrap();
    let name = program.file_stem().unwrap().to_str().unwrap();
    let command = Command::program([name].iter().chain(args).copied());
    let (execution, mut output) = engine.run_followed(spec, command).await.unwrap();
    let mut said = Vec::new();
    while let Some(event) = output.next().await {
        if let OutputEvent::Output { data, .. } = event {
            said.extend_from_slice(&data);
        }
    }
    assert_eq!(execution.outcome().await.ending, Ending::Exited(0), "{args:?}");
    engine.close().await.unwrap();
    String::from_utf8(said).unwrap()
}

/// The same program as a module of preview 1 and as a component of preview 2.
struct WasiPrograms {
    component: tempfile::NamedTempFile,
}

impl WasiPrograms {
    /// Puts the module behind the adapter from preview 1 to preview 2.
    fn new() -> Self {
        use wasi_preview1_component_adapter_provider::{
            WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
        };
        let module = std::fs::read(env!("STOCKADE_WASI_FILES")).unwrap();
        let (name, adapter) =
            (WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER);
        let encoder = wit_component::ComponentEncoder::default().module(&module).unwrap();
        let component = encoder.adapter(name, adapter).unwrap().encode().unwrap();
        let file = tempfile::Builder::new().suffix(".wasm").tempfile().unwrap();
        std::fs::write(file.path(), component).unwrap();
        Self { component: file }
    }

    fn list_paths(&self) -> [&Path; 2] {
        [Path::new(env!("STOCKADE_WASI_FILES")), self.component.path()]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files_and_their_limits_are_the_same_for_a_module_and_a_component() {
    let programs = WasiPrograms::new();
    for subject in [in_process_subject(), isolated_subject()] {
        for program in programs.list_paths() {
            assert_eq!(run_files_program(&subject, program, &["use"]).await, "use 0\n");
            let (written, room) =
                parse_count(&run_files_program(&subject, program, &["fill"]).await, "fill");
            assert!(((1 << 20) - (128 << 10)..=1 << 20).contains(&written), "{written}");
            assert_eq!(room, "No space left on device");
            let (made, room) =
                parse_count(&run_files_program(&subject, program, &["empty"]).await, "empty");
            assert_eq!((made, room.as_str()), (256, "No space left on device"));
            let (held, _) =
                parse_count(&run_files_program(&subject, program, &["hold"]).await, "hold");
            assert!((30..40).contains(&held), "{held}");
        }
    }
}

/// The number a line tells, and why it was not more.
fn parse_count(line: &str, verb: &str) -> (u64, String) {
    let rest = line.trim_end().strip_prefix(verb).unwrap().trim_start();
    let (number, why) = rest.split_once(' ').unwrap();
    (number.parse().unwrap(), why.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pipe_in_the_workspace_is_refused_and_holds_nobody_up() {
    let programs = WasiPrograms::new();
    for subject in [in_process_subject(), isolated_subject()] {
        for program in programs.list_paths() {
            for args in [&["pipe"][..], &["pipe", "to-write"]] {
                assert_eq!(
                    run_files_program(&subject, program, args).await,
                    "pipe 1 Permission denied\n"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_worker_wrote_counts_though_it_was_killed() {
    let subject = isolated_subject();
    let state = tempfile::tempdir().unwrap();
    let module = state.path().join("prog.wasm");
    std::fs::write(&module, FILLS_AND_SPINS).unwrap();
    let mut spec = subject.spec();
    spec.image = Image::Wasm(HostPath::try_from(module).unwrap());
    spec.limits.disk = Some(Bytes(100 << 10));
    let config = EngineConfig::at(state.path().join("state"));
    let engine = Engine::open(config, vec![subject.backend()]).await.unwrap();
    let id = engine.create(spec).await.unwrap();
    let mut said = Vec::new();
    for _ in 0..2 {
        let command = Command::program(["prog"]);
        let (execution, mut output) = engine.exec_followed(&id, command).await.unwrap();
        // It says how its write came out, and then waits to be killed.
        match output.next().await {
            Some(OutputEvent::Output { data, .. }) => said.push(data.to_vec()),
            other => panic!("{other:?}"),
        }
        execution.cancel();
        assert_eq!(execution.outcome().await.ending, Ending::Cancelled);
    }
    // The first had room for its write, and the second found that used up: no space is 51.
    assert_eq!(said, [[0], [51]]);
    engine.destroy(&id).await.unwrap();
    engine.close().await.unwrap();
}

/// Writes 64 KiB to a file, says by one byte how that came out, and goes on for ever.
const FILLS_AND_SPINS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (memory (export "memory") 4)
    (data (i32.const 0) "\00\00\01\00\00\00\01\00")
    (data (i32.const 16) "\20\00\00\00\01\00\00\00")
    (data (i32.const 64) "file")
    (func (export "_start")
        (drop (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 1)
            (i64.const 64) (i64.const 64) (i32.const 0) (i32.const 128)))
        (i32.store8 (i32.const 32)
            (call $write (i32.load (i32.const 128)) (i32.const 0) (i32.const 1) (i32.const 132)))
        (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 132)))
        (loop (br 0))))"#;

#[test]
fn an_ordinary_user_has_the_same_in_this_process() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "the_wasm_backend_passes_every_case_it_declares_the_features_for",
    );
}

#[test]
fn an_ordinary_user_has_the_same_with_workers() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "the_same_holds_where_each_program_has_a_worker_inside_native_walls",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_call_of_wasi_comes_out_as_it_has_to() {
    for subject in [in_process_subject(), isolated_subject()] {
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
