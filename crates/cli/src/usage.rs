//! What the parser of the command line has to say, in one line and with the right exit code: 2 would
//! be taken for the program's own.

use std::io::Write;

use clap::error::{ContextKind, ErrorKind};
use stockade_core::{Error, ErrorCode};

use crate::printer::{OWN_ERROR, Printer};

/// Shows help and version as they are, everything else as an error; answers the exit code.
pub fn report(error: &clap::Error) -> i32 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader who has seen enough is no failure.
            let _ = error.print();
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = std::io::stderr().write_all(error.render().to_string().as_bytes());
            OWN_ERROR
        }
        _ => Printer::new(wants_json()).error(&told(error)),
    }
}

/// The parser failed, so whether JSON was asked for has to be seen here.
fn wants_json() -> bool {
    let flags = std::env::args_os().take_while(|argument| argument != "--");
    flags.into_iter().any(|argument| argument == "--json")
}

fn told(error: &clap::Error) -> Error {
    let rendered = error.render().to_string();
    let mut paragraphs = rendered.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let message = one_line(first.strip_prefix("error: ").unwrap_or(first));
    let tips: Vec<_> = paragraphs
        .filter_map(|paragraph| paragraph.trim_start().strip_prefix("tip: "))
        .map(one_line)
        .collect();
    let told = Error::new(ErrorCode::Invalid, "command line", message);
    match remedy(error, &tips) {
        Some(remedy) => told.remedy(remedy),
        None => told,
    }
}

/// A value that does not parse says itself what is expected; anything else is answered by the help.
fn remedy(error: &clap::Error, tips: &[String]) -> Option<String> {
    if !tips.is_empty() {
        return Some(tips.join("; "));
    }
    let explained = error.kind() == ErrorKind::ValueValidation;
    let named = error.get(ContextKind::InvalidArg).is_some();
    (!(explained && named))
        .then(|| "`stockade --help` and `stockade COMMAND --help` list all".into())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
