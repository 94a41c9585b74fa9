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
pub fn make_options() -> Options {
    Options {
        root: Some(place::prepare_root()),
        cache: Some(place::store_directory()),
        prepare: true,
        ..Options::default()
    }
}

/// The backend.
pub fn make_backend() -> Arc<Microvm> {
    Arc::new(Microvm::new(make_options()))
}

/// The backend to be judged.
pub fn make_subject() -> OnHost {
    OnHost::new(make_backend()).with_engine_process("/usr/bin/env".into(), make_engine_arguments())
}

/// An engine of its own.
pub fn engine_process() -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(make_engine_arguments());
    command
}

fn make_engine_arguments() -> Vec<String> {
    let Options { root, cache, .. } = make_options();
    vec![
        format!("{ROOT_VARIABLE}={}", root.unwrap().display()),
        format!("{CACHE_VARIABLE}={}", cache.unwrap().display()),
        env!("CARGO_BIN_EXE_stockade-tck-engine").into(),
        "microvm".into(),
    ]
}
