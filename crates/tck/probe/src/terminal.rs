//! Verbs about terminals.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::termios::{Winsize, isatty, tcgetwinsize};
use serde_json::{Value, json};

use crate::{Args, VerbOutcome, report_attempt};

fn read_window_size() -> Option<Winsize> {
    tcgetwinsize(io::stdin()).ok()
}

fn read_terminal_facts() -> Value {
    let are = [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()].map(isatty);
    let size = read_window_size();
    json!({
        "terminals": are,
        "rows": size.map(|size| size.ws_row),
        "cols": size.map(|size| size.ws_col),
    })
}

/// `terminal`: which of the three descriptors are terminals, and how large.
pub fn report_terminal() -> io::Result<VerbOutcome> {
    Ok(report_attempt(Ok(read_terminal_facts())))
}

/// `wait-resize MS`: says `ready`, waits until the terminal's size is another, and tells it.
pub fn wait_resize(args: &Args) -> io::Result<VerbOutcome> {
    let (before, until) = (read_window_size(), Instant::now() + args.span(0)?);
    let same = |now: Option<Winsize>| {
        now.map(|size| (size.ws_row, size.ws_col)) == before.map(|size| (size.ws_row, size.ws_col))
    };
    writeln!(io::stdout(), "ready")?;
    io::stdout().flush()?;
    while same(read_window_size()) {
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(report_attempt(Ok(read_terminal_facts())))
}
