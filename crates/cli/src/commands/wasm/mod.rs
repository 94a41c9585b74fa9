//! `stockade wasm call`: calls an exported function of a module or component.

mod record;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use stockade_backends::wasm::Wasm;
use stockade_backends::wasm::call::CallAnswer;
use stockade_core::{
    Admitted, Backend, BackendChoice, Bytes, Error, ErrorCode, Image, Limits, Result, SandboxSpec,
    Span, admit,
};

use crate::args::resolve_existing_path;
use crate::config::Settings;
use crate::registry;
use crate::terminal::printer::Printer;

use record::CallRecord;

/// What to do with a module.
#[derive(Debug, Args)]
pub struct WasmArgs {
    #[command(subcommand)]
    verb: WasmVerb,
}

#[derive(Debug, Subcommand)]
enum WasmVerb {
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
    let WasmVerb::Call(args) = args.verb;
    let bytes = std::fs::read(&args.file).map_err(|error| {
        let message = format!("`{}` cannot be read", args.file.display());
        Error::new(ErrorCode::NotFound, "wasm call", message)
            .remedy("name a module or component: a file that you may read")
            .source(error)
    })?;
    let settings = Settings::load(None, printer)?;
    let backend = registry::build_wasm_backend();
    let admitted = admit_call(&args, &settings, &backend).await?;
    let limits = *admitted.limits();
    let record = CallRecord::open(&settings, admitted, build_recorded_command(&args)).await?;
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
            false => printer.data(&join_lines(&listed.functions)),
        }
        return Ok(0);
    };
    let answer = instance.call_text(function, &args.arguments).await;
    record.close(Some(&instance), answer.as_ref().map(Some)).await?;
    let called = convert_answer(answer?)?;
    match printer.is_json() {
        true => printer.json(&called),
        false => printer.data(&join_lines(&called.values)),
    }
    Ok(0)
}

/// What is asked for, held against what there is, as for any execution.
async fn admit_call(args: &CallArgs, settings: &Settings, backend: &Wasm) -> Result<Admitted> {
    let own =
        Limits { fuel: args.fuel, memory: args.mem, wall_time: args.timeout, ..Limits::default() };
    let spec = SandboxSpec {
        backend: BackendChoice::Named(registry::WASM_BACKEND),
        image: Image::Wasm(resolve_existing_path("FILE", &args.file)?),
        limits: own.or(settings.limits),
        deterministic: args.deterministic,
        tenant: settings.tenant.clone().unwrap_or_default(),
        ..SandboxSpec::default()
    };
    admit(&spec, &backend.probe().await)
        .map_err(|refusals| Error::refused("wasm call", Some(registry::WASM_BACKEND), refusals))
}

/// What is recorded as having been called.
fn build_recorded_command(args: &CallArgs) -> Vec<String> {
    let file = args.file.display().to_string();
    let named = args.function.iter().chain(&args.arguments).cloned();
    [file].into_iter().chain(named).collect()
}

fn convert_answer(answer: CallAnswer) -> Result<Called> {
    let text = |value: &stockade_backends::wasm::call::Val| {
        value.to_wave().map_err(|error| {
            Error::new(ErrorCode::Invalid, "wasm call", format!("no text for it: {error}"))
        })
    };
    let values = answer.values.iter().map(text).collect::<Result<_>>()?;
    Ok(Called { values, cpu_ms: answer.cpu_time.as_millis(), fuel: answer.fuel })
}

fn join_lines(all: &[String]) -> String {
    all.iter().fold(String::new(), |text, line| text + line + "\n")
}
