//! The wasm backend through the engine and by its own interfaces: modules and components, text and bytes, the
//! cache, calls, and modules that were tampered with.

#![cfg(feature = "wasm")]
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use stockade_backends::wasm::call::Val;
use stockade_backends::wasm::{Wasm, WasmSettings};
use stockade_core::*;
use stockade_engine::*;

/// A program that prints `hi` and exits with 5.
const PRINT_PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\03\00\00\00")
    (data (i32.const 16) "hi\0a")
    (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $exit (i32.const 5))))"#;

/// A command component that says whether it succeeded.
fn component(result: u32) -> String {
    format!(
        r#"(component
            (core module $m (func (export "run") (result i32) (i32.const {result})))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $r (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $r)))"#
    )
}

/// State in a memory, a global that is not exported, and a table.
const COUNTER_MODULE: &str = r#"(module
    (memory 1)
    (global $seen (mut i32) (i32.const 0))
    (table $t 2 funcref)
    (elem (i32.const 0) $one)
    (type $f (func (result i32)))
    (func $one (type $f) (i32.const 1))
    (func $two (type $f) (i32.const 2))
    (elem declare func $two)
    (func (export "next") (result i32)
        (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
        (i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (i32.const 10)))
        (i32.add (global.get $seen) (i32.load (i32.const 64))))
    (func (export "swap") (table.set $t (i32.const 0) (ref.func $two)))
    (func (export "step") (result i32) (call_indirect $t (type $f) (i32.const 0)))
    (func (export "grow") (result i32) (memory.grow (i32.const 1)))
    (func (export "add") (param i32 i64 f64) (result f64)
        (f64.add (local.get 2)
            (f64.add (f64.convert_i32_s (local.get 0)) (f64.convert_i64_s (local.get 1)))))
    (func (export "trap") (unreachable))
    (func (export "spin") (loop (br 0))))"#;

/// A component with a function of text and lists.
const GREETER_COMPONENT: &str = r#"(component
    (core module $m
        (memory (export "memory") 1)
        (global $at (mut i32) (i32.const 1024))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32)
            (local $old i32)
            (local.set $old (global.get $at))
            (global.set $at (i32.add (global.get $at)
                (i32.and (i32.add (local.get 3) (i32.const 7)) (i32.const -8))))
            (local.get $old))
        (func (export "sum") (param i32 i32) (result i64)
            (local $total i64)
            (block (loop
                (br_if 1 (i32.eqz (local.get 1)))
                (local.set $total (i64.add (local.get $total) (i64.load32_u (local.get 0))))
                (local.set 0 (i32.add (local.get 0) (i32.const 4)))
                (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
                (br 0)))
            (local.get $total))
        (func (export "same") (param i32 i32) (result i32)
            (i32.store (i32.const 0) (local.get 0))
            (i32.store (i32.const 4) (local.get 1))
            (i32.const 0)))
    (core instance $i (instantiate $m))
    (func $sum (param "all" (list u32)) (result u64)
        (canon lift (core func $i "sum") (memory (core memory $i "memory"))
            (realloc (core func $i "realloc"))))
    (func $same (param "text" string) (result string)
        (canon lift (core func $i "same") (memory (core memory $i "memory"))
            (realloc (core func $i "realloc"))))
    (instance $texts (export "same" (func $same)))
    (export "sum" (func $sum))
    (export "test:greets/texts" (instance $texts)))"#;

async fn engine(settings: WasmSettings) -> (Engine, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let config = EngineConfig::at(state.path().join("state"));
    (Engine::open(config, vec![Arc::new(Wasm::new(settings))]).await.unwrap(), state)
}

/// A sandbox without an image of its own: what it runs is given otherwise.
fn spec() -> SandboxSpec {
    let without = [Feature::HostImage].into();
    SandboxSpec { backend: "wasm".parse().unwrap(), without, ..SandboxSpec::default() }
}

async fn run(engine: &Engine, spec: SandboxSpec, command: Command) -> (Outcome, String) {
    let (execution, mut follower) = engine.run_followed(spec, command).await.unwrap();
    let mut out = Vec::new();
    while let Some(event) = follower.next().await {
        if let OutputEvent::Output { data, .. } = event {
            out.extend_from_slice(&data);
        }
    }
    execution.close().await.unwrap();
    (execution.outcome().await, String::from_utf8_lossy(&out).into_owned())
}

