//! The wasm backend in this process, beside the machine it is made of used bare, and a native `true`. The
//! module is one that C programs begin as: a memory, a little data, and a call to exit.

use std::error::Error;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_backends::wasm::{Wasm, WasmSettings};
use stockade_core::{
    Admitted, Backend, Command, ExitStatus, Feature, Limits, ProcessEvent, Sandbox, SandboxSpec,
    admit,
};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, Linker, Module, PoolingAllocationConfig, Store,
    StoreLimits, StoreLimitsBuilder,
};
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p1::{WasiP1Ctx, add_to_linker_async};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;

use crate::Measured;
use crate::report::BenchReport;
use crate::table::Row;

const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_prestat_get" (func $given (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 2)
    (data (i32.const 1024) "some data that has to be there when it begins")
    (func (export "_start")
        (drop (call $given (i32.const 3) (i32.const 8)))
        (call $exit (i32.const 0))))"#;

/// What the machine by itself is held to.
const MAX_MEMORY_BYTES: usize = 512 << 20;
const MAX_OUTPUT_BYTES: usize = 1 << 20;

const ROUNDS: usize = 2000;
const COLD_ROUNDS: usize = 30;
const SEQUENCE_LENGTH: usize = 10_000;
const AT_ONCE: usize = 1000;

/// The WebAssembly engine by itself, set up for the same: everything linked beforehand, a
/// pool that keeps as much, no traces of calls, a bound on memory, three directories, output that is
/// kept, and interruption. Nobody can end it, and nothing counts its time, files and bytes on disk.
struct Bare {
    engine: Engine,
    linked: wasmtime::InstancePre<Given>,
}

struct Given {
    wasi: WasiP1Ctx,
    limits: StoreLimits,
}

impl Bare {
    fn new() -> Result<Self, Box<dyn Error>> {
        let mut pool = PoolingAllocationConfig::new();
        pool.max_unused_warm_slots(64)
            .linear_memory_keep_resident(64 << 10)
            .table_keep_resident(16 << 10)
            .async_stack_keep_resident(16 << 10);
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            .generate_address_map(false)
            .wasm_backtrace_max_frames(None)
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let engine = Engine::new(&config)?;
        let module = Module::new(&engine, PROGRAM)?;
        let mut linker = Linker::new(&engine);
        add_to_linker_async(&mut linker, |given: &mut Given| &mut given.wasi)?;
        let linked = linker.instantiate_pre(&module)?;
        Ok(Self { engine, linked })
    }

    async fn run(&self, dir: &std::path::Path) -> Result<(), Box<dyn Error>> {
        let mut wasi = WasiCtxBuilder::new();
        for at in ["/workspace", "/tmp", "."] {
            wasi.preopened_dir(dir, at, wasmtime_wasi::FsPerms::ReadWrite)?;
        }
        let (out, err) =
            (MemoryOutputPipe::new(MAX_OUTPUT_BYTES), MemoryOutputPipe::new(MAX_OUTPUT_BYTES));
        wasi.arg("p").env("PATH", "/bin").env("HOME", "/tmp").env("TMPDIR", "/tmp");
        wasi.stdout(out).stderr(err).allow_blocking_current_thread(true);
        let limits = StoreLimitsBuilder::new().memory_size(MAX_MEMORY_BYTES).build();
        let mut store = Store::new(&self.engine, Given { wasi: wasi.build_p1(), limits });
        store.limiter(|given| &mut given.limits);
        store.epoch_deadline_async_yield_and_update(1 << 40);
        store.set_epoch_deadline(1 << 40);
        let instance = self.linked.instantiate_async(&mut store).await?;
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
        match start.call_async(&mut store, ()).await {
            Err(error) if error.downcast_ref::<wasmtime_wasi::I32Exit>().is_some() => Ok(()),
            other => Err(format!("ended with {other:?}").into()),
        }
    }
}

fn spec() -> Result<SandboxSpec, Box<dyn Error>> {
    let without = [Feature::HostImage].into();
    Ok(SandboxSpec { backend: "wasm".parse()?, without, ..SandboxSpec::default() })
}

async fn admitted(wasm: &Wasm) -> Result<Admitted, Box<dyn Error>> {
    Ok(admit(&spec()?, &wasm.probe().await).map_err(|refusals| refusals.to_string())?)
}

/// Runs the program in a sandbox that stands, to its exit.
async fn run(sandbox: &dyn Sandbox) -> Result<(), Box<dyn Error>> {
    let limits = Limits::defaults();
    let mut process = sandbox.spawn(&Command::program(["p"]), &limits).await?;
    loop {
        match process.events.next().await {
            Some(ProcessEvent::Output(..)) => {}
            Some(ProcessEvent::Exit(exit)) if exit.status == ExitStatus::Exited(0) => return Ok(()),
            other => return Err(format!("ended with {other:?}").into()),
        }
    }
}

/// Prints medians, 99th percentiles and ratios.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    report.title("wasm: one small module, in this process");
    runtime.block_on(compare(report))
}

async fn compare(report: &mut BenchReport) -> Measured {
    let place = tempfile::tempdir()?;
    let (mut cold, mut cached) = (Row::new("cold compile"), Row::new("cached start"));
    for _ in 0..COLD_ROUNDS {
        let cache = tempfile::tempdir()?;
        // The first compiles and keeps, the second finds what was kept.
        cold.add(first(WasmSettings::default().cached(cache.path())).await?);
        cached.add(first(WasmSettings::default().cached(cache.path())).await?);
    }
    let wasm = Wasm::new(WasmSettings::default().with_module("p", PROGRAM));
    let sandbox = wasm.create(&"warm".parse()?, &admitted(&wasm).await?).await?;
    let bare = Bare::new()?;
    let (mut warm, mut alone) = (Row::new("warm"), Row::new("bare wasmtime"));
    let mut native = Row::new("native true");
    for round in 0..ROUNDS {
        warm.add(timed(run(sandbox.as_ref())).await?);
        alone.add(timed(bare.run(place.path())).await?);
        if round % 20 == 0 {
            native.add(timed(plain()).await?);
        }
    }
    report.timings(&mut [warm, alone, native, cold, cached]);
    in_numbers(report, &sandbox).await?;
    wasm.destroy(&"warm".parse()?).await?;
    Ok(())
}

/// A backend's first program, from nothing.
async fn first(settings: WasmSettings) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    let wasm = Wasm::new(settings.with_module("p", PROGRAM));
    let sandbox = wasm.create(&"first".parse()?, &admitted(&wasm).await?).await?;
    run(sandbox.as_ref()).await?;
    let took = begun.elapsed();
    wasm.destroy(&"first".parse()?).await?;
    Ok(took)
}

async fn timed(what: impl Future<Output = Measured>) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    what.await?;
    Ok(begun.elapsed())
}

async fn plain() -> Measured {
    let status = Process::new("/bin/true").stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err("`true` failed".into()) }
}

async fn in_numbers(report: &mut BenchReport, sandbox: &Arc<dyn Sandbox>) -> Measured {
    let begun = Instant::now();
    for _ in 0..SEQUENCE_LENGTH {
        run(sandbox.as_ref()).await?;
    }
    report.note(format!(
        "{SEQUENCE_LENGTH} instances in sequence: {:.2} s",
        begun.elapsed().as_secs_f64()
    ));
    let begun = Instant::now();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let sandbox = Arc::clone(sandbox);
        all.spawn(async move { run(sandbox.as_ref()).await.map_err(|error| error.to_string()) });
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    report.note(format!("{AT_ONCE} instances at once: {:.2} s", begun.elapsed().as_secs_f64()));
    Ok(())
}
