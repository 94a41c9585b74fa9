//! What the parser of the command line has to say, in one line and with the right exit code: 2 would
//! be taken for the program's own.

use std::error::Error as _;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use stockade_core::{Error, ErrorCode};

use crate::terminal::printer::{OWN_ERROR, Printer};

const USAGE_OPERATION: &str = "usage";

/// Shows help and version as they are, everything else as an error; answers the exit code.
pub fn report_usage_error(error: &clap::Error) -> i32 {
    if !error.use_stderr() {
        // A reader who has seen enough is no failure.
        let _ = error.print();
        return 0;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = std::io::stderr().write_all(error.render().to_string().as_bytes());
        return OWN_ERROR;
    }
    Printer::new(wants_json()).error(&usage_error(error))
}

/// The parser failed, so whether JSON was asked for has to be seen here.
fn wants_json() -> bool {
    let flags = std::env::args_os().take_while(|argument| argument != "--");
    flags.into_iter().any(|argument| argument == "--json")
}

fn usage_error(error: &clap::Error) -> Error {
    if let Some(message) = wrong_value(error) {
        return Error::new(ErrorCode::Invalid, USAGE_OPERATION, message);
    }
    let rendered = error.render().to_string();
    let first = rendered.split("\n\n").next().unwrap_or_default();
    let message = one_line(first.strip_prefix("error: ").unwrap_or(first));
    let tip = rendered
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("tip: "))
        .map(one_line)
        // The tip to pass an unknown flag as an argument is left out: it does not help after a typing error.
        .find(|tip| !tip.starts_with("to pass "));
    let all = || "`stockade --help` and `stockade COMMAND --help` list what there is".to_owned();
    let remedy = other_command(error).map(str::to_owned).or(tip).unwrap_or_else(all);
    Error::new(ErrorCode::Invalid, USAGE_OPERATION, message).remedy(remedy)
}

/// What to use instead of a flag of Docker's.
fn other_command(error: &clap::Error) -> Option<&'static str> {
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else { return None };
    match flag.as_str() {
        "-p" | "--publish" => {
            Some("`stockade port ID 8080` leads a port of this host to a server in a sandbox")
        }
        "--rm" => Some("a sandbox of `stockade run` never stays, and `stockade rm` removes others"),
        _ => None,
    }
}

/// A value that does not parse says itself what is expected.
fn wrong_value(error: &clap::Error) -> Option<String> {
    let (Some(ContextValue::String(flag)), Some(ContextValue::String(given))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let why = error.source()?.to_string();
    let flag = flag.split_whitespace().next().unwrap_or(flag);
    if why.contains(&format!("`{given}`")) {
        return Some(format!("{flag}: {why}"));
    }
    Some(format!("{flag}: `{}` {why}", given.escape_debug()))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
