//! One command to run in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, EnvName, Feature, SandboxPath, Span, User};

/// One command to run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Command {
    /// What to run.
    pub run: Run,
    /// Added to the sandbox's environment; wins over it.
    #[serde(default)]
    pub env: BTreeMap<EnvName, String>,
    /// Where to start. Absent: the sandbox's own working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<SandboxPath>,
    /// The user to run as. Absent: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// What the program reads.
    #[serde(default)]
    pub stdin: Stdin,
    /// Give it a terminal of this size; output then arrives on one stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Whether it runs on without anybody who waits for it, as a server does: then no default wall time
    /// or processor time holds for it (C-03).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// Its own duration. The lower holds where the sandbox names one too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_time: Option<Span>,
    /// Its own output cap. The lower holds where the sandbox names one too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Bytes>,
}

/// A program with arguments, or one line for a shell: never the one taken for the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// The program and its arguments, passed on as they are.
    Program(Vec<String>),
    /// A line for the sandbox's `/bin/sh`.
    Shell(String),
}

/// What a program reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stdin {
    /// Nothing: the end at once.
    #[default]
    None,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// What the caller writes while it runs.
    Stream,
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Height.
    pub rows: u16,
    /// Width.
    pub cols: u16,
}

/// A signal by its Linux number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(pub i32);

const SIGNAL_NAMES: [(i32, &str); 31] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (17, "SIGCHLD"),
    (18, "SIGCONT"),
    (19, "SIGSTOP"),
    (20, "SIGTSTP"),
    (21, "SIGTTIN"),
    (22, "SIGTTOU"),
    (23, "SIGURG"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (28, "SIGWINCH"),
    (29, "SIGIO"),
    (30, "SIGPWR"),
    (31, "SIGSYS"),
];

impl Command {
    /// A program with arguments, everything else by default.
    pub fn program<I: IntoIterator<Item = S>, S: Into<String>>(argv: I) -> Self {
        Self::new(Run::Program(argv.into_iter().map(Into::into).collect()))
    }

    /// A line for a shell, everything else by default.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Run::Shell(line.into()))
    }

    fn new(run: Run) -> Self {
        Self {
            run,
            env: BTreeMap::new(),
            dir: None,
            user: None,
            stdin: Stdin::None,
            terminal: None,
            detached: false,
            wall_time: None,
            output: None,
        }
    }

    /// The argument vector that is executed.
    pub fn argv(&self) -> Vec<String> {
        match &self.run {
            Run::Program(argv) => argv.clone(),
            Run::Shell(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        }
    }

    /// The features this command cannot do without, each with the field that asks for it.
    pub fn needs(&self) -> Vec<(Feature, &'static str)> {
        let asked = [
            (self.stdin != Stdin::None, Feature::Stdin, "stdin"),
            (self.terminal.is_some(), Feature::Terminal, "terminal"),
            (self.user.is_some(), Feature::UserPerCommand, "user"),
            (self.wall_time.is_some(), Feature::WallTimeLimit, "wallTime"),
            (self.output.is_some(), Feature::OutputLimit, "output"),
        ];
        asked
            .into_iter()
            .filter(|need| need.0)
            .map(|(_, feature, field)| (feature, field))
            .collect()
    }

    /// What is wrong with it, if anything: the field and the reason (C-04).
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let argv = self.argv();
        if argv.first().is_none_or(String::is_empty) {
            return Some(("run", "names no program"));
        }
        if argv.iter().chain(self.env.values()).any(|text| text.contains('\0')) {
            return Some(("run", "holds a zero byte, which no program can be given"));
        }
        None
    }
}

impl Signal {
    /// The signal that cannot be caught.
    pub const KILL: Self = Self(9);
    /// The polite request to end.
    pub const TERM: Self = Self(15);
    /// What Ctrl-C sends.
    pub const INT: Self = Self(2);
    /// What a terminal that goes away sends.
    pub const HUP: Self = Self(1);

    /// The signal's usual name, or its number for those that have none.
    pub fn name(self) -> String {
        let known = SIGNAL_NAMES.iter().find(|(number, _)| *number == self.0);
        known.map_or_else(|| format!("SIG{}", self.0), |(_, name)| (*name).to_owned())
    }

    /// The signal of this name, with or without `SIG`, or of this number.
    pub fn from_name(given: &str) -> Option<Self> {
        let upper = given.to_ascii_uppercase();
        let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
        if let Ok(number) = bare.parse() {
            return (1..=64).contains(&number).then_some(Self(number));
        }
        SIGNAL_NAMES.iter().find(|(_, name)| &name[3..] == bare).map(|(number, _)| Self(*number))
    }
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_name_parses_back() {
        for number in 1..=64 {
            assert_eq!(Signal::from_name(&Signal(number).name()), Some(Signal(number)));
        }
        assert_eq!(Signal::from_name("term"), Some(Signal::TERM));
        assert_eq!(Signal::from_name("65"), None);
        assert_eq!(Signal::from_name("nothing"), None);
    }

    #[test]
    fn a_command_without_a_program_has_a_problem() {
        assert!(Command::program(Vec::<String>::new()).problem().is_some());
        assert!(Command::program([""]).problem().is_some());
        assert!(Command::program(["a\0b"]).problem().is_some());
        assert!(Command::program(["true"]).problem().is_none());
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let json = r#"{"run": {"program": ["true"]}, "timeout": "1s"}"#;
        let error = serde_json::from_str::<Command>(json).unwrap_err();
        assert!(error.to_string().contains("timeout"), "{error}");
    }
}
