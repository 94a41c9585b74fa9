//! How the wasm backend is built: with compiled code kept below the state directory, and in workers where there
//! is a program for them.

use std::sync::Arc;

use super::{NAME, Wasm, WasmSettings, Worker, cache};
use crate::factory::{BackendFactory, BuildContext, Isolation};

/// Directory of compiled code, below the state directory.
const CACHE_DIR: &str = "wasm";

/// The wasm backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        caches: |_, state| cache::cache_dirs(&state.join(CACHE_DIR)),
        ..BackendFactory::new(NAME, |_, context| Ok(Arc::new(Wasm::new(settings_for(context)))))
    }
}

fn settings_for(context: &BuildContext) -> WasmSettings {
    let settings = WasmSettings::default();
    let settings = match &context.state_dir {
        Some(state) => settings.cached(&state.join(CACHE_DIR)),
        None => settings,
    };
    let worker = context.worker.clone();
    let worker = worker.map(|known| Worker { program: known.program, role: known.role });
    match (worker, context.isolation) {
        (Some(worker), Isolation::Usual) => settings.isolated_if_possible(worker),
        (Some(worker), Isolation::Demanded) => settings.isolated(worker),
        (None, _) | (Some(_), Isolation::Declined) => settings,
    }
}
