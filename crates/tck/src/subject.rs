//! What the kit has to be told about a backend to judge it.

use std::sync::Arc;

use stockade_core::{Backend, BackendChoice, ImageName, SandboxSpec};

use crate::Observer;

/// The variable that tells an engine process its state directory.
pub const ENGINE_STATE: &str = "STOCKADE_TCK_STATE";
/// The variable that tells an engine process a workspace with the probe in it.
pub const ENGINE_WORKSPACE: &str = "STOCKADE_TCK_WORKSPACE";

/// Environment variable that carries the kit's mark into everything it runs.
pub const MARK_VARIABLE: &str = "STOCKADE_TCK_MARK";
/// The variable with the number of bytes that a program of an engine process writes.
pub const ENGINE_FLOOD: &str = "STOCKADE_TCK_FLOOD";

/// How the probe gets to run inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeForm {
    /// As these bytes of a static Linux executable.
    Native(&'static [u8]),
    /// As these bytes of a WebAssembly command.
    Wasm(&'static [u8]),
    /// The backend plays the probe itself; nothing is carried in.
    Simulated,
}

impl ProbeForm {
    /// The bytes to be carried in, if there are any.
    pub fn bytes(self) -> Option<&'static [u8]> {
        match self {
            Self::Native(bytes) | Self::Wasm(bytes) => Some(bytes),
            Self::Simulated => None,
        }
    }
}

/// A backend to be judged.
pub trait Subject: Send + Sync {
    /// What it is called in reports.
    fn name(&self) -> String;

    /// The backend: the same one each time, or a fresh one that shares nothing with the last.
    fn backend(&self) -> Arc<dyn Backend>;

    /// The form of the probe it takes.
    fn probe(&self) -> ProbeForm {
        ProbeForm::Native(probe_bytes())
    }

    /// Sees from outside what is left of a sandbox.
    fn observer(&self) -> Arc<dyn Observer>;

    /// The spec that cases start from: at least the backend's name.
    fn spec(&self) -> SandboxSpec {
        let backend = BackendChoice::Named(self.backend().name());
        SandboxSpec { backend, ..SandboxSpec::default() }
    }

    /// An image with the probe at `/probe` that the backend knows by this name, if it knows any.
    fn named_image(&self) -> Option<ImageName> {
        None
    }

    /// Whether its sandboxes have namespaces of their own: a root in which the workspace lies at its
    /// usual path, and a bounding set of capabilities that could be emptied.
    fn has_namespaces(&self) -> bool {
        true
    }

    /// A process that opens an engine on the directory in [`ENGINE_STATE`], builds a sandbox with the
    /// workspace in [`ENGINE_WORKSPACE`] and the variable [`MARK_VARIABLE`] with the value it has itself,
    /// starts `./probe ignore-signals-then-sleep 60000`, prints the sandbox's id and a newline once it
    /// runs, and waits. The kit kills it where it stands.
    ///
    /// With [`ENGINE_FLOOD`] it instead lets the probe write that many bytes, of which it reads none, and prints by how
    /// many KiB its peak of resident memory has grown meanwhile.
    fn engine_process(&self) -> Option<std::process::Command> {
        None
    }
}

/// The probe as a static executable for this machine.
pub fn probe_bytes() -> &'static [u8] {
    include_bytes!(env!("STOCKADE_PROBE"))
}

/// The probe as a WebAssembly command. Empty where there is no compiler for it, which happens only
/// outside CI.
pub fn wasm_probe_bytes() -> &'static [u8] {
    include_bytes!(env!("STOCKADE_WASM_PROBE"))
}

/// A WebAssembly command that makes every call of WASI preview 1, in an empty directory, with the arguments
/// `one` and `two words` and the variable `GIVEN` of the value `value`: it exits with 77 if each came out as
/// it has to. Empty where there is no compiler for it.
pub fn wasi_calls_bytes() -> &'static [u8] {
    include_bytes!(env!("STOCKADE_WASI_CALLS"))
}
