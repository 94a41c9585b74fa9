//! The `stockade` command: parses, dispatches, and ends with the right exit code. Nothing else: what
//! a command does is in its own file.

mod absent;
mod args;
mod asking;
mod attend;
mod audit;
mod caller;
mod capture;
mod cli;
mod command;
mod completions;
mod config;
mod config_command;
mod detect;
mod env;
mod explain;
mod input;
mod interrupts;
mod lasting;
mod mcp;
mod output;
mod prefix;
mod printer;
mod profiles;
mod reasons;
mod refusals;
mod registry;
mod run;
mod secrets_in_arguments;
mod streams;
mod table;
#[cfg(feature = "tck")]
mod tck;
mod terminal;
mod toolchains;
mod umask;
mod usage;
mod views;
mod wasm;
mod workspace;

use clap::Parser;
use stockade_backends::native::Native;
use stockade_core::{Error, ErrorCode, Result};
use tokio::runtime::Runtime;

use cli::{Cli, Verb};
use printer::Printer;

fn main() {
    #[cfg(feature = "wasm")]
    if std::env::args_os().nth(1).is_some_and(|role| role == registry::WASM_WORKER) {
        std::process::exit(stockade_backends::wasm::worker(std::env::args().skip(2)));
    }
    umask::make_private();
    // Before this process is copied, which copies its command line too.
    let words = secrets_in_arguments::take_arguments();
    // While this process finds out what is wanted, its copy gets ready for it.
    let native = if is_run(&words) { Native::ahead() } else { Native::new() };
    let code = match Cli::try_parse_from(words) {
        Ok(cli) => run_command_line(cli, native),
        Err(error) => usage::report_usage_error(&error),
    };
    // Without unwinding the runtime: everything was released by the command itself.
    std::process::exit(code);
}

/// Whether the command line most probably asks for one sandbox with native walls. Being wrong costs a
/// millisecond.
fn is_run(words: &[std::ffi::OsString]) -> bool {
    let mut words = words.iter().skip(1).cloned();
    words.next().is_some_and(|verb| verb == "run") && !names_another(words)
}

/// Whether another backend is named, as far as options go.
fn names_another(words: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let options = words.take_while(|word| word != "--");
    let options: Vec<String> = options.filter_map(|word| word.into_string().ok()).collect();
    let in_one = options.iter().find_map(|option| option.strip_prefix("--backend="));
    let in_two = || options.windows(2).find(|pair| pair[0] == "--backend").map(|pair| &*pair[1]);
    in_one.or_else(in_two).is_some_and(|name| name != "native")
}

fn run_command_line(cli: Cli, native: Native) -> i32 {
    let printer = Printer::new(cli.json).verbose(cli.verbose);
    let done =
        build_runtime().and_then(|runtime| runtime.block_on(run_verb(cli.verb, native, &printer)));
    done.unwrap_or_else(|error| printer.error(&error))
}

async fn run_verb(verb: Verb, native: Native, printer: &Printer) -> Result<i32> {
    match verb {
        Verb::Run(args) => run::run(args, native, printer).await,
        Verb::Create(args) => lasting::create::create(args, printer).await,
        Verb::Exec(args) => lasting::exec::exec(args, printer).await,
        Verb::Shell(args) => lasting::shell::shell(args, printer).await,
        Verb::Cp(args) => lasting::cp::cp(&args, printer).await,
        Verb::Ps(args) => lasting::ps::ps(&args, printer).await,
        Verb::Logs(args) => lasting::logs::logs(&args, printer).await,
        Verb::Kill(args) => lasting::kill::kill(&args, printer).await,
        Verb::Rm(args) => lasting::rm::rm(&args, printer).await,
        Verb::Snapshot(args) => lasting::snapshot::snapshot(args, printer).await,
        Verb::Fork(args) => lasting::fork::fork(&args, printer).await,
        Verb::Teleport(args) => lasting::teleport::teleport(&args, printer).await,
        Verb::Arrive(args) => lasting::teleport::arrive(&args, printer).await,
        Verb::Pause(args) => lasting::pause::pause(&args, printer).await,
        Verb::Resume(args) => lasting::pause::resume(&args, printer).await,
        Verb::Supervise => lasting::supervisor::supervise(printer).await,
        Verb::Mcp(args) => mcp::mcp(args, printer).await,
        Verb::Workspace(args) => views::workspace(args, printer).await,
        #[cfg(feature = "wasm")]
        Verb::Wasm(args) => wasm::call::wasm(args, printer).await,
        #[cfg(not(feature = "wasm"))]
        Verb::Wasm(_) => Err(absent::absent_error("wasm", "WebAssembly")),
        Verb::Detect(args) => detect::detect(&args, printer).await,
        Verb::Explain(args) => explain::explain(args, printer).await,
        Verb::Config(args) => config_command::config(&args, printer),
        Verb::Audit(args) => audit::audit(args, printer),
        Verb::Events => audit::follow_events(printer),
        #[cfg(feature = "tck")]
        Verb::Tck(args) => tck::tck(&args, printer),
        #[cfg(not(feature = "tck"))]
        Verb::Tck(_) => Err(absent::absent_error("tck", "conformance kit")),
        #[cfg(feature = "tck")]
        Verb::TckEngine(args) => tck::engine(&args, printer).await,
        Verb::Completions(args) => completions::completions(&args, printer),
    }
}

/// One thread is enough for one command, and starting more would cost more than most commands.
fn build_runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Error::new(ErrorCode::System, "start", "the event loop cannot be made").source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::names_another;

    #[test]
    fn another_backend_is_told_by_its_option_alone() {
        let told = |line: &str| names_another(line.split(' ').map(Into::into));
        assert!(told("--backend gvisor -- true"));
        assert!(told("--net none --backend=wasm -- true"));
        assert!(!told("--backend native -- true"));
        assert!(!told("--backend=native -- true --backend gvisor"));
        assert!(!told("-- true --backend gvisor"));
        assert!(!told("--backend"));
    }
}
