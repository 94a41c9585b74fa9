//! `stockade wasm call`, and what else the command line knows of WebAssembly.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use stockade_backends::wasm::Wasm;
use stockade_backends::wasm::call::Answer;
use stockade_core::{
    Admitted, Backend, BackendChoice, Bytes, Command, Error, ErrorCode, Feature, Image, Limits,
    Result, Run, SandboxSpec, Span, Workspace, admit,
};

use crate::args::existing;
use crate::called::Record;
use crate::config::Settings;
use crate::printer::Printer;
use crate::registry::{self, Isolation};

/// What to do with a module.
#[derive(Debug, Args)]
pub struct WasmArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Call an exported function with typed values; list the functions if none is named.
    ///
    /// The module or component runs in this process, with no files, environment or network. Values are
    /// written as in WebAssembly's own text encoding: 1, 1.5, true, "text", [1, 2], {a: 1}.
    Call(CallArgs),
}

#[derive(Debug, Args)]
struct CallArgs {
    /// Instructions, by the same count on every machine.
    #[arg(long, value_name = "N")]
    fuel: Option<u64>,
    /// Fix clocks, randomness and numbers, so that the same input gives the same output.
    #[arg(long)]
    deterministic: bool,
    /// Memory. [default: 512m]
    #[arg(long, value_name = "SIZE")]
    mem: Option<Bytes>,
    /// How long it may take. [default: 60s]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// The module or component, in binary or text form.
    file: PathBuf,
    /// The function; one of an interface is named `interface#function`.
    function: Option<String>,
    /// Its arguments.
    #[arg(allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// What a call gave.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Called {
    values: Vec<String>,
    cpu_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fuel: Option<u64>,
}

/// The functions there are.
#[derive(Debug, Serialize)]
struct Listed {
    functions: Vec<String>,
}

/// Does what was asked.
pub async fn wasm(args: WasmArgs, printer: &Printer) -> Result<i32> {
    let Verb::Call(args) = args.verb;
    let bytes = std::fs::read(&args.file).map_err(|error| {
        let message = format!("`{}` cannot be read", args.file.display());
        Error::new(ErrorCode::NotFound, "wasm call", message)
            .remedy("name a module or component: a file that you may read")
            .source(error)
    })?;
    let settings = Settings::load(None, printer)?;
    let backend = registry::wasm(None, Isolation::Declined);
    let admitted = admitted(&args, &settings, &backend).await?;
    let limits = *admitted.limits();
    let record = Record::open(&settings, admitted, command(&args)).await?;
    let made = backend.instantiate(bytes, &limits, args.deterministic);
    let instance = match printer.patiently("compiling", made).await {
        Ok(instance) => instance,
        Err(error) => {
            record.close(None, Err(&error)).await?;
            return Err(error);
        }
    };
    let Some(function) = &args.function else {
        let functions = instance.functions().await;
        record.close(Some(&instance), functions.as_ref().map(|_| None)).await?;
        let listed = Listed { functions: functions? };
        match printer.is_json() {
            true => printer.json(&listed),
            false => printer.data(&lines(&listed.functions)),
        }
        return Ok(0);
    };
    let answer = instance.call_text(function, &args.arguments).await;
    record.close(Some(&instance), answer.as_ref().map(Some)).await?;
    let called = called(answer?)?;
    match printer.is_json() {
        true => printer.json(&called),
        false => printer.data(&lines(&called.values)),
    }
    Ok(0)
}

/// What is asked for, held against what there is, as for any execution.
async fn admitted(args: &CallArgs, settings: &Settings, backend: &Wasm) -> Result<Admitted> {
    let own =
        Limits { fuel: args.fuel, memory: args.mem, wall_time: args.timeout, ..Limits::default() };
    let spec = SandboxSpec {
        backend: BackendChoice::Named(registry::WASM),
        image: Image::Wasm(existing("FILE", &args.file)?),
        limits: own.or(settings.limits),
        deterministic: args.deterministic,
        tenant: settings.tenant.clone().unwrap_or_default(),
        ..SandboxSpec::default()
    };
    admit(&spec, &backend.probe().await)
        .map_err(|refusals| Error::refused("wasm call", Some(registry::WASM), refusals))
}

/// What is recorded as having been called.
fn command(args: &CallArgs) -> Vec<String> {
    let file = args.file.display().to_string();
    let named = args.function.iter().chain(&args.arguments).cloned();
    [file].into_iter().chain(named).collect()
}

fn called(answer: Answer) -> Result<Called> {
    let text = |value: &stockade_backends::wasm::call::Val| {
        value.to_wave().map_err(|error| {
            Error::new(ErrorCode::Invalid, "wasm call", format!("no text for it: {error}"))
        })
    };
    let values = answer.values.iter().map(text).collect::<Result<_>>()?;
    Ok(Called { values, cpu_ms: answer.cpu_time.as_millis(), fuel: answer.fuel })
}

fn lines(all: &[String]) -> String {
    all.iter().fold(String::new(), |text, line| text + line + "\n")
}

/// A command whose program is a WebAssembly module gets a sandbox for it: the module is its image. So
/// such a command needs no flag, and no other command ever gets such a sandbox by itself.
pub fn recognise(spec: &mut SandboxSpec, command: &mut Command) -> Result<()> {
    let Run::Program(argv) = &mut command.run else { return Ok(()) };
    let Some(program) = argv.first_mut() else { return Ok(()) };
    let suits = match &spec.backend {
        BackendChoice::Auto => true,
        BackendChoice::Named(name) => registry::runs_wasm(name),
    };
    if spec.image != Image::Host || !suits || !is_module(program) {
        return Ok(());
    }
    if spec.without.contains(&Feature::HostImage) {
        // It is a path inside the sandbox, or the name of a module that the backend knows.
        spec.backend = BackendChoice::Named(registry::WASM);
        return Ok(());
    }
    let Some(path) = on_host(spec, program) else {
        let message = format!("there is no module `{program}`, here or in the workspace");
        return Err(Error::new(ErrorCode::NotFound, "run", message)
            .remedy("name a module with --image wasm:PATH, or give the path of one"));
    };
    spec.image = Image::Wasm(existing("CMD", &path)?);
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
