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
use super::check::{self, Kind, Unfit};
use super::code;
use super::engine::{Machine, Mode};
use super::state::State;

/// Compiled programs kept in memory.
const MAX_WARM_PROGRAMS: usize = 64;

/// A digest of a program.
pub(super) type Hash = [u8; 32];

/// The bytes of a program, in binary or text form, with their digest.
#[derive(Clone)]
pub(super) struct Given {
    pub bytes: Data,
    pub hash: Hash,
}

impl From<Data> for Given {
    fn from(bytes: Data) -> Self {
        let hash = Sha256::digest(&bytes).into();
        Self { bytes, hash }
    }
}

/// A program that can be instantiated.
pub(super) enum Program {
    Core(InstancePre<State>),
    Component(CommandPre<State>),
}

/// Programs by what they are, the latest last.
type Kept = VecDeque<(Mode, Hash, Arc<Program>)>;

/// Where programs come from.
pub(super) struct Library {
    warm: Mutex<Kept>,
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

    /// Where it is kept, or would be.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    fn warm(&self) -> MutexGuard<'_, Kept> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program of these bytes.
    pub(super) fn load(&self, machine: &Machine, given: Given) -> Result<Arc<Program>, Unfit> {
        let Given { bytes, hash } = given;
        if let Some(program) = self.recall(machine.mode, &hash) {
            return Ok(program);
        }
        let binary = check::binary(bytes)?;
        let program = Arc::new(self.prepare(machine, &binary, &hash)?);
        let mut warm = self.warm();
        warm.push_back((machine.mode, hash, Arc::clone(&program)));
        if warm.len() > MAX_WARM_PROGRAMS {
            warm.pop_front();
        }
        Ok(program)
    }

    /// The program of this digest, if it need only be taken.
    pub(super) fn recall(&self, mode: Mode, hash: &Hash) -> Option<Arc<Program>> {
        let mut warm = self.warm();
        let at = warm.iter().position(|(of, known, _)| *of == mode && known == hash)?;
        let found = warm.remove(at)?;
        let program = Arc::clone(&found.2);
        warm.push_back(found);
        Some(program)
    }

    fn prepare(&self, machine: &Machine, binary: &[u8], hash: &Hash) -> Result<Program, Unfit> {
        let kind = check::look(binary)?;
        if let Some(cache) = self.cache()
            && let Some(compiled) = cache.find(&machine.key(), hash)
            && let Ok(program) = revive(machine, kind, &compiled)
        {
            return Ok(program);
        }
        let (program, compiled) = compile(machine, kind, binary)?;
        if let Some(cache) = self.cache()
            && let Ok(compiled) = compiled
        {
            // A cache that cannot be written to costs time, and nothing else.
            let _ = cache.keep(&machine.key(), hash, &compiled);
        }
        Ok(program)
    }
}

type Compiled = wasmtime::Result<Vec<u8>>;

fn compile(machine: &Machine, kind: Kind, binary: &[u8]) -> Result<(Program, Compiled), Unfit> {
    match kind {
        Kind::Core => {
            let module = Module::from_binary(&machine.engine, binary).map_err(unfit)?;
            let compiled = module.serialize();
            Ok((core(machine, &module)?, compiled))
        }
        Kind::Component => {
            let component = Component::from_binary(&machine.engine, binary).map_err(unfit)?;
            let compiled = component.serialize();
            Ok((whole(machine, &component)?, compiled))
        }
    }
}

/// The code of a program, for somebody else to run.
pub(super) fn compile_only(machine: &Machine, kind: Kind, binary: &[u8]) -> Result<Vec<u8>, Unfit> {
    compile(machine, kind, binary)?.1.map_err(unfit)
}

/// A program from code that this backend has compiled before.
pub(super) fn revive(
    machine: &Machine,
    kind: Kind,
    compiled: &code::Trusted,
) -> Result<Program, Unfit> {
    match kind {
        Kind::Core => core(machine, &code::module(&machine.engine, compiled).map_err(unfit)?),
        Kind::Component => {
            whole(machine, &code::component(&machine.engine, compiled).map_err(unfit)?)
        }
    }
}

fn core(machine: &Machine, module: &Module) -> Result<Program, Unfit> {
    machine.core.instantiate_pre(module).map(Program::Core).map_err(unfit)
}

fn whole(machine: &Machine, component: &Component) -> Result<Program, Unfit> {
    let linked = machine.component.instantiate_pre(component).map_err(unfit)?;
    CommandPre::new(linked).map(Program::Component).map_err(unfit)
}

/// What the machine says of a module that it does not take.
fn unfit(error: wasmtime::Error) -> Unfit {
    let text: String = format!("{error:#}").chars().take(400).collect();
    Unfit::Malformed(text.replace('\n', " "))
}
