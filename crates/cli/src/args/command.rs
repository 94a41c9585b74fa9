//! The flags that say what to run, shared by every command that starts a program.

use clap::Args;
use stockade_core::{
    Command, Error, ErrorCode, Feature, ImageDefaults, LimitKind, Result, SandboxSpec, Stdin,
};

use crate::terminal;
use crate::terminal::streams::Attachment;

/// What to run, and how it is connected.
#[derive(Debug, Clone, Args)]
pub struct CommandArgs {
    /// Pass standard input to the command. Pipes and files are passed without it; use `</dev/null` to pass none.
    #[arg(short, long, help_heading = "Command")]
    pub interactive: bool,
    /// Give the command a terminal. It gets one without -t where input, output and errors are all a
    /// terminal. No default time limits then.
    #[arg(short, long = "tty", help_heading = "Command")]
    pub terminal: bool,
    /// Run a shell command line instead of a program.
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

    /// Has the image's entry point run it; without arguments, the image's own command. A line for a shell stays one.
    pub fn run_by(&mut self, image: &ImageDefaults) {
        if self.shell.is_none() {
            self.program = image.command(&self.program);
        }
    }

    /// The command these flags mean, connected to what was asked for or else to what fits.
    pub fn command(&self, fitting: Attachment) -> Result<Command> {
        if self.is_empty() {
            return Err(Error::new(ErrorCode::Invalid, "run", "no command is given").remedy(
                "use `stockade run -- CMD ARGS`, --shell LINE, or --image NAME for the image's own",
            ));
        }
        let command = match &self.shell {
            Some(line) => Command::shell(line.clone()),
            None => Command::program(self.program.iter().cloned()),
        };
        let (stdin, has_terminal) = match self.requested_attachment().unwrap_or(fitting) {
            Attachment::Nothing => (Stdin::None, false),
            Attachment::Input => (Stdin::Stream, false),
            Attachment::Terminal => (Stdin::Stream, true),
        };
        Ok(Command { stdin, terminal: has_terminal.then(terminal::read_terminal_size), ..command })
    }

    /// What -i and -t ask for.
    const fn requested_attachment(&self) -> Option<Attachment> {
        match (self.terminal, self.interactive) {
            (true, _) => Some(Attachment::Terminal),
            (false, true) => Some(Attachment::Input),
            (false, false) => None,
        }
    }

    /// Whether its terminal was not asked for by a flag: the command does without where a backend has none.
    pub const fn can_lose_terminal(&self, command: &Command) -> bool {
        command.terminal.is_some() && !self.terminal
    }

    /// Time limits of a command on a terminal, or with questions on it, hold only if they were asked for: a person sets
    /// the pace there.
    /// Programs on a terminal also need to know which one it is (`TERM`).
    pub fn adjust(command: &Command, spec: &mut SandboxSpec) {
        if command.terminal.is_none() && !spec.network.asks() {
            return;
        }
        let unasked = [
            (LimitKind::WallTime, Feature::WallTimeLimit),
            (LimitKind::CpuTime, Feature::CpuTimeLimit),
        ];
        let unasked = unasked.into_iter().filter(|(kind, _)| !spec.limits.asks_for(*kind));
        spec.without.extend(unasked.map(|(_, feature)| feature));
        if command.terminal.is_some()
            && let (Ok(name), Ok(kind)) = ("TERM".parse(), std::env::var("TERM"))
        {
            spec.env.entry(name).or_insert(kind);
        }
    }
}
