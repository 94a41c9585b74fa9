//! `stockade shell`: a shell on this terminal, in a sandbox that lives on or in a fresh one.

use std::io::IsTerminal;

use clap::Args;
use stockade_core::{Command, Error, ErrorCode, Result, SandboxId, Stdin};

use super::exec::{connect_supervisor, exec_attached};
use super::run;
use crate::args::SpecArgs;
use crate::terminal;
use crate::terminal::printer::Printer;

const SHELL_OPERATION: &str = "shell";
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
        // Before an image is pulled for it.
        require_terminal("stockade run -- sh")?;
        return run::run_interactive(args.spec, build_shell_argv(), printer).await;
    };
    let connection = connect_supervisor(&id, SHELL_OPERATION, printer).await?;
    require_terminal(&format!("stockade exec -i {id} -- sh"))?;
    let terminal = Some(terminal::read_terminal_size());
    let command =
        Command { stdin: Stdin::Stream, terminal, ..Command::program(build_shell_argv()) };
    exec_attached(connection, command, printer).await
}

/// Refuses where there is no terminal for the shell, naming the command that needs none.
fn require_terminal(without_terminal: &str) -> Result<()> {
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    let message = "there is no terminal on standard input";
    Err(Error::new(ErrorCode::Invalid, SHELL_OPERATION, message)
        .remedy(format!("use `{without_terminal}`")))
}

fn build_shell_argv() -> Vec<String> {
    let own = std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
    let own = own.unwrap_or_else(|| DEFAULT_SHELL.into());
    [DEFAULT_SHELL, "-c", OWN_SHELL_SCRIPT].map(str::to_owned).into_iter().chain([own]).collect()
}
