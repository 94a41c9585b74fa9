//! One program from its first instruction to its last, on the thread that polls it at the time. How it ended
//! comes from the machine's traps and this backend's own counters, never from text (C-16).

use std::sync::Arc;

use stockade_core::{
    Bytes, EffectiveLimits, Exit, ExitStatus, LimitKind, Signal, Span, StartFailure,
};
use wasmtime::{Error, Store, Trap, UpdateDeadline};
use wasmtime_wasi::filesystem::WasiFilesystemView;
use wasmtime_wasi::{I32Exit, WasiCtxBuilder, WasiView};

use super::account::ResourceAccount;
use super::deterministic;
use super::engine::{EngineMode, TIME_SLICE_TICKS, WasmMachine};
use super::executor::ProgramThread;
use super::preopens::Preopens;
use super::program::LoadedProgram;
use super::state::{Descriptors, Meter, STDIO_STREAMS, StopReason, StoreState};

/// Host resources that a component may hold at once: files, streams, pollables.
const MAX_HOST_RESOURCES: usize = 100_000;

/// What a program is given.
pub(super) struct ProgramJob {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub preopens: Preopens,
    pub limits: EffectiveLimits,
    pub account: Arc<ResourceAccount>,
    pub thread: Arc<ProgramThread>,
    /// Gives it its streams.
    pub streams: Box<dyn FnOnce(&mut WasiCtxBuilder) + Send>,
}

/// Runs a program until it ends, or until `ended` says how it was ended from outside.
pub(super) async fn run_program(
    machine: &WasmMachine,
    program: &LoadedProgram,
    job: ProgramJob,
    ended: impl Future<Output = ExitStatus>,
) -> Exit {
    let limits = job.limits;
    let mut store = build_store(machine, job);
    let _running = machine.keep_ticking();
    let done = tokio::select! {
        biased;
        status = ended => Err(status),
        done = drive_program(&mut store, program) => Ok(done),
    };
    let status = match done {
        Ok(Ok(code)) => ExitStatus::Exited(code),
        Ok(Err((phase, error))) => judge_error(phase, &error, &store.data().meter),
        Err(status) => status,
    };
    let left = store.get_fuel().ok().filter(|_| machine.mode.is_fuel_counted());
    Exit {
        cpu_time: Some(Span::from(store.data().meter.cpu_time())),
        peak_memory: Some(Bytes(store.data().meter.peak())),
        fuel: left.map(|left| limits.fuel.unwrap_or(u64::MAX).saturating_sub(left)),
        ..status.into()
    }
}

/// A store with everything the program may use.
pub(super) fn build_store(machine: &WasmMachine, job: ProgramJob) -> Store<StoreState> {
    let ProgramJob { argv, env, preopens, limits, account, thread, streams } = job;
    let fixed = machine.mode == EngineMode::Fixed;
    let given = preopens.count() + STDIO_STREAMS;
    let wasi = build_wasi(&argv, &env, preopens, streams, fixed);
    let meter = Meter::start(account, thread, limits.cpu_time.map(Into::into));
    let descriptors = Descriptors::new(limits.open_files, given);
    let mut store = Store::new(
        &machine.engine,
        StoreState { wasi, meter, descriptors, fixed, ended: Arc::default() },
    );
    store.data_mut().ctx().table.set_max_capacity(MAX_HOST_RESOURCES);
    store.limiter_async(|state| &mut state.meter);
    if machine.mode.is_fuel_counted() {
        // The machine counts, so that setting it cannot fail.
        let _ = store.set_fuel(limits.fuel.unwrap_or(u64::MAX));
    }
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|context| check_epoch_tick(&context.data().meter));
    store
}

/// At every tick: whether the program may go on, and when.
fn check_epoch_tick(meter: &Meter) -> Result<UpdateDeadline, Error> {
    meter.check_cpu_time()?;
    Ok(match meter.account.subscribe_if_paused() {
        None => UpdateDeadline::Yield(TIME_SLICE_TICKS),
        Some(mut paused) => UpdateDeadline::YieldCustom(
            TIME_SLICE_TICKS,
            Box::pin(async move {
                // An error means that the account is gone, and the pause with it.
                let _ = paused.wait_for(|paused| !*paused).await;
            }),
        ),
    })
}

