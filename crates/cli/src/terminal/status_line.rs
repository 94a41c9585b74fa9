//! One line at the bottom of a terminal that is drawn over itself: on standard error, and only if that is a terminal.
//! The next message removes it first.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::terminal::read_terminal_size;

/// Moves to the beginning of the line and removes it.
const CLEAR_LINE: &str = "\r\x1b[K";

static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Whether a line would be seen.
pub fn is_possible() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stderr().is_terminal() && !dumb
}

/// Shows this in place of what was shown. It has no control characters, and is cut where the terminal ends.
pub fn draw(text: &str) {
    let columns = usize::from(read_terminal_size().cols).saturating_sub(1);
    let shown: String = text.chars().take(columns).collect();
    IS_SHOWN.store(true, Ordering::SeqCst);
    write_to_terminal(&format!("{CLEAR_LINE}{shown}"));
}

/// Removes what is shown, if anything is.
pub fn clear() {
    if IS_SHOWN.swap(false, Ordering::SeqCst) {
        write_to_terminal(CLEAR_LINE);
    }
}

fn write_to_terminal(text: &str) {
    let mut terminal = std::io::stderr().lock();
    // A terminal that went away shows nothing.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}