#[tokio::test]
async fn a_program_is_given_by_bytes_by_file_or_lies_in_the_workspace_in_text_or_binary() {
    let (engine, state) = engine(WasmSettings::default().with_module("given", PRINT_PROGRAM)).await;
    let (outcome, out) = run(&engine, spec(), Command::program(["given"])).await;
    assert_eq!((outcome.ending, out.as_str()), (Ending::Exited(5), "hi\n"));
    let file = state.path().join("prog.wasm");
    std::fs::write(&file, wat::parse_str(PRINT_PROGRAM).unwrap()).unwrap();
    let image = Image::Wasm(HostPath::try_from(file.clone()).unwrap());
    let by_file = SandboxSpec { image, ..spec() };
    for name in ["prog.wasm", "prog"] {
        let (outcome, _) = run(&engine, by_file.clone(), Command::program([name])).await;
        assert_eq!(outcome.ending, Ending::Exited(5), "{name}");
    }
    let work = state.path().join("work");
    std::fs::create_dir_all(work.join("sub")).unwrap();
    std::fs::copy(&file, work.join("sub/binary")).unwrap();
    std::fs::write(work.join("sub/text.wat"), PRINT_PROGRAM).unwrap();
    let workspace = Workspace::Local(HostPath::try_from(work).unwrap());
    let inside = SandboxSpec { workspace, ..spec() };
    for path in ["sub/binary", "./sub/text.wat", "/workspace/sub/binary"] {
        let (outcome, out) = run(&engine, inside.clone(), Command::program([path])).await;
        assert_eq!((outcome.ending, out.as_str()), (Ending::Exited(5), "hi\n"), "{path}");
    }
}

#[tokio::test]
async fn a_command_component_runs_and_says_how_it_ended() {
    for (result, code) in [(0, 0), (1, 1)] {
        let (engine, _state) =
            engine(WasmSettings::default().with_module("c", component(result))).await;
        let (outcome, _) = run(&engine, spec(), Command::program(["c"])).await;
        assert_eq!(outcome.ending, Ending::Exited(code));
    }
}

