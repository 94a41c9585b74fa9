//! The floor under every launch: clones into all namespaces, builds a root of six mounts, executes a
//! program and waits. No wall beyond that, no check, no report. Prints nothing; what is measured is
//! [`once`], which `pace` repeats beside the launcher.
#![allow(unsafe_code)] // clone3 and execveat, as bare as they come

#[path = "floor/once.rs"]
mod once;

use std::fs::File;

fn main() -> std::io::Result<()> {
    let program = std::env::args().nth(1).unwrap_or_else(|| "/bin/true".to_owned());
    once::once(&File::open(program)?)
}
