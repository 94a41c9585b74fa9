//! Commands and backends that were left out of this build: known by name, so that the error can say how to
//! get them.

use std::ffi::OsString;

use clap::Args;
use stockade_core::{Error, ErrorCode};

/// Cargo feature of a build with everything.
const FULL_FEATURE: &str = "full";

/// Takes any arguments, so that the answer is about the command and not about them.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct AbsentArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _ignored: Vec<OsString>,
}

/// The error for a command or backend that this build does not have.
pub fn absent_error(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorCode::Unavailable, operation, format!("this build of stockade has no {what}"))
        .remedy(format!(
            "build it with `cargo install --locked --path crates/cli --features {FULL_FEATURE}`"
        ))
}