fn build_wasi(
    argv: &[String],
    env: &[(String, String)],
    preopens: Preopens,
    streams: Box<dyn FnOnce(&mut WasiCtxBuilder) + Send>,
    fixed: bool,
) -> wasmtime_wasi::p1::WasiP1Ctx {
    let mut builder = WasiCtxBuilder::new();
    builder.args(argv).envs(env).allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
    if fixed {
        deterministic::make_deterministic(&mut builder);
    }
    streams(&mut builder);
    let mut built = builder.build_p1();
    *built.filesystem().ctx = preopens.into_filesystem();
    built
}

/// How far a program has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// It is being put together.
    Making,
    /// It runs.
    Running,
}

async fn drive_program(
    store: &mut Store<StoreState>,
    program: &LoadedProgram,
) -> Result<i32, (RunPhase, Error)> {
    let (making, running) = (|error| (RunPhase::Making, error), |error| (RunPhase::Running, error));
    match program {
        LoadedProgram::Core(module) => {
            let instance = module.instantiate_async(&mut *store).await.map_err(making)?;
            let start = instance.get_typed_func::<(), ()>(&mut *store, "_start").map_err(making)?;
            start.call_async(store, ()).await.map(|()| 0).map_err(running)
        }
        LoadedProgram::Component(component) => {
            let command = component.instantiate_async(&mut *store).await.map_err(making)?;
            let ran = command.wasi_cli_run().call_run(store).await.map_err(running)?;
            Ok(i32::from(ran.is_err()))
        }
    }
}

/// How a program ended that did not return.
pub(super) fn judge_error(phase: RunPhase, error: &Error, meter: &Meter) -> ExitStatus {
    if let Some(stop) = error.downcast_ref::<StopReason>() {
        return match *stop {
            StopReason::Exit(code) => ExitStatus::Exited(code & 0xff),
            StopReason::Raised(signal) => ExitStatus::Signalled(signal),
            StopReason::Limit(limit) => ExitStatus::LimitExceeded(limit),
        };
    }
    if let Some(exit) = error.downcast_ref::<I32Exit>() {
        return ExitStatus::Exited(exit.0 & 0xff);
    }
    match (error.downcast_ref::<Trap>(), phase) {
        (Some(trap), _) => trap_status(*trap, meter),
        (None, RunPhase::Making) => {
            ExitStatus::StartFailed(StartFailure::NoResources(shorten_error(error)))
        }
        // A call that the host cannot make sense of ends a program as its own mistakes do.
        (None, RunPhase::Running) => trap_status(Trap::UnreachableCodeReached, meter),
    }
}

/// A trap as the signal that the same mistake brings about in a program of the host's own kind.
#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else it comes to know aborts")]
fn trap_status(trap: Trap, meter: &Meter) -> ExitStatus {
    const SIGABRT: Signal = Signal(6);
    const SIGFPE: Signal = Signal(8);
    const SIGSEGV: Signal = Signal(11);
    match trap {
        Trap::OutOfFuel => ExitStatus::LimitExceeded(LimitKind::Fuel),
        // Most programs give up where they get no memory; the limit is why.
        Trap::UnreachableCodeReached if meter.was_refused() => {
            ExitStatus::LimitExceeded(LimitKind::Memory)
        }
        Trap::StackOverflow
        | Trap::MemoryOutOfBounds
        | Trap::HeapMisaligned
        | Trap::TableOutOfBounds
        | Trap::IndirectCallToNull
        | Trap::BadSignature
        | Trap::NullReference
        | Trap::ArrayOutOfBounds => ExitStatus::Signalled(SIGSEGV),
        Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger => {
            ExitStatus::Signalled(SIGFPE)
        }
        // Unreachable code, and traps that a later version of the machine adds.
        _ => ExitStatus::Signalled(SIGABRT),
    }
}

/// What an error says, no longer than a line.
pub(super) fn shorten_error(error: &Error) -> String {
    format!("{error:#}").replace('\n', " ").chars().take(400).collect()
}
