//! The kit's program inside the walls. Each verb does one thing; an attempt prints one JSON object,
//! `{"ok":true,…}` or `{"ok":false,"errno":…}`, and exits with 0, so that cases decide by facts.
//!
//! It must never judge: whether what it saw is right is for the case to say.

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
pub enum Done {
    /// Exit with this code and print nothing.
    Code(u8),
    /// Print these facts and exit with 0.
    Facts(Value),
}

/// Facts of an attempt that went well.
pub fn fine(mut facts: Value) -> Done {
    facts["ok"] = json!(true);
    Done::Facts(facts)
}

/// An attempt: what it found, or the error's number.
pub fn attempt(result: io::Result<Value>) -> Done {
    match result {
        Ok(facts) => fine(facts),
        Err(error) => Done::Facts(json!({ "ok": false, "errno": number_of(&error) })),
    }
}

/// The error's number; those the library invented get the nearest one.
pub fn number_of(error: &io::Error) -> i32 {
    let invented = if error.kind() == io::ErrorKind::TimedOut { libc::ETIMEDOUT } else { 0 };
    error.raw_os_error().unwrap_or(invented)
}

fn perform(verb: &str, args: &Args) -> io::Result<Done> {
    match verb {
        "exit" => Ok(Done::Code(u8::try_from(args.number(0)?).unwrap_or(MISUSE_EXIT_CODE))),
        "sleep" => process::sleep(args),
        "signal-self" => process::signal_self(args),
        "ignore-signals-then-sleep" => process::ignore_signals_then_sleep(args),
        "close-fds-then-sleep" => process::close_fds_then_sleep(args),
        "spawn-detached" => process::spawn_detached(args),
        "detach" => process::detach(args),
        "heartbeat" => process::heartbeat(args),
        "tick" => process::tick(args),
        "kill" => process::kill(args),
        "find-process" => process::find(args),
        "print" => output::print(args),
        "print-hex" => output::print_hex(args),
        "flood" => output::flood(args),
        "interleave" => output::interleave(args),
        "echo" => output::echo(),
        "burn" => limits::burn(args),
        "burn-for" => limits::burn_for(args),
        "burn-children" => limits::burn_children(args),
        "allocate" => limits::allocate(args),
        "open-files" => limits::open_files(args),
        "fork-many" => limits::fork_many(args),
        "fill" => files::fill(args),
        "read" => files::read(args),
        "write" => files::write(args),
        "remove" => files::remove(args),
        "make-link" => files::make_link(args),
        "make-fifo" => files::make_fifo(args),
        "list" => files::list(args),
        "stat" => files::stat(args),
        "remount" => files::remount(args),
        "connect" => network::connect(args),
        "listen-and-connect" => network::listen_and_connect(),
        "listen-unix" => network::listen_unix(args),
        "connect-unix" => network::connect_unix(args),
        "connect-path" => network::connect_path(args),
        "set-id" => files::set_id(args),
        "contexts" => limits::contexts(),
        "terminal" => terminal::terminal(),
        "wait-resize" => terminal::wait_resize(args),
        "report" => Ok(report::report()),
        _ => misbehave(verb, args),
    }
}

/// The verbs of programs that mean harm.
fn misbehave(verb: &str, args: &Args) -> io::Result<Done> {
    match verb {
        "fork-bomb" => hostile::fork_bomb(),
        "zombies" => hostile::zombies(args),
        "allocate-many" => hostile::allocate_many(args),
        "hold" => hostile::hold(args),
        "fill-memory-files" => hostile::fill_memory_files(args),
        "fill-many" => hostile::fill_many(args),
        "deep-tree" => hostile::deep_tree(args),
        "many-links" => hostile::many_links(args),
        "kill-everybody" => hostile::kill_everybody(args),
        "signal-parent" => hostile::signal_parent(args),
        "trace-parent" => hostile::trace_parent(),
        "hold-output" => hostile::hold_output(args),
        "holder" => hostile::holder(args, false),
        "holder-flood" => hostile::holder(args, true),
        "write-after-close" => hostile::write_after_close(),
        "flood-fast" => hostile::flood_fast(args),
        _ => Ok(Done::Code(MISUSE_EXIT_CODE)),
    }
}

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1);
    let verb = given.next().unwrap_or_default();
    let done = perform(&verb, &Args(given.collect()));
    match done.unwrap_or_else(|error| attempt(Err(error))) {
        Done::Code(code) => ExitCode::from(code),
        Done::Facts(facts) => match writeln!(io::stdout(), "{facts}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(MISUSE_EXIT_CODE),
        },
    }
}
