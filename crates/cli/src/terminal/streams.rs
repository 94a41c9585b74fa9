//! What this command's standard streams are, and so what a program is connected to where neither -i
//! nor -t says it. Nothing is read here: input that a program does not get stays where it is.

use rustix::fs::{FileType, Stat, fstat, major, minor};
use rustix::process::getpgrp;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{isatty, tcgetpgrp};

/// What a program is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// No input.
    Nothing,
    /// Standard input: a pipe, a file, a socket.
    Input,
    /// A terminal of its own, as this command has one.
    Terminal,
}

impl Attachment {
    /// What fits the streams of this command. `json`: output is held for one object at the end.
    pub fn of_streams(json: bool) -> Self {
        if isatty(stdin()) {
            return if !json && on_terminal() { Self::Terminal } else { Self::Nothing };
        }
        match fstat(stdin()) {
            Ok(stat) if !is_null_device(&stat) => Self::Input,
            Ok(_) | Err(_) => Self::Nothing,
        }
    }
}

/// Whether a person sees all output and types the input. With errors redirected a terminal would mix
/// them into the output; a terminal's keys behind a pipe are for the pager at its end; and a read in the
/// background would stop this command (SIGTTIN).
fn on_terminal() -> bool {
    isatty(stdout()) && isatty(stderr()) && in_foreground()
}

/// A terminal that controls no session never stops a process, so it counts as in the foreground.
fn in_foreground() -> bool {
    tcgetpgrp(stdin()).map_or(true, |front| front == getpgrp())
}

/// `/dev/null`, which is also what a closed standard input is to a Rust program.
fn is_null_device(stat: &Stat) -> bool {
    let character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    character && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
}