#[tokio::test]
async fn an_ordinary_command_is_refused_with_a_remedy() {
    let (engine, _state) = engine(WasmSettings::default()).await;
    let ordinary = SandboxSpec { backend: "wasm".parse().unwrap(), ..SandboxSpec::default() };
    let error = engine.run(ordinary, Command::program(["true"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Refused);
    assert!(error.to_string().contains("--image wasm:PATH"), "{error}");
}

/// The only file of compiled code in a cache.
fn entry(cache: &Path) -> std::path::PathBuf {
    let mut all = std::fs::read_dir(cache.join("code")).unwrap();
    all.next().unwrap().unwrap().path()
}

#[tokio::test]
async fn compiled_code_is_kept_and_a_tampered_entry_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let ran = || async {
        let (engine, _state) =
            engine(WasmSettings::default().cached(&cache).with_module("p", PRINT_PROGRAM)).await;
        run(&engine, spec(), Command::program(["p"])).await.0.ending
    };
    assert_eq!(ran().await, Ending::Exited(5));
    let path = entry(&cache);
    let whole = std::fs::read(&path).unwrap();
    // Taking it leaves a mark, and making it anew would leave another file.
    let before = std::fs::metadata(&path).unwrap().ino();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    std::fs::File::open(&path).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(ran().await, Ending::Exited(5));
    let after = std::fs::metadata(&path).unwrap();
    assert!(after.ino() == before && after.modified().unwrap() > long_ago, "{after:?}");
    let mut changed = whole.clone();
    let at = changed.len() / 2;
    changed[at] ^= 0x40;
    std::fs::write(&path, &changed).unwrap();
    assert_eq!(ran().await, Ending::Exited(5));
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

#[tokio::test]
async fn a_call_that_the_host_cannot_make_sense_of_ends_a_program_that_had_started() {
    // It writes from a memory that it does not show.
    let module = r#"(module
        (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))
        (memory 1)
        (func (export "_start")
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    let (engine, _state) = engine(WasmSettings::default().with_module("m", module)).await;
    let (outcome, _) = run(&engine, spec(), Command::program(["m"])).await;
    assert_eq!(outcome.ending, Ending::Signalled(Signal(6)));
}

#[tokio::test]
async fn memory_that_was_not_had_after_all_is_not_counted() {
    // More than it says itself that it takes, four times; what it may have is there after that.
    let module = r#"(module (memory 1 3) (func (export "_start") (local $left i32)
        (local.set $left (i32.const 4))
        (loop
            (if (i32.ne (memory.grow (i32.const 200)) (i32.const -1)) (then (unreachable)))
            (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (if (i32.ne (memory.grow (i32.const 2)) (i32.const 1)) (then (unreachable)))))"#;
    let (engine, _state) = engine(WasmSettings::default().with_module("m", module)).await;
    let mut spec = spec();
    spec.limits.memory = Some(Bytes::mib(16));
    let (outcome, _) = run(&engine, spec, Command::program(["m"])).await;
    assert_eq!(outcome.ending, Ending::Exited(0));
}

/// A program that goes on forever.
const SPIN_PROGRAM: &str =
    r#"(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))"#;

/// The second time a program is at hand and begins on its caller's thread, which is the only one here: that
/// it comes back at all shows that the program has left.
#[tokio::test(flavor = "current_thread")]
async fn a_program_that_goes_on_leaves_its_callers_thread_and_ends_when_it_is_told_to() {
    let wasm = Wasm::new(WasmSettings::default().with_module("spins", SPIN_PROGRAM));
    let admitted = admit(&spec(), &wasm.probe().await).unwrap();
    let id: SandboxId = "leaves".parse().unwrap();
    let sandbox = wasm.create(&id, &admitted).await.unwrap();
    let (command, limits) = (Command::program(["spins"]), Limits::defaults());
    for _ in 0..3 {
        let mut process = sandbox.spawn(&command, &limits).await.unwrap();
        process.control.kill().await.unwrap();
        let Some(ProcessEvent::Exit(exit)) = process.events.next().await else { panic!("no exit") };
        assert_eq!(exit.status, ExitStatus::Signalled(Signal::KILL));
    }
    // A process whose handle was dropped ends too.
    drop(sandbox.spawn(&command, &limits).await.unwrap());
    wasm.destroy(&id).await.unwrap();
}

#[tokio::test]
async fn what_would_show_private_files_is_refused_as_a_workspace_and_as_a_mount() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    let settings = WasmSettings::default().cached(&cache).with_module("p", PRINT_PROGRAM);
    let (engine, _state) = engine(settings).await;
    for shown in ["/", "/tmp", "/var/tmp", dir.path().to_str().unwrap()] {
        let source = HostPath::try_from(Path::new(shown).to_owned()).unwrap();
        let mount =
            Mount { source: source.clone(), target: "/shown".parse().unwrap(), read_only: true };
        let mounted = SandboxSpec { mounts: vec![mount], ..spec() };
        let worked = SandboxSpec { workspace: Workspace::Local(source), ..spec() };
        for spec in [mounted, worked] {
            let error = engine.run(spec, Command::program(["p"])).await.unwrap_err();
            // The engine knows the shared directories; only the backend knows its cache.
            let known = error.code() == ErrorCode::Refused;
            assert!(known || error.to_string().contains("private files"), "{shown}: {error}");
        }
    }
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_is_held_to_its_time() {
    let wasm = Wasm::default();
    let short = Limits { wall_time: Some(Span::millis(300)), ..limits() };
    let instance = wasm.instantiate(COUNTER_MODULE.into(), &short, false).await.unwrap();
    let spinning = tokio::time::timeout(Duration::from_millis(1), instance.call("spin", &[]));
    assert!(spinning.await.is_err());
    let gone = instance.call("next", &[]).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::Gone, "{gone}");
}

fn limits() -> Limits {
    Limits { wall_time: Some(Span::secs(20)), ..Limits::defaults() }
}

#[tokio::test]
async fn functions_are_called_many_times_with_typed_values() {
    let wasm = Wasm::default();
    let instance = wasm.instantiate(COUNTER_MODULE.into(), &limits(), false).await.unwrap();
    for expected in [11, 22, 33] {
        assert_eq!(instance.call("next", &[]).await.unwrap().values, [Val::S32(expected)]);
    }
    let arguments = [Val::S32(1), Val::S64(-3), Val::Float64(0.5)];
    let answer = instance.call("add", &arguments).await.unwrap();
    assert_eq!(answer.values, [Val::Float64(-1.5)]);
    let text = ["1", "-3", "0.5"].map(String::from);
    assert_eq!(instance.call_text("add", &text).await.unwrap().values, [Val::Float64(-1.5)]);
    for wrong in [&["1", "2"].map(String::from)[..], &["x", "2", "3"].map(String::from)] {
        let error = instance.call_text("add", wrong).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Invalid, "{error}");
    }
    let error = instance.call("add", &[Val::Bool(true)]).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Invalid);
    let listed = instance.functions().await.unwrap();
    assert_eq!(listed, ["next", "swap", "step", "grow", "add", "trap", "spin"]);
}

#[tokio::test]
async fn a_component_is_called_with_text_and_lists() {
    let wasm = Wasm::default();
    let instance = wasm.instantiate(GREETER_COMPONENT.into(), &limits(), false).await.unwrap();
    assert_eq!(instance.functions().await.unwrap(), ["sum", "test:greets/texts#same"]);
    let sum = instance.call_text("sum", &["[1, 2, 4000000000]".into()]).await.unwrap();
    assert_eq!(sum.values, [Val::U64(4_000_000_003)]);
    let same = instance.call("test:greets/texts#same", &[Val::String("é!".into())]).await.unwrap();
    assert_eq!(same.values, [Val::String("é!".into())]);
    let error = instance.call_text("sum", &["[true]".into()]).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Invalid);
    let error = instance.capture().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported);
}

