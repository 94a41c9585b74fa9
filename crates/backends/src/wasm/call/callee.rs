//! An instance on its thread: finding functions, reading arguments, calling, and naming what went wrong.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stockade_core::{Error, ErrorCode, ExitStatus, Limits, Result, Span};
use wasmtime::component::{Component, Type, Val, types::ComponentItem};
use wasmtime::{Module, Store, Val as CoreVal, ValType};

use super::exports;
use super::image::Image;
use super::{Answer, Arguments};
use crate::wasm::account::Account;
use crate::wasm::check::{self, Kind};
use crate::wasm::engine::{Machine, Mode, Running};
use crate::wasm::lane::Lane;
use crate::wasm::openings::Openings;
use crate::wasm::run::{self, Job, Phase};
use crate::wasm::state::State;
use crate::wasm::{NAME, Shared};

/// What can be called.
enum Made {
    Core(wasmtime::Instance),
    Component(wasmtime::component::Instance, Component),
}

/// An instance that stays.
pub(super) struct Callee {
    store: Store<State>,
    made: Made,
    machine: Arc<Machine>,
    limits: Limits,
    /// Tells it apart from every other.
    number: u64,
    _running: Running,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Invalid, "call", what).backend(NAME)
}

impl Callee {
    pub(super) async fn make(
        shared: &Shared,
        bytes: Vec<u8>,
        limits: Limits,
        mode: Mode,
    ) -> Result<Self> {
        let unfit = |error: &dyn std::fmt::Display| invalid(format!("the module {error}"));
        let binary = check::binary(bytes.into()).map_err(|error| unfit(&error))?;
        let kind = check::look(&binary).map_err(|error| unfit(&error))?;
        let lacking = || Error::new(ErrorCode::Unavailable, "instantiate", "no virtual machine");
        let machine = shared.machines.get(mode).ok_or_else(lacking)?;
        let job = Job {
            argv: Vec::new(),
            env: Vec::new(),
            openings: Openings::default(),
            limits,
            account: Arc::new(Account::new(&limits)),
            lane: Lane::own(),
            streams: Box::new(|_| ()),
        };
        let mut store = run::store(&machine, job);
        let _running = machine.running();
        let made = instantiate(&mut store, &machine, kind, &binary).await;
        let made = made.map_err(|error| ended(Phase::Making, &error, &store))?;
        static NEXT_CALLEE_NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NEXT_CALLEE_NUMBER.fetch_add(1, Ordering::Relaxed);
        Ok(Self { store, made, machine, limits, number, _running })
    }

    /// The functions there are, each with its type.
    pub(super) fn functions(&mut self) -> Vec<String> {
        match &self.made {
            Made::Core(instance) => {
                let all: Vec<_> =
                    instance.exports(&mut self.store).map(|e| e.name().to_owned()).collect();
                let own = all.into_iter().filter(|name| !exports::is_ours(name));
                own.filter(|name| instance.get_func(&mut self.store, name).is_some()).collect()
            }
            Made::Component(_, component) => {
                let engine = &self.machine.engine;
                let kind = component.component_type();
                kind.exports(engine)
                    .flat_map(|(name, item)| named(engine, name, &item.ty))
                    .collect()
            }
        }
    }

    pub(super) async fn call(&mut self, name: &str, arguments: Arguments) -> Result<Answer> {
        self.store.data_mut().meter.restart();
        if self.machine.mode.counts() {
            // The machine counts, so that setting it cannot fail.
            let _ = self.store.set_fuel(self.limits.fuel.unwrap_or(u64::MAX));
        }
        let values = match &self.made {
            Made::Core(instance) => call_core(&mut self.store, *instance, name, arguments).await,
            Made::Component(instance, _) => {
                call_component(&mut self.store, *instance, name, arguments).await
            }
        }?;
        let left = self.store.get_fuel().ok().filter(|_| self.machine.mode.counts());
        Ok(Answer {
            values,
            cpu_time: Span::from(self.store.data().meter.cpu_time()),
            fuel: left.map(|left| self.limits.fuel.unwrap_or(u64::MAX).saturating_sub(left)),
        })
    }

    /// Where it is told how it ended.
    pub(super) fn ended(&self) -> Arc<OnceLock<ExitStatus>> {
        Arc::clone(&self.store.data().ended)
    }

    pub(super) fn capture(&mut self) -> Result<Image> {
        let instance = self.core("capture")?;
        Image::take(&mut self.store, instance, self.number)
    }

    pub(super) fn bring_back(&mut self, image: &Image) -> Result<()> {
        let instance = self.core("restore")?;
        image.bring_back(&mut self.store, instance, self.number)
    }

    fn core(&self, what: &'static str) -> Result<wasmtime::Instance> {
        match &self.made {
            Made::Core(instance) => Ok(*instance),
            Made::Component(..) => {
                let message = "the memory of a component cannot be reached from outside";
                Err(Error::new(ErrorCode::Unsupported, what, message)
                    .backend(NAME)
                    .remedy("use a core module"))
            }
        }
    }
}

