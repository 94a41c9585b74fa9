//! An instance on its thread: finding functions, reading arguments, calling, and naming what went wrong.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stockade_core::{Error, ErrorCode, ExitStatus, Limits, Result, Span};
use wasmtime::component::{Component, Type, Val, types::ComponentItem};
use wasmtime::{Module, Store, Val as CoreVal, ValType};

use super::exports;
use super::image::CapturedInstance;
use super::{Arguments, CallAnswer};
use crate::wasm::account::ResourceAccount;
use crate::wasm::check::{self, ProgramKind};
use crate::wasm::engine::{EngineMode, TickingGuard, WasmMachine};
use crate::wasm::executor::ProgramThread;
use crate::wasm::preopens::Preopens;
use crate::wasm::run::{self, ProgramJob, RunPhase};
use crate::wasm::state::StoreState;
use crate::wasm::{NAME, WasmShared};

/// What can be called.
enum MadeInstance {
    Core(wasmtime::Instance),
    Component(wasmtime::component::Instance, Component),
}

/// An instance that stays.
pub(super) struct Callee {
    store: Store<StoreState>,
    made: MadeInstance,
    machine: Arc<WasmMachine>,
    limits: Limits,
    /// Tells it apart from every other.
    number: u64,
    _running: TickingGuard,
}

fn invalid_call_error(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Invalid, "call", what).backend(NAME)
}

impl Callee {
    pub(super) async fn make(
        shared: &WasmShared,
        bytes: Vec<u8>,
        limits: Limits,
        mode: EngineMode,
    ) -> Result<Self> {
        let unfit =
            |error: &dyn std::fmt::Display| invalid_call_error(format!("the module {error}"));
        let binary = check::to_binary(bytes.into()).map_err(|error| unfit(&error))?;
        let kind = check::validate_binary(&binary).map_err(|error| unfit(&error))?;
        let lacking = || Error::new(ErrorCode::Unavailable, "instantiate", "no virtual machine");
        let machine = shared.machines.get_or_create(mode).ok_or_else(lacking)?;
        let job = ProgramJob {
            argv: Vec::new(),
            env: Vec::new(),
            preopens: Preopens::default(),
            limits,
            account: Arc::new(ResourceAccount::new(&limits)),
            thread: ProgramThread::own(),
            streams: Box::new(|_| ()),
        };
        let mut store = run::build_store(&machine, job);
        let _running = machine.keep_ticking();
        let made = instantiate_program(&mut store, &machine, kind, &binary).await;
        let made = made.map_err(|error| record_end(RunPhase::Making, &error, &store))?;
        static NEXT_CALLEE_NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NEXT_CALLEE_NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Self { store, made, machine, limits, number, _running })
    }

    /// The functions there are, each with its type.
    pub(super) fn list_functions(&mut self) -> Vec<String> {
        match &self.made {
            MadeInstance::Core(instance) => {
                let all: Vec<_> =
                    instance.exports(&mut self.store).map(|e| e.name().to_owned()).collect();
                let own = all.into_iter().filter(|name| !exports::is_ours(name));
                own.filter(|name| instance.get_func(&mut self.store, name).is_some()).collect()
            }
            MadeInstance::Component(_, component) => {
                let engine = &self.machine.engine;
                let kind = component.component_type();
                kind.exports(engine)
                    .flat_map(|(name, item)| list_item_functions(engine, name, &item.ty))
                    .collect()
            }
        }
    }

    pub(super) async fn call_function(
        &mut self,
        name: &str,
        arguments: Arguments,
    ) -> Result<CallAnswer> {
        self.store.data_mut().meter.restart_clock();
        if self.machine.mode.is_fuel_counted() {
            // The machine counts, so that setting it cannot fail.
            let _ = self.store.set_fuel(self.limits.fuel.unwrap_or(u64::MAX));
        }
        let values = match &self.made {
            MadeInstance::Core(instance) => {
                call_core(&mut self.store, *instance, name, arguments).await
            }
            MadeInstance::Component(instance, _) => {
                call_component(&mut self.store, *instance, name, arguments).await
            }
        }?;
        let left = self.store.get_fuel().ok().filter(|_| self.machine.mode.is_fuel_counted());
        Ok(CallAnswer {
            values,
            cpu_time: Span::from(self.store.data().meter.cpu_time()),
            fuel: left.map(|left| self.limits.fuel.unwrap_or(u64::MAX).saturating_sub(left)),
        })
    }

    /// Where it is told how it ended.
    pub(super) fn ended(&self) -> Arc<OnceLock<ExitStatus>> {
        Arc::clone(&self.store.data().ended)
    }

    pub(super) fn capture_image(&mut self) -> Result<CapturedInstance> {
        let instance = self.core_instance("capture")?;
        CapturedInstance::capture_from(&mut self.store, instance, self.number)
    }

    pub(super) fn bring_back(&mut self, image: &CapturedInstance) -> Result<()> {
        let instance = self.core_instance("restore")?;
        image.bring_back(&mut self.store, instance, self.number)
    }

    fn core_instance(&self, what: &'static str) -> Result<wasmtime::Instance> {
        match &self.made {
            MadeInstance::Core(instance) => Ok(*instance),
            MadeInstance::Component(..) => {
                let message = "the memory of a component cannot be reached from outside";
                Err(Error::new(ErrorCode::Unsupported, what, message)
                    .backend(NAME)
                    .remedy("use a core module"))
            }
        }
    }
}

