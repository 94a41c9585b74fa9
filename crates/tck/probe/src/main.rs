//! The kit's program inside the walls. Each verb does one thing; an attempt prints one JSON object,
//! `{"ok":true,…}` or `{"ok":false,"errno":…}`, and exits with 0, so that cases decide by facts.
//!
//! It must never judge: whether what it saw is right is for the case to say.

mod fetch;
mod files;
mod hostile;
mod limits;
mod network;
mod output;
mod process;
mod raw;
mod report;
mod signals;
mod terminal;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

/// Exit code for a verb that does not exist or lacks an argument: the kit's own mistake.
const MISUSE_EXIT_CODE: u8 = 250;

/// The arguments behind the verb.
pub struct Args(Vec<String>);

impl Args {
    /// The argument at this place, or an empty text.
    pub fn text(&self, at: usize) -> &str {
        self.0.get(at).map_or("", String::as_str)
    }

    /// The argument at this place as a number.
    pub fn number(&self, at: usize) -> io::Result<u64> {
        self.text(at).parse().map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// The argument at this place as a number, if it was given.
    pub fn number_or(&self, at: usize, fallback: u64) -> io::Result<u64> {
        if at < self.0.len() { self.number(at) } else { Ok(fallback) }
    }

    /// The argument at this place as milliseconds.
    pub fn span(&self, at: usize) -> io::Result<Duration> {
        self.number(at).map(Duration::from_millis)
    }
}

/// What a verb comes to: a code to exit with, or facts to print.
pub enum VerbOutcome {
    /// Exit with this code and print nothing.
    Code(u8),
    /// Print these facts and exit with 0.
    Facts(Value),
}

/// Facts of an attempt that went well.
pub fn report_success(mut facts: Value) -> VerbOutcome {
    facts["ok"] = json!(true);
    VerbOutcome::Facts(facts)
}

/// An attempt: what it found, or the error's number.
pub fn report_attempt(result: io::Result<Value>) -> VerbOutcome {
    match result {
        Ok(facts) => report_success(facts),
        Err(error) => VerbOutcome::Facts(json!({ "ok": false, "errno": number_of(&error) })),
    }
}

/// The error's number; those the library invented get the nearest one.
pub fn number_of(error: &io::Error) -> i32 {
    let invented = if error.kind() == io::ErrorKind::TimedOut { libc::ETIMEDOUT } else { 0 };
    error.raw_os_error().unwrap_or(invented)
}

fn run_verb(verb: &str, args: &Args) -> io::Result<VerbOutcome> {
    match verb {
        "exit" => Ok(VerbOutcome::Code(u8::try_from(args.number(0)?).unwrap_or(MISUSE_EXIT_CODE))),
        "sleep" => process::sleep_after_ready(args),
        "signal-self" => process::signal_self(args),
        "ignore-signals-then-sleep" => process::ignore_signals_then_sleep(args),
        "close-fds-then-sleep" => process::close_fds_then_sleep(args),
        "spawn-detached" => process::spawn_detached(args),
        "detach" => process::spawn_orphan(args),
        "heartbeat" => process::write_heartbeats(args),
        "tick" => process::print_ticks(args),
        "kill" => process::kill_pid(args),
        "find-process" => process::find_process(args),
        "print" => output::print_text(args),
        "print-hex" => output::print_hex(args),
        "flood" => output::flood_output(args),
        "interleave" => output::interleave_output(args),
        "echo" => output::echo_stdin(),
        "burn" => limits::burn_cpu_time(args),
        "burn-for" => limits::burn_for(args),
        "burn-children" => limits::burn_children(args),
        "allocate" => limits::allocate_memory(args),
        "open-files" => limits::open_files(args),
        "fork-many" => limits::fork_many(args),
        "fill" => files::fill_file(args),
        "read" => files::read_file(args),
        "write" => files::write_file(args),
        "remove" => files::remove_path(args),
        "make-link" => files::make_link(args),
        "make-fifo" => files::make_fifo(args),
        "list" => files::list_directory(args),
        "stat" => files::stat_file(args),
        "remount" => files::remount_writable(args),
        "connect" => network::connect_tcp(args),
        "send" => network::send_datagram(args),
        "fetch" => fetch::fetch(args),
        "listen-and-connect" => network::listen_and_connect(),
        "listen-unix" => network::listen_unix(args),
        "connect-unix" => network::connect_unix(args),
        "connect-path" => network::connect_path(args),
        "set-id" => files::set_id(args),
        "contexts" => limits::take_aio_context(),
        "huge-pages" => limits::open_huge_pages(),
        "terminal" => terminal::report_terminal(),
        "wait-resize" => terminal::wait_resize(args),
        "report" => Ok(report::report_surroundings()),
        _ => run_hostile_verb(verb, args),
    }
}

/// The verbs of programs that mean harm.
fn run_hostile_verb(verb: &str, args: &Args) -> io::Result<VerbOutcome> {
    match verb {
        "fork-bomb" => hostile::fork_bomb(),
        "zombies" => hostile::spawn_zombies(args),
        "allocate-many" => hostile::allocate_many(args),
        "hold" => hostile::hold_memory(args),
        "fill-memory-files" => hostile::fill_memory_files(args),
        "fill-many" => hostile::fill_many(args),
        "deep-tree" => hostile::deep_tree(args),
        "many-links" => hostile::many_links(args),
        "kill-everybody" => hostile::kill_everybody(args),
        "signal-parent" => hostile::signal_parent(args),
        "trace-parent" => hostile::trace_parent(),
        "hold-output" => hostile::hold_output(args),
        "holder" => hostile::keep_output_open(args, false),
        "holder-flood" => hostile::keep_output_open(args, true),
        "write-after-close" => hostile::write_after_close(),
        "flood-fast" => hostile::flood_fast(args),
        _ => Ok(VerbOutcome::Code(MISUSE_EXIT_CODE)),
    }
}

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1);
    let verb = given.next().unwrap_or_default();
    let done = run_verb(&verb, &Args(given.collect()));
    match done.unwrap_or_else(|error| report_attempt(Err(error))) {
        VerbOutcome::Code(code) => ExitCode::from(code),
        VerbOutcome::Facts(facts) => match writeln!(io::stdout(), "{facts}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(MISUSE_EXIT_CODE),
        },
    }
}
