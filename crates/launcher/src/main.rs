//! The launcher program: takes the control socket and the sealed agent as inherited descriptors and
//! serves until its owner is gone. It takes no arguments and reads no environment.

use std::process::ExitCode;

fn main() -> ExitCode {
    match stockade_launcher::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(125),
    }
}