/// The functions of an export: itself, or those of an interface.
fn list_item_functions(engine: &wasmtime::Engine, name: &str, item: &ComponentItem) -> Vec<String> {
    match item {
        ComponentItem::ComponentFunc(_) => vec![name.to_owned()],
        ComponentItem::ComponentInstance(interface) => {
            let functions = interface.exports(engine);
            let own =
                functions.filter(|(_, inner)| matches!(inner.ty, ComponentItem::ComponentFunc(_)));
            own.map(|(function, _)| format!("{name}#{function}")).collect()
        }
        ComponentItem::CoreFunc(_)
        | ComponentItem::Module(_)
        | ComponentItem::Component(_)
        | ComponentItem::Type(_)
        | ComponentItem::Resource(_) => Vec::new(),
    }
}

async fn instantiate_program(
    store: &mut Store<StoreState>,
    machine: &WasmMachine,
    kind: ProgramKind,
    binary: &[u8],
) -> wasmtime::Result<MadeInstance> {
    match kind {
        ProgramKind::Core => {
            let shown = exports::export_state(binary)?;
            let module = Module::from_binary(&machine.engine, &shown)?;
            let instance = machine.core.instantiate_async(&mut *store, &module).await?;
            if let Ok(begin) = instance.get_typed_func::<(), ()>(&mut *store, "_initialize") {
                begin.call_async(store, ()).await?;
            }
            Ok(MadeInstance::Core(instance))
        }
        ProgramKind::Component => {
            let component = Component::from_binary(&machine.engine, binary)?;
            let instance = machine.component.instantiate_async(store, &component).await?;
            Ok(MadeInstance::Component(instance, component))
        }
    }
}

async fn call_core(
    store: &mut Store<StoreState>,
    instance: wasmtime::Instance,
    name: &str,
    arguments: Arguments,
) -> Result<Vec<Val>> {
    let function =
        instance.get_func(&mut *store, name).ok_or_else(|| unknown_function_error(name))?;
    let kind = function.ty(&*store);
    let expected = kind.params().len();
    let arguments: Vec<CoreVal> = match arguments {
        Arguments::Values(values) => values.iter().map(to_core_value).collect::<Result<_>>()?,
        Arguments::Text(texts) => {
            check_argument_count(expected, texts.len())?;
            kind.params()
                .zip(&texts)
                .map(|(kind, text)| parse_core_value(&kind, text))
                .collect::<Result<_>>()?
        }
    };
    check_argument_count(expected, arguments.len())?;
    for (given, wanted) in arguments.iter().zip(kind.params()) {
        let fits = given.ty(&*store).is_ok_and(|given| ValType::eq(&given, &wanted));
        if !fits {
            return Err(invalid_call_error(format!(
                "`{name}` takes {wanted} there, not {given:?}"
            )));
        }
    }
    let mut results = vec![CoreVal::I32(0); kind.results().len()];
    let called = function.call_async(&mut *store, &arguments, &mut results).await;
    called.map_err(|error| record_end(RunPhase::Running, &error, store))?;
    results.iter().map(from_core_value).collect()
}