/// The functions of an export: itself, or those of an interface.
fn named(engine: &wasmtime::Engine, name: &str, item: &ComponentItem) -> Vec<String> {
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

async fn instantiate(
    store: &mut Store<State>,
    machine: &Machine,
    kind: Kind,
    binary: &[u8],
) -> wasmtime::Result<Made> {
    match kind {
        Kind::Core => {
            let shown = exports::reveal(binary)?;
            let module = Module::from_binary(&machine.engine, &shown)?;
            let instance = machine.core.instantiate_async(&mut *store, &module).await?;
            if let Ok(begin) = instance.get_typed_func::<(), ()>(&mut *store, "_initialize") {
                begin.call_async(store, ()).await?;
            }
            Ok(Made::Core(instance))
        }
        Kind::Component => {
            let component = Component::from_binary(&machine.engine, binary)?;
            let instance = machine.component.instantiate_async(store, &component).await?;
            Ok(Made::Component(instance, component))
        }
    }
}

async fn call_core(
    store: &mut Store<State>,
    instance: wasmtime::Instance,
    name: &str,
    arguments: Arguments,
) -> Result<Vec<Val>> {
    let function = instance.get_func(&mut *store, name).ok_or_else(|| unknown(name))?;
    let kind = function.ty(&*store);
    let expected = kind.params().len();
    let arguments: Vec<CoreVal> = match arguments {
        Arguments::Values(values) => values.iter().map(to_core).collect::<Result<_>>()?,
        Arguments::Text(texts) => {
            check_argument_count(expected, texts.len())?;
            kind.params()
                .zip(&texts)
                .map(|(kind, text)| read(&kind, text))
                .collect::<Result<_>>()?
        }
    };
    check_argument_count(expected, arguments.len())?;
    for (given, wanted) in arguments.iter().zip(kind.params()) {
        let fits = given.ty(&*store).is_ok_and(|given| ValType::eq(&given, &wanted));
        if !fits {
            return Err(invalid(format!("`{name}` takes {wanted} there, not {given:?}")));
        }
    }
    let mut results = vec![CoreVal::I32(0); kind.results().len()];
    let called = function.call_async(&mut *store, &arguments, &mut results).await;
    called.map_err(|error| ended(Phase::Running, &error, store))?;
    results.iter().map(from_core).collect()
}

async fn call_component(
    store: &mut Store<State>,
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
            Some(found.ok_or_else(|| unknown(name))?)
        }
        None => None,
    };
    let index = instance.get_export_index(&mut *store, outer.as_ref(), function);
    let index = index.ok_or_else(|| unknown(name))?;
    let function = instance.get_func(&mut *store, index).ok_or_else(|| unknown(name))?;
    let kind = function.ty(&*store);
    let types: Vec<Type> = kind.params().map(|(_, kind)| kind).collect();
    let arguments: Vec<Val> = match arguments {
        Arguments::Values(values) => values,
        Arguments::Text(texts) => {
            check_argument_count(types.len(), texts.len())?;
            let read = |(kind, text): (&Type, &String)| {
                Val::from_wave(kind, text).map_err(|error| invalid(format!("`{text}`: {error}")))
            };
            types.iter().zip(&texts).map(read).collect::<Result<_>>()?
        }
    };
    check_argument_count(types.len(), arguments.len())?;
    let mut results = vec![Val::Bool(false); kind.results().len()];
    let called = function.call_async(&mut *store, &arguments, &mut results).await;
    called.map_err(|error| ended(Phase::Running, &error, store))?;
    Ok(results)
}

fn unknown(name: &str) -> Error {
    invalid(format!("there is no function `{name}`")).remedy("list them without naming one")
}

fn check_argument_count(expected: usize, given: usize) -> Result<()> {
    if expected == given {
        return Ok(());
    }
    Err(invalid(format!("it takes {expected} arguments, not {given}")))
}

/// What ended a call that did not return: a limit by its name, or the signal the same mistake brings.
fn ended(phase: Phase, error: &wasmtime::Error, store: &Store<State>) -> Error {
    let status = run::judge(phase, error, &store.data().meter);
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

fn read(kind: &ValType, text: &str) -> Result<CoreVal> {
    let wrong = || invalid(format!("`{}` is no {kind}", text.escape_debug()));
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
        ValType::V128 | ValType::Ref(_) => Err(invalid(format!("{kind} cannot be given as text"))),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else there comes to be is refused")]
fn to_core(value: &Val) -> Result<CoreVal> {
    match value {
        Val::S32(value) => Ok(CoreVal::I32(*value)),
        Val::U32(value) => Ok(CoreVal::I32(value.cast_signed())),
        Val::S64(value) => Ok(CoreVal::I64(*value)),
        Val::U64(value) => Ok(CoreVal::I64(value.cast_signed())),
        Val::Float32(value) => Ok((*value).into()),
        Val::Float64(value) => Ok((*value).into()),
        other => Err(invalid(format!("a core module takes no {other:?}"))),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else there comes to be is refused")]
fn from_core(value: &CoreVal) -> Result<Val> {
    match value {
        CoreVal::I32(value) => Ok(Val::S32(*value)),
        CoreVal::I64(value) => Ok(Val::S64(*value)),
        CoreVal::F32(bits) => Ok(Val::Float32(f32::from_bits(*bits))),
        CoreVal::F64(bits) => Ok(Val::Float64(f64::from_bits(*bits))),
        other => Err(invalid(format!("{other:?} cannot be given back"))),
    }
}
