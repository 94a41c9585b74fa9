//! The commands there are and the flags that all of them share.

use std::ffi::OsString;

use clap::{Args, FromArgMatches, Parser, Subcommand};

#[cfg(not(all(feature = "tck", feature = "wasm")))]
use crate::absent::AbsentArgs;
use crate::commands::audit::AuditArgs;
use crate::commands::clean::CleanArgs;
use crate::commands::completions::CompletionsArgs;
use crate::commands::config::ConfigArgs;
use crate::commands::cp::CpArgs;
use crate::commands::create::CreateArgs;
use crate::commands::detect::DetectArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::explain::ExplainArgs;
use crate::commands::fork::ForkArgs;
use crate::commands::image::ImageArgs;
use crate::commands::kill::KillArgs;
use crate::commands::logs::LogsArgs;
use crate::commands::man::ManArgs;
use crate::commands::mcp::McpArgs;
use crate::commands::net::NetArgs;
use crate::commands::pause::PauseArgs;
use crate::commands::port::PortArgs;
use crate::commands::ps::PsArgs;
use crate::commands::rm::RmArgs;
use crate::commands::run::RunArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::shell::ShellArgs;
use crate::commands::snapshot::SnapshotArgs;
#[cfg(feature = "tck")]
use crate::commands::tck::{EngineArgs, TCK_ENGINE_COMMAND, TckArgs};
use crate::commands::teleport::{ARRIVE_COMMAND, ArriveArgs, TeleportArgs};
use crate::commands::token::TokenArgs;
#[cfg(feature = "wasm")]
use crate::commands::wasm::WasmArgs;
use crate::commands::workspace::WorkspaceArgs;
use crate::daemon::SUPERVISE_COMMAND;

/// The command that is typed most.
pub const RUN_COMMAND: &str = "run";

/// Runs untrusted commands in sandboxes whose walls are checked before each start.
#[derive(Debug, Parser)]
#[command(name = "stockade", version, propagate_version = true)]
#[command(max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub shared: SharedFlags,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Flags of every command.
#[derive(Debug, Args)]
pub struct SharedFlags {
    /// Answer with one JSON object on standard output.
    #[arg(long, global = true)]
    pub json: bool,
    /// Show why each backend refuses, not only the one that would be chosen.
    #[arg(long, global = true)]
    pub verbose: bool,
}

impl Cli {
    /// Parses a command line. `run` is tried alone first: building the flags of all commands takes longer than
    /// parsing it.
    pub fn parse_words(words: Vec<OsString>) -> Result<Self, clap::Error> {
        match Self::parse_run(&words) {
            Some(cli) => Ok(cli),
            None => Self::try_parse_from(words),
        }
    }

