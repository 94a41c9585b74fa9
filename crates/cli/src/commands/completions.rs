//! `stockade completions`: a script that teaches a shell the commands and flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use stockade_core::Result;

use crate::cli::Cli;
use crate::terminal::printer::Printer;

/// For which shell.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the script.
pub fn completions(args: &CompletionsArgs, printer: &Printer) -> Result<i32> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "stockade", &mut script);
    printer.data(&String::from_utf8_lossy(&script));
    Ok(0)
}
