//! The terminal this command was started from: its size, and its raw mode, which is taken back on
//! every way out. It must never leave a person's terminal changed.

use std::sync::{Mutex, PoisonError};

use rustix::stdio::{stdin, stdout};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, isatty, tcflush, tcgetattr, tcgetwinsize, tcsetattr,
};
use stockade_core::{Command, Error, ErrorCode, Result, TerminalSize};

/// Terminal size that most programs assume where none is known.
const DEFAULT_TERMINAL_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Settings of the terminal from before it was made raw, while it is raw.
static SAVED_TERMIOS: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal's size, or the usual one.
pub fn read_terminal_size() -> TerminalSize {
    let known = tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin()));
    let size = known.ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or(DEFAULT_TERMINAL_SIZE, |size| TerminalSize { rows: size.ws_row, cols: size.ws_col })
}

/// Refuses a terminal for the command where there is none for the caller.
pub fn require_terminal(command: &Command, operation: &'static str) -> Result<()> {
    if command.terminal.is_none() || isatty(stdin()) {
        return Ok(());
    }
    Err(Error::new(ErrorCode::Invalid, operation, "-t needs a terminal on standard input")
        .remedy("leave -t out, or use -i to pass input on"))
}

/// Every key goes through while this lives.
#[derive(Debug)]
pub struct Raw(());

impl Raw {
    /// Makes the terminal raw. Needs one on standard input.
    pub fn enter() -> Result<Self> {
        let before = tcgetattr(stdin()).map_err(terminal_error)?;
        let mut raw = before.clone();
        raw.make_raw();
        swap_termios(Some(before));
        restore_on_panic();
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(terminal_error)?;
        Ok(Self(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore_terminal();
    }
}

fn swap_termios(before: Option<Termios>) -> Option<Termios> {
    std::mem::replace(&mut SAVED_TERMIOS.lock().unwrap_or_else(PoisonError::into_inner), before)
}

fn restore_terminal() {
    if let Some(before) = swap_termios(None) {
        // The terminal's answers to what a guest asked it last are not for the caller's shell.
        let _ = tcflush(stdin(), QueueSelector::IFlush);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

/// A panic may abort without unwinding, so the guard alone is not enough.
fn restore_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore_terminal();
        usual(info);
    }));
}

fn terminal_error(errno: rustix::io::Errno) -> Error {
    Error::new(ErrorCode::System, "run", "the terminal cannot be made raw").source(errno)
}
