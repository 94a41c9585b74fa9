//! The `stockade` command: parses, dispatches, and ends with the right exit code. Nothing else: what
//! a command does is in its own file.

mod absent;
mod args;
mod cli;
mod commands;
mod config;
mod daemon;
mod home;
mod image;
mod profiles;
mod project_cache;
mod registry;
mod report;
mod terminal;
mod toolchains;
mod umask;
mod workspace;

use stockade_backends::native::Native;
use stockade_core::{Error, ErrorCode, Result};
use tokio::runtime::Runtime;

use args::secrets_in_arguments;
use cli::{Cli, RUN_COMMAND, Verb};
use daemon::SUPERVISE_COMMAND;
use report::usage;
use terminal::printer::{Printer, report_lost_output};

fn main() {
    #[cfg(feature = "wasm")]
    if std::env::args_os().nth(1).is_some_and(|role| role == registry::WASM_WORKER) {
        std::process::exit(stockade_backends::wasm::worker(std::env::args().skip(2)));
    }
    umask::make_private();
    home::set_missing_home();
    // Before this process is copied, which copies its command line too.
    let words = secrets_in_arguments::take_arguments();
    // While this process finds out what is wanted, its copy gets ready for it.
    let native = match is_run(&words) || is_supervisor(&words) {
        true => Native::ahead(),
        false => Native::new(),
    };
    let code = match Cli::parse_words(words) {
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
    words.next().is_some_and(|verb| verb == RUN_COMMAND) && !names_another(words)
}

/// Whether this process is to own one sandbox that lives on. A launcher that is a copy of it shares its memory.
fn is_supervisor(words: &[std::ffi::OsString]) -> bool {
    words.get(1).is_some_and(|verb| verb == SUPERVISE_COMMAND)
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
    let printer = Printer::new(cli.shared.json).verbose(cli.shared.verbose);
    let done =
        build_runtime().and_then(|runtime| runtime.block_on(run_verb(cli.verb, native, &printer)));
    report_lost_output(done.unwrap_or_else(|error| printer.error(&error)))
}

async fn run_verb(verb: Verb, native: Native, printer: &Printer) -> Result<i32> {
    match verb {
        Verb::Run(args) => commands::run::run(args, native, printer).await,
        Verb::Create(args) => commands::create::create(args, printer).await,
        Verb::Exec(args) => commands::exec::exec(args, printer).await,
        Verb::Shell(args) => commands::shell::shell(args, printer).await,
        Verb::Cp(args) => commands::cp::cp(&args, printer).await,
        Verb::Port(args) => commands::port::port(args, printer).await,
        Verb::Net(args) => commands::net::net(args, printer).await,
        Verb::Ps(args) => commands::ps::ps(&args, printer).await,
        Verb::Logs(args) => commands::logs::logs(&args, printer).await,
        Verb::Kill(args) => commands::kill::kill(&args, printer).await,
        Verb::Rm(args) => commands::rm::rm(&args, printer).await,
        Verb::Image(args) => commands::image::image(args, printer).await,
        Verb::Snapshot(args) => commands::snapshot::snapshot(args, printer).await,
        Verb::Fork(args) => commands::fork::fork(&args, printer).await,
        Verb::Teleport(args) => commands::teleport::teleport(&args, printer).await,
        Verb::Arrive(args) => commands::teleport::arrive(&args, printer).await,
        Verb::Pause(args) => commands::pause::pause(&args, printer).await,
        Verb::Resume(args) => commands::resume::resume(&args, printer).await,
        Verb::Supervise => daemon::supervisor::supervise(native, printer).await,
        Verb::Mcp(args) => commands::mcp::mcp(args, printer).await,
        Verb::Serve(args) => commands::serve::serve(args, printer).await,
        Verb::Token(args) => commands::token::token(args, printer),
        Verb::Workspace(args) => commands::workspace::workspace(args, printer).await,
        #[cfg(feature = "wasm")]
        Verb::Wasm(args) => commands::wasm::wasm(args, printer).await,
        #[cfg(not(feature = "wasm"))]
        Verb::Wasm(_) => Err(absent::absent_error("wasm", "WebAssembly")),
        Verb::Detect(args) => commands::detect::detect(&args, printer).await,
        Verb::Explain(args) => commands::explain::explain(args, printer).await,
        Verb::Config(args) => commands::config::config(&args, printer),
        Verb::Audit(args) => commands::audit::audit(args, printer),
        Verb::Events => commands::events::events(printer),
        Verb::Clean(args) => commands::clean::clean(&args, printer).await,
        #[cfg(feature = "tck")]
        Verb::Tck(args) => commands::tck::tck(&args, printer),
        #[cfg(not(feature = "tck"))]
        Verb::Tck(_) => Err(absent::absent_error("tck", "conformance kit")),
        #[cfg(feature = "tck")]
        Verb::TckEngine(args) => commands::tck::engine(&args, printer).await,
        Verb::Completions(args) => commands::completions::completions(&args, printer),
        Verb::Man(args) => commands::man::man(&args, printer),
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