    /// A `stockade run` without anything that needs the whole parser: help, errors and what they recommend.
    fn parse_run(words: &[OsString]) -> Option<Self> {
        if words.get(1)? != RUN_COMMAND {
            return None;
        }
        let run = RunArgs::augment_args(clap::Command::new(RUN_COMMAND));
        let parser = SharedFlags::augment_args(clap::Command::new("stockade")).subcommand(run);
        let found = parser.try_get_matches_from(words).ok()?;
        let run = RunArgs::from_arg_matches(found.subcommand_matches(RUN_COMMAND)?).ok()?;
        let shared = SharedFlags::from_arg_matches(&found).ok()?;
        Some(Self { shared, verb: Verb::Run(run) })
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run one command in a sandbox of its own.
    ///
    /// Output streams live. The exit code is the command's own; 124 when its time ran out, 125 when
    /// stockade itself failed, 126 and 127 when it could not be executed or found, 128 + n when a
    /// signal ended it.
    Run(RunArgs),
    /// Create a persistent sandbox, and print its id.
    Create(CreateArgs),
    /// Run a command in a persistent sandbox.
    Exec(ExecArgs),
    /// Open a shell in a persistent sandbox, or in a new one.
    Shell(ShellArgs),
    /// Copy files and directories into a sandbox or out of it.
    Cp(CpArgs),
    /// Forward local ports to ports of a persistent sandbox.
    ///
    /// HTTP, WebSocket and any other TCP; many connections at once, until Ctrl-C or the end of the
    /// sandbox. It works without --net: nothing gets out this way.
    Port(PortArgs),
    /// Show what a persistent sandbox may reach, or change it while it runs.
    ///
    /// Rules are those of --net. Connections that lose their right are cut, and no others.
    Net(NetArgs),
    /// List the sandboxes of every stockade process of this user.
    Ps(PsArgs),
    /// Show the output of a command in a sandbox.
    Logs(LogsArgs),
    /// Kill sandboxes, with everything in them.
    Kill(KillArgs),
    /// Remove sandboxes in which nothing runs.
    Rm(RmArgs),
    /// Pull, list, remove, inspect, import and export images for `--image NAME`.
    Image(ImageArgs),
    /// Take, restore, list, remove, export and import snapshots of sandboxes.
    Snapshot(SnapshotArgs),
    /// Make copies of a persistent sandbox, and print their ids.
    Fork(ForkArgs),
    /// Move a persistent sandbox to another host, and print its new id.
    ///
    /// Its files go there over ssh, and its memory where its backend can. The one here ends when the
    /// other host has confirmed its copy, and not before.
    Teleport(TeleportArgs),
    #[command(name = ARRIVE_COMMAND, hide = true)]
    Arrive(ArriveArgs),
    /// Pause sandboxes: everything in them stops until `resume`.
    Pause(PauseArgs),
    /// Continue paused sandboxes.
    Resume(PauseArgs),
    #[command(name = SUPERVISE_COMMAND, hide = true)]
    Supervise,
    /// Serve tools to a coding agent (Model Context Protocol).
    ///
    /// On standard input and output unless --http is given. Every tool works in a sandbox over the
    /// workspace, made at the first call and gone when the server ends.
    Mcp(McpArgs),
    /// Serve sandboxes to other programs over HTTP.
    ///
    /// On a socket that only your user can open, whose path is printed; with --listen also on TCP, for holders
    /// of tokens. Sandboxes made this way end with the server. See docs/api.md.
    Serve(ServeArgs),
    /// Make, list and revoke the tokens for `serve --listen`.
    Token(TokenArgs),
    /// List, diff, apply and discard the changes of `--overlay` and `--git`.
    Workspace(WorkspaceArgs),
    /// Call the functions of a WebAssembly module or component.
    #[cfg(feature = "wasm")]
    Wasm(WasmArgs),
    #[cfg(not(feature = "wasm"))]
    #[command(hide = true)]
    Wasm(AbsentArgs),
    /// Show what each backend can do on this host, as measured.
    Detect(DetectArgs),
    /// Show which backend a command would get and why not the others. Runs nothing.
    Explain(ExplainArgs),
    /// Show what is configured and where it comes from, or check it.
    Config(ConfigArgs),
    /// Read the audit journal: who ran what, and how it ended.
    Audit(AuditArgs),
    /// Print new events of the audit journal as they are recorded, one per line.
    Events,
    /// Free the space of caches and leftovers.
    ///
    /// Frees what Stockade makes again where it is missing, and what dead processes left. What is in
    /// use stays, and so do workspaces, snapshots, the journal and output that `logs` can show.
    Clean(CleanArgs),
    /// Run the conformance kit on the backends of this host.
    #[cfg(feature = "tck")]
    Tck(TckArgs),
    #[cfg(not(feature = "tck"))]
    #[command(hide = true)]
    Tck(AbsentArgs),
    #[cfg(feature = "tck")]
    #[command(name = TCK_ENGINE_COMMAND, hide = true)]
    TckEngine(EngineArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the manual page of a command, or write those of all commands.
    ///
    /// `stockade man run | man -l -` shows one; with --dir ~/.local/share/man/man1 they are found as
    /// `man stockade-run`.
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn run_is_parsed_alone_as_with_all_commands() {
        for line in [
            "stockade run -- true",
            "stockade run --json -- true --json",
            "stockade run --verbose --backend native --mem 256m -e A=b -- sh -c x",
            "stockade run -it --net preset:python --shell ls",
            "stockade run --image debian:12",
        ] {
            let alone = Cli::parse_run(&words(line)).map(|cli| format!("{cli:?}"));
            let whole = Cli::try_parse_from(words(line)).unwrap();
            assert_eq!(alone, Some(format!("{whole:?}")), "{line}");
        }
    }

    #[test]
    fn all_else_is_left_to_the_whole_parser() {
        for line in [
            "stockade",
            "stockade --json run -- true",
            "stockade run --help",
            "stockade run --bakend native -- true",
            "stockade run --timeout never -- true",
            "stockade ps",
        ] {
            assert!(Cli::parse_run(&words(line)).is_none(), "{line}");
        }
    }
}