#[tokio::test]
async fn an_instance_is_captured_and_brought_back_as_it_was() {
    let wasm = Wasm::default();
    let instance = wasm.instantiate(COUNTER_MODULE.into(), &limits(), false).await.unwrap();
    instance.call("next", &[]).await.unwrap();
    let image = instance.capture().await.unwrap();
    assert_eq!(image.bytes(), 65_536);
    for change in ["next", "next", "swap", "grow"] {
        instance.call(change, &[]).await.unwrap();
    }
    assert_eq!(instance.call("step", &[]).await.unwrap().values, [Val::S32(2)]);
    for _ in 0..2 {
        instance.bring_back(&image).await.unwrap();
        assert_eq!(instance.call("next", &[]).await.unwrap().values, [Val::S32(22)]);
        assert_eq!(instance.call("step", &[]).await.unwrap().values, [Val::S32(1)]);
    }
    let other = wasm.instantiate(COUNTER_MODULE.into(), &limits(), false).await.unwrap();
    assert_eq!(other.bring_back(&image).await.unwrap_err().code(), ErrorCode::Invalid);
}

#[tokio::test]
async fn a_call_that_traps_or_takes_too_long_ends_its_instance_by_name() {
    let wasm = Wasm::default();
    let short = Limits { wall_time: Some(Span::millis(300)), ..limits() };
    let fuel = Limits { fuel: Some(100_000), ..limits() };
    let cpu = Limits { cpu_time: Some(Span::millis(200)), ..limits() };
    for (function, limits, told) in [
        ("trap", limits(), "SIGABRT"),
        ("spin", short, "wall-time"),
        ("spin", fuel, "fuel"),
        ("spin", cpu, "cpu-time"),
    ] {
        let instance = wasm.instantiate(COUNTER_MODULE.into(), &limits, false).await.unwrap();
        let error = instance.call(function, &[]).await.unwrap_err();
        assert!(error.to_string().contains(told), "{function}: {error}");
        let gone = instance.call("next", &[]).await.unwrap_err();
        assert_eq!(gone.code(), ErrorCode::Gone, "{gone}");
    }
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Another module, not far from a whole one.
fn mutated(seed: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut module = seed.to_vec();
    for _ in 0..=numbers.below(6) {
        let at = numbers.below(module.len());
        match numbers.below(4) {
            0 => module[at] = numbers.below(256) as u8,
            1 => module[at] ^= 1 << numbers.below(8),
            2 => drop(module.drain(at..(at + 1 + numbers.below(8)).min(module.len()))),
            _ => module.insert(at, numbers.below(256) as u8),
        }
        if module.len() < 8 {
            return seed.to_vec();
        }
    }
    module
}

/// For how long modules are tampered with; longer by asking for it.
fn fuzzing() -> Duration {
    let asked = std::env::var("STOCKADE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(5))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_module_that_was_tampered_with_ends_in_an_outcome_and_harms_nobody() {
    let (engine, _state) = engine(WasmSettings::default()).await;
    let mut spec = spec();
    spec.limits.memory = Some(Bytes::mib(16));
    spec.limits.cpu_time = Some(Span::millis(200));
    spec.limits.wall_time = Some(Span::secs(5));
    let id = engine.create(spec).await.unwrap();
    let sandbox = engine.sandbox(&id).unwrap();
    let seeds: Vec<Vec<u8>> =
        [PRINT_PROGRAM.to_owned(), COUNTER_MODULE.into(), component(0), GREETER_COMPONENT.into()]
            .iter()
            .map(|text| wat::parse_str(text).unwrap())
            .collect();
    let mut numbers = Numbers(0x5eed);
    let (until, mut tried, mut ran) = (Instant::now() + fuzzing(), 0, 0);
    while Instant::now() < until {
        let module = mutated(&seeds[numbers.below(seeds.len())], &mut numbers);
        sandbox.files().unwrap().write(&"m".parse().unwrap(), module.into(), false).await.unwrap();
        let execution = engine.exec(&id, Command::program(["./m"])).await.unwrap();
        match execution.outcome().await.ending {
            ending @ (Ending::Lost(_) | Ending::Refused(_) | Ending::Killed) => {
                panic!("after {tried}: {ending:?}")
            }
            Ending::StartFailed(_) => {}
            Ending::Exited(_)
            | Ending::Signalled(_)
            | Ending::LimitExceeded(_)
            | Ending::TimedOut
            | Ending::Cancelled => ran += 1,
        }
        tried += 1;
    }
    println!("{tried} modules, {ran} of them ran");
    assert!(tried > 20 && ran > 0, "{tried} {ran}");
    engine.destroy(&id).await.unwrap();
}