async fn call_component(
    store: &mut Store<StoreState>,
    instance: wasmtime::component::Instance,
    name: &str,
    arguments: Arguments,
) -> Result<Vec<Val>> {
    let (interface, function) = match name.split_once('#') {
        Some((interface, function)) => (Some(interface), function),
        None => (None, name),
    };
    let outer = match interface {
        Some(interface) => {
            let found = instance.get_export_index(&mut *store, None, interface);
            Some(found.ok_or_else(|| unknown_function_error(name))?)
        }
        None => None,
    };
    let index = instance.get_export_index(&mut *store, outer.as_ref(), function);
    let index = index.ok_or_else(|| unknown_function_error(name))?;
    let function =
        instance.get_func(&mut *store, index).ok_or_else(|| unknown_function_error(name))?;
    let kind = function.ty(&*store);
    let types: Vec<Type> = kind.params().map(|(_, kind)| kind).collect();
    let arguments: Vec<Val> = match arguments {
        Arguments::Values(values) => values,
        Arguments::Text(texts) => {
            check_argument_count(types.len(), texts.len())?;
            let read = |(kind, text): (&Type, &String)| {
                Val::from_wave(kind, text)
                    .map_err(|error| invalid_call_error(format!("`{text}`: {error}")))
            };
            types.iter().zip(&texts).map(read).collect::<Result<_>>()?
        }
    };
    check_argument_count(types.len(), arguments.len())?;
    let mut results = vec![Val::Bool(false); kind.results().len()];
    let called = function.call_async(&mut *store, &arguments, &mut results).await;
    called.map_err(|error| record_end(RunPhase::Running, &error, store))?;
    Ok(results)
}

fn unknown_function_error(name: &str) -> Error {
    invalid_call_error(format!("there is no function `{name}`"))
        .remedy("list them without naming one")
}

fn check_argument_count(expected: usize, given: usize) -> Result<()> {
    if expected == given {
        return Ok(());
    }
    Err(invalid_call_error(format!("it takes {expected} arguments, not {given}")))
}

/// What ended a call that did not return: a limit by its name, or the signal the same mistake brings.
fn record_end(phase: RunPhase, error: &wasmtime::Error, store: &Store<StoreState>) -> Error {
    let status = run::judge_error(phase, error, &store.data().meter);
    // The first end is the end.
    let _ = store.data().ended.set(status.clone());
    let (code, message) = match status {
        ExitStatus::LimitExceeded(limit) => {
            (ErrorCode::TooLarge, format!("it went beyond its {limit} limit"))
        }
        ExitStatus::Exited(code) => (ErrorCode::Gone, format!("it exited with {code}")),
        ExitStatus::Signalled(signal) => {
            (ErrorCode::Gone, format!("it trapped ({signal}): {error}"))
        }
        ExitStatus::StartFailed(failure) => (ErrorCode::Invalid, failure.detail().to_owned()),
        ExitStatus::Lost(why) => (ErrorCode::Gone, why),
    };
    Error::new(code, "call", message).backend(NAME)
}

fn parse_core_value(kind: &ValType, text: &str) -> Result<CoreVal> {
    let wrong = || invalid_call_error(format!("`{}` is no {kind}", text.escape_debug()));
    match kind {
        ValType::I32 => {
            let unsigned = || text.parse::<u32>().map(u32::cast_signed);
            text.parse().or_else(|_| unsigned()).map(CoreVal::I32).map_err(|_| wrong())
        }
        ValType::I64 => {
            let unsigned = || text.parse::<u64>().map(u64::cast_signed);
            text.parse().or_else(|_| unsigned()).map(CoreVal::I64).map_err(|_| wrong())
        }
        ValType::F32 => text.parse::<f32>().map(CoreVal::from).map_err(|_| wrong()),
        ValType::F64 => text.parse::<f64>().map(CoreVal::from).map_err(|_| wrong()),
        ValType::V128 | ValType::Ref(_) => {
            Err(invalid_call_error(format!("{kind} cannot be given as text")))
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else there comes to be is refused")]
fn to_core_value(value: &Val) -> Result<CoreVal> {
    match value {
        Val::S32(value) => Ok(CoreVal::I32(*value)),
        Val::U32(value) => Ok(CoreVal::I32(value.cast_signed())),
        Val::S64(value) => Ok(CoreVal::I64(*value)),
        Val::U64(value) => Ok(CoreVal::I64(value.cast_signed())),
        Val::Float32(value) => Ok((*value).into()),
        Val::Float64(value) => Ok((*value).into()),
        other => Err(invalid_call_error(format!("a core module takes no {other:?}"))),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else there comes to be is refused")]
fn from_core_value(value: &CoreVal) -> Result<Val> {
    match value {
        CoreVal::I32(value) => Ok(Val::S32(*value)),
        CoreVal::I64(value) => Ok(Val::S64(*value)),
        CoreVal::F32(bits) => Ok(Val::Float32(f32::from_bits(*bits))),
        CoreVal::F64(bits) => Ok(Val::Float64(f64::from_bits(*bits))),
        other => Err(invalid_call_error(format!("{other:?} cannot be given back"))),
    }
}
