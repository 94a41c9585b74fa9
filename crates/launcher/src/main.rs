//! The launcher program: takes the control socket and the sealed agent as inherited descriptors and
//! serves until its owner is gone. Its one argument, if any, says that it is to do without namespaces;
//! it reads no environment.

use std::process::ExitCode;

use stockade_launcher::{Mode, make_private, serve};

fn main() -> ExitCode {
    make_private();
    let mode = match std::env::args().nth(1).as_deref() {
        None => Mode::Namespaces,
        Some(Mode::BARE_ARGUMENT) => Mode::Bare,
        Some(_) => return ExitCode::from(125),
    };
    match serve(mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(125),
    }
}
