//! `stockade shell`: a shell on this terminal, in a sandbox that lives on or in a fresh one.

use clap::Args;
use stockade_core::{Command, Result, SandboxId, Stdin};

use super::exec::{connect_supervisor, exec_attached};
use super::run;
use crate::args::SpecArgs;
use crate::terminal;
use crate::terminal::printer::Printer;

/// Script that runs the caller's own shell where the sandbox has it.
const OWN_SHELL_SCRIPT: &str = r#"command -v "$0" >/dev/null 2>&1 && exec "$0"; exec /bin/sh"#;
const DEFAULT_SHELL: &str = "/bin/sh";

/// Where to open a shell.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// The sandbox. [default: a new one, which ends with the shell]
    #[arg(
        value_name = "ID",
        conflicts_with_all = ["SpecArgs", "PlaceArgs", "SurroundingArgs", "LimitArgs"]
    )]
    id: Option<SandboxId>,
    #[command(flatten)]
    spec: SpecArgs,
}

/// Opens the shell; answers its exit code.
pub async fn shell(args: ShellArgs, printer: &Printer) -> Result<i32> {
    let Some(id) = args.id else {
        return run::run_interactive(args.spec, build_shell_argv(), printer).await;
    };
    let connection = connect_supervisor(&id, "shell", printer).await?;
    let terminal = Some(terminal::read_terminal_size());
    let command =
        Command { stdin: Stdin::Stream, terminal, ..Command::program(build_shell_argv()) };
    exec_attached(connection, command, printer).await
}

fn build_shell_argv() -> Vec<String> {
    let own = std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
    let own = own.unwrap_or_else(|| DEFAULT_SHELL.into());
    [DEFAULT_SHELL, "-c", OWN_SHELL_SCRIPT].map(str::to_owned).into_iter().chain([own]).collect()
}
