//! What the tests of machines share: the backend, and an engine of its own.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]
#![allow(dead_code, reason = "each test uses what it needs of it")]

mod place;

use std::process::Command;
use std::sync::Arc;

use stockade_backends::microvm::{Microvm, Options};
use stockade_tck::OnHost;

/// Environment variables that name root and cache to an engine process.
const ROOT_VARIABLE: &str = "STOCKADE_TCK_MICROVM_ROOT";
const CACHE_VARIABLE: &str = "STOCKADE_TCK_MICROVM_CACHE";

/// How machines are made.
pub fn options() -> Options {
    Options {
        root: Some(place::root()),
        cache: Some(place::store()),
        prepare: true,
        ..Options::default()
    }
}

/// The backend.
pub fn backend() -> Arc<Microvm> {
    Arc::new(Microvm::new(options()))
}

/// The backend to be judged.
pub fn subject() -> OnHost {
    OnHost::new(backend()).with_engine_process("/usr/bin/env".into(), arguments())
}

/// An engine of its own.
pub fn engine_process() -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(arguments());
    command
}

fn arguments() -> Vec<String> {
    let Options { root, cache, .. } = options();
    vec![
        format!("{ROOT_VARIABLE}={}", root.unwrap().display()),
        format!("{CACHE_VARIABLE}={}", cache.unwrap().display()),
        env!("CARGO_BIN_EXE_stockade-tck-engine").into(),
        "microvm".into(),
    ]
}
