//! `stockade tck`: the conformance kit on the backends of this host.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use stockade_backends::exec::{self, Exec};
use stockade_backends::mock;
use stockade_core::{Backend, BackendChoice, BackendName, Error, ErrorCode, Result};
use stockade_tck::simulated::Simulated;
use stockade_tck::{KitOptions, OnHost, Report, Subject, run, serve_engine};

use crate::config::Settings;
use crate::terminal::printer::Printer;
use crate::{registry, umask};

/// Hidden command that the kit starts in order to kill it.
pub const TCK_ENGINE_COMMAND: &str = "tck-engine";

/// Which backends and cases.
#[derive(Debug, Args)]
pub struct TckArgs {
    /// Test this backend. [default: native]
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    backend: Option<BackendName>,
    /// Test a backend outside of this build: a program that builds walls, with its arguments (docs/adding-a-backend.md).
    #[arg(long, value_name = "PROGRAM", num_args = 1.., conflicts_with_all = ["backend", "all"])]
    exec: Vec<String>,
    /// Test every available backend.
    #[arg(long)]
    all: bool,
    /// Only cases whose name holds this text, or that check this clause.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// How many cases run at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    jobs: usize,
    /// Write the report as JUnit XML too.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Which backend the engine to be killed uses.
#[derive(Debug, Args)]
pub struct EngineArgs {
    backend: BackendName,
    /// The program, where the backend is one.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// Judges and reports. Ends with 1 if a case failed or nothing was checked.
pub fn tck(args: &TckArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let backends = match &args.backend {
        Some(name) if *name == mock::NAME => Vec::new(),
        None if !args.exec.is_empty() => vec![build_exec(&args.exec)?],
        Some(name) => vec![registry::find_backend(&settings, name)?],
        None if args.all => registry::build_real_backends(&settings, &BackendChoice::Auto)?,
        None => registry::build_real_backends(&settings, &BackendChoice::Auto)?
            .into_iter()
            .take(1)
            .collect(),
    };
    let options = KitOptions { only: args.only.clone(), jobs: args.jobs };
    let mut subjects: Vec<Arc<dyn Subject>> = Vec::new();
    for backend in backends {
        subjects.push(Arc::new(build_subject(backend, &args.exec)?));
    }
    if args.backend.as_ref() == Some(&mock::NAME) {
        subjects.push(Arc::new(build_simulated()?));
    }
    let judge = || run_cases(subjects, &options, printer);
    let reports = std::thread::scope(|scope| scope.spawn(judge).join())
        .unwrap_or_else(|_| Err(tck_error("the kit itself failed")))?;
    show_reports(&reports, printer);
    if let Some(file) = &args.junit {
        let text: String = reports.iter().map(Report::junit).collect();
        umask::write_for_caller(file, text.as_bytes()).map_err(|error| {
            tck_error(format!("{} cannot be written", file.display())).source(error)
        })?;
    }
    Ok(i32::from(!reports.iter().all(Report::success)))
}

/// Many cases at once, on threads of their own.
fn run_cases(
    subjects: Vec<Arc<dyn Subject>>,
    options: &KitOptions,
    printer: &Printer,
) -> Result<Vec<Report>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| tck_error("the event loop cannot be made").source(error))?;
    let mut reports = Vec::new();
    for subject in subjects {
        let judging = format!("judging {}", subject.name());
        reports.push(runtime.block_on(printer.patiently(&judging, run(subject, options))));
    }
    Ok(reports)
}

/// Serves an engine for the kit to kill.
pub async fn engine(args: &EngineArgs, printer: &Printer) -> Result<i32> {
    let subject: Arc<dyn Subject> = if args.backend == mock::NAME {
        Arc::new(Simulated::default())
    } else if args.backend == exec::NAME {
        Arc::new(on_host(build_exec(&args.program)?)?)
    } else {
        let settings = Settings::load(None, printer)?;
        Arc::new(on_host(registry::find_backend(&settings, &args.backend)?)?)
    };
    match serve_engine(subject.as_ref()).await {
        Ok(()) => Ok(0),
        Err(error) => Err(tck_error(error.to_string())),
    }
}

/// With the probe that its programs are like.
fn on_host(backend: Arc<dyn Backend>) -> Result<OnHost> {
    if !registry::runs_wasm(&backend.name()) {
        return Ok(OnHost::new(backend));
    }
    OnHost::of_wasm(backend).map_err(|stop| tck_error(format!("no place for its image: {stop:?}")))
}

/// The mock, which plays the probe itself: it shows that the kit works, and nothing about walls.
fn build_simulated() -> Result<Simulated> {
    let arguments = vec![TCK_ENGINE_COMMAND.to_owned(), mock::NAME.to_string()];
    Ok(Simulated::default().with_engine_command(find_own_program()?, arguments))
}

fn find_own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| tck_error("this program cannot be found").source(error))
}

/// The backend that is this program.
fn build_exec(words: &[String]) -> Result<Arc<dyn Backend>> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(tck_error("no program is named"));
    };
    Ok(Arc::new(Exec::program(program, arguments.to_vec())))
}

fn build_subject(backend: Arc<dyn Backend>, program: &[String]) -> Result<OnHost> {
    let own = find_own_program()?;
    let words = [TCK_ENGINE_COMMAND.to_owned(), backend.name().to_string()];
    let arguments = words.into_iter().chain(program.iter().cloned()).collect();
    let namespaces = registry::has_namespaces(&backend.name());
    let subject = on_host(backend)?
        .leaving_nothing_in(std::env::temp_dir())
        .with_engine_process(own, arguments);
    Ok(if namespaces { subject } else { subject.without_namespaces() })
}

fn show_reports(reports: &[Report], printer: &Printer) {
    if printer.is_json() {
        let all: Vec<_> = reports.iter().map(Report::json).collect();
        printer.json(&all);
    } else {
        let all: Vec<_> = reports.iter().map(Report::table).collect();
        printer.data(&all.join("\n"));
    }
}

fn tck_error(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::System, "tck", message)
}
