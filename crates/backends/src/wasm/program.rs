//! From bytes to something that can be instantiated: checked, compiled or taken from the cache, and kept
//! warm for the next time.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes as Data;
use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;
use wasmtime::{InstancePre, Module};
use wasmtime_wasi::p2::bindings::CommandPre;

use super::cache::Cache;
use super::check::{self, ProgramKind, UnfitProgram};
use super::code;
use super::engine::{EngineMode, WasmMachine};
use super::state::StoreState;

/// Compiled programs kept in memory.
const MAX_WARM_PROGRAMS: usize = 64;

/// A digest of a program.
pub(super) type Hash = [u8; 32];

/// The bytes of a program, in binary or text form, with their digest.
#[derive(Clone)]
pub(super) struct ProgramBytes {
    pub bytes: Data,
    pub hash: Hash,
}

impl From<Data> for ProgramBytes {
    fn from(bytes: Data) -> Self {
        let hash = Sha256::digest(&bytes).into();
        Self { bytes, hash }
    }
}

/// A program that can be instantiated.
pub(super) enum LoadedProgram {
    Core(InstancePre<StoreState>),
    Component(CommandPre<StoreState>),
}

/// Programs by what they are, the latest last.
type WarmPrograms = VecDeque<(EngineMode, Hash, Arc<LoadedProgram>)>;

/// Where programs come from.
pub(super) struct Library {
    warm: Mutex<WarmPrograms>,
    directory: Option<PathBuf>,
    cache: OnceLock<Option<Cache>>,
}

impl Library {
    /// A library that keeps what it compiles in a directory, if it has one.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self { warm: Mutex::default(), directory, cache: OnceLock::new() }
    }

    /// Where compiled code is kept, if anywhere. A directory that cannot be used costs time, and
    /// nothing else.
    pub(super) fn cache(&self) -> Option<&Cache> {
        let open = || self.directory.as_deref().and_then(|directory| Cache::open(directory).ok());
        self.cache.get_or_init(open).as_ref()
    }

    /// Keeps every program from being loaded for the first time until `wait` returns.
    #[cfg(test)]
    pub(super) fn hold_loading(&self, wait: impl FnOnce()) {
        self.cache.get_or_init(|| {
            wait();
            None
        });
    }

    /// Where it is kept, or would be.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    fn warm(&self) -> MutexGuard<'_, WarmPrograms> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program of these bytes.
    pub(super) fn load_program(
        &self,
        machine: &WasmMachine,
        given: ProgramBytes,
    ) -> Result<Arc<LoadedProgram>, UnfitProgram> {
        let ProgramBytes { bytes, hash } = given;
        if let Some(program) = self.recall_program(machine.mode, &hash) {
            return Ok(program);
        }
        let binary = check::to_binary(bytes)?;
        let program = Arc::new(self.prepare_program(machine, &binary, &hash)?);
        let mut warm = self.warm();
        warm.push_back((machine.mode, hash, Arc::clone(&program)));
        if warm.len() > MAX_WARM_PROGRAMS {
            warm.pop_front();
        }
        Ok(program)
    }

    /// The program of this digest, if it need only be taken.
    pub(super) fn recall_program(
        &self,
        mode: EngineMode,
        hash: &Hash,
    ) -> Option<Arc<LoadedProgram>> {
        let mut warm = self.warm();
        let at = warm.iter().position(|(of, known, _)| *of == mode && known == hash)?;
        let found = warm.remove(at)?;
        let program = Arc::clone(&found.2);
        warm.push_back(found);
        Some(program)
    }

    fn prepare_program(
        &self,
        machine: &WasmMachine,
        binary: &[u8],
        hash: &Hash,
    ) -> Result<LoadedProgram, UnfitProgram> {
        let kind = check::validate_binary(binary)?;
        if let Some(cache) = self.cache()
            && let Some(compiled) = cache.load_entry(&machine.cache_key(), hash)
            && let Ok(program) = load_compiled(machine, kind, &compiled)
        {
            return Ok(program);
        }
        let (program, compiled) = compile_program(machine, kind, binary)?;
        if let Some(cache) = self.cache()
            && let Ok(compiled) = compiled
        {
            // A cache that cannot be written to costs time, and nothing else.
            let _ = cache.store_entry(&machine.cache_key(), hash, &compiled);
        }
        Ok(program)
    }
}

type Compiled = wasmtime::Result<Vec<u8>>;

fn compile_program(
    machine: &WasmMachine,
    kind: ProgramKind,
    binary: &[u8],
) -> Result<(LoadedProgram, Compiled), UnfitProgram> {
    match kind {
        ProgramKind::Core => {
            let module = Module::from_binary(&machine.engine, binary).map_err(to_unfit)?;
            let compiled = module.serialize();
            Ok((link_core(machine, &module)?, compiled))
        }
        ProgramKind::Component => {
            let component = Component::from_binary(&machine.engine, binary).map_err(to_unfit)?;
            let compiled = component.serialize();
            Ok((link_component(machine, &component)?, compiled))
        }
    }
}

/// The compiled code of a program, for another process to run.
pub(super) fn compile_only(
    machine: &WasmMachine,
    kind: ProgramKind,
    binary: &[u8],
) -> Result<Vec<u8>, UnfitProgram> {
    compile_program(machine, kind, binary)?.1.map_err(to_unfit)
}

/// A program from code that this backend has compiled before.
pub(super) fn load_compiled(
    machine: &WasmMachine,
    kind: ProgramKind,
    compiled: &code::Trusted,
) -> Result<LoadedProgram, UnfitProgram> {
    match kind {
        ProgramKind::Core => link_core(
            machine,
            &code::deserialize_module(&machine.engine, compiled).map_err(to_unfit)?,
        ),
        ProgramKind::Component => link_component(
            machine,
            &code::deserialize_component(&machine.engine, compiled).map_err(to_unfit)?,
        ),
    }
}

fn link_core(machine: &WasmMachine, module: &Module) -> Result<LoadedProgram, UnfitProgram> {
    machine.core.instantiate_pre(module).map(LoadedProgram::Core).map_err(to_unfit)
}

fn link_component(
    machine: &WasmMachine,
    component: &Component,
) -> Result<LoadedProgram, UnfitProgram> {
    let linked = machine.component.instantiate_pre(component).map_err(to_unfit)?;
    CommandPre::new(linked).map(LoadedProgram::Component).map_err(to_unfit)
}

/// What the machine says of a module that it does not take.
fn to_unfit(error: wasmtime::Error) -> UnfitProgram {
    let text: String = format!("{error:#}").chars().take(400).collect();
    UnfitProgram::Malformed(text.replace('\n', " "))
}
