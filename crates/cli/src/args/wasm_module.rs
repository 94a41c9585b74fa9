//! Commands whose program is a WebAssembly module.

use std::path::{Path, PathBuf};

use stockade_core::{
    BackendChoice, Command, Error, ErrorCode, Feature, Image, Result, Run, SandboxSpec, Workspace,
};

use super::resolve_existing_path;
use crate::absent::absent_error;
use crate::registry;

/// A command whose program is a WebAssembly module gets a sandbox for it: the module is its image. So
/// such a command needs no flag, and no other command ever gets such a sandbox by itself.
pub fn recognise_module(spec: &mut SandboxSpec, command: &mut Command) -> Result<()> {
    let Run::Program(argv) = &mut command.run else { return Ok(()) };
    let Some(program) = argv.first_mut() else { return Ok(()) };
    let suits = match &spec.backend {
        BackendChoice::Auto => true,
        BackendChoice::Named(name) => registry::runs_wasm(name),
    };
    if spec.image != Image::Host || !suits || !is_module(program) {
        return Ok(());
    }
    if cfg!(not(feature = "wasm")) {
        return Err(absent_error("run", "WebAssembly backend"));
    }
    if spec.without.contains(&Feature::HostImage) {
        // It is a path inside the sandbox, or the name of a module that the backend knows.
        spec.backend = BackendChoice::Named(registry::WASM_BACKEND);
        return Ok(());
    }
    let Some(path) = on_host(spec, program) else {
        let message = format!("there is no module `{program}`, here or in the workspace");
        return Err(Error::new(ErrorCode::NotFound, "run", message)
            .remedy("name a module with --image wasm:PATH, or give the path of one"));
    };
    spec.image = Image::Wasm(resolve_existing_path("CMD", &path)?);
    if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
        *program = name.to_owned();
    }
    Ok(())
}

fn is_module(program: &str) -> bool {
    let end = Path::new(program).extension().and_then(|end| end.to_str());
    end.is_some_and(|end| end.eq_ignore_ascii_case("wasm") || end.eq_ignore_ascii_case("wat"))
}

/// The module as the caller sees it, or as it lies in the workspace.
fn on_host(spec: &SandboxSpec, program: &str) -> Option<PathBuf> {
    let here = PathBuf::from(program);
    let inside = match &spec.workspace {
        Workspace::Local(root) => Some(root.as_path().join(program)),
        Workspace::Overlay(layers) => Some(layers.lower.as_path().join(program)),
        Workspace::Ephemeral => None,
    };
    [Some(here), inside].into_iter().flatten().find(|path| path.is_file())
}
