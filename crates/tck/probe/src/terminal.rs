//! Verbs about terminals.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::termios::{Winsize, isatty, tcgetwinsize};
use serde_json::{Value, json};

use crate::{Args, Done, attempt};

fn size() -> Option<Winsize> {
    tcgetwinsize(io::stdin()).ok()
}

fn facts() -> Value {
    let are = [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()].map(isatty);
    let size = size();
    json!({
        "terminals": are,
        "rows": size.map(|size| size.ws_row),
        "cols": size.map(|size| size.ws_col),
    })
}

/// `terminal`: which of the three descriptors are terminals, and how large.
pub fn terminal() -> io::Result<Done> {
    Ok(attempt(Ok(facts())))
}

/// `wait-resize MS`: says `ready`, waits until the terminal's size is another, and tells it.
pub fn wait_resize(args: &Args) -> io::Result<Done> {
    let (before, until) = (size(), Instant::now() + args.span(0)?);
    let same = |now: Option<Winsize>| {
        now.map(|size| (size.ws_row, size.ws_col)) == before.map(|size| (size.ws_row, size.ws_col))
    };
    writeln!(io::stdout(), "ready")?;
    io::stdout().flush()?;
    while same(size()) {
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(attempt(Ok(facts())))
}
