//! The flags that say what to run, shared by every command that starts a program.

use clap::Args;
use stockade_core::{Command, Error, ErrorCode, Feature, LimitKind, Result, SandboxSpec, Stdin};

use crate::terminal;

/// What to run, and how it is connected.
#[derive(Debug, Clone, Args)]
pub struct CommandArgs {
    /// Pass standard input on. Without it the command's input is empty.
    #[arg(short, long, help_heading = "Command")]
    pub interactive: bool,
    /// Give the command a terminal. No default time limits then.
    #[arg(short, long = "tty", help_heading = "Command")]
    pub terminal: bool,
    /// Run one line of shell instead of a program.
    #[arg(long, value_name = "LINE", conflicts_with = "program", help_heading = "Command")]
    pub shell: Option<String>,
    /// The program and its arguments.
    #[arg(value_name = "CMD", trailing_var_arg = true, help_heading = "Command")]
    pub program: Vec<String>,
}

impl CommandArgs {
    /// Whether anything was named to run.
    pub const fn is_empty(&self) -> bool {
        self.shell.is_none() && self.program.is_empty()
    }

    /// The command these flags mean.
    pub fn command(&self) -> Result<Command> {
        if self.is_empty() {
            return Err(Error::new(ErrorCode::Invalid, "run", "no command is given")
                .remedy("say `stockade run -- CMD ARGS`, or use --shell LINE"));
        }
        let command = match &self.shell {
            Some(line) => Command::shell(line.clone()),
            None => Command::program(self.program.iter().cloned()),
        };
        let streamed = self.interactive || self.terminal;
        let stdin = if streamed { Stdin::Stream } else { Stdin::None };
        let terminal = self.terminal.then(terminal::size);
        Ok(Command { stdin, terminal, ..command })
    }

    /// A person at a terminal is in nobody's hurry: times hold only if they were asked for. And programs
    /// on a terminal need to know which.
    pub fn adjust(&self, spec: &mut SandboxSpec) {
        if !self.terminal {
            return;
        }
        let unasked = [
            (LimitKind::WallTime, Feature::WallTimeLimit),
            (LimitKind::CpuTime, Feature::CpuTimeLimit),
        ];
        let unasked = unasked.into_iter().filter(|(kind, _)| !spec.limits.asks_for(*kind));
        spec.without.extend(unasked.map(|(_, feature)| feature));
        if let (Ok(name), Ok(kind)) = ("TERM".parse(), std::env::var("TERM")) {
            spec.env.entry(name).or_insert(kind);
        }
    }
}
