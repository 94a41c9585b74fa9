//! Lines that a person types as an answer, and nothing else: what was typed before the question does not
//! count, and what is typed after it was withdrawn is left alone.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::stdio::{stderr, stdin};
use rustix::termios::{QueueSelector, isatty, tcflush, tcgetpgrp};

/// Answer length: longer than any answer; the terminal itself takes no longer line.
const MAX_ANSWER_BYTES: usize = 4096;

/// What came of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub enum TerminalAnswer {
    /// What was typed. Without an end of line where the person ended input instead.
    Line(String),
    /// No caller waits for the answer any more.
    Withdrawn,
    /// The terminal cannot be read.
    Nothing,
}

/// Whether there is a person who sees what is said and can answer.
pub fn by_a_person() -> bool {
    isatty(stdin()) && isatty(stderr())
}

/// Whether the terminal is another program's at the moment. Touching it would stop this process.
pub fn is_terminal_elsewhere() -> bool {
    // A terminal that is not this session's never stops this process.
    tcgetpgrp(stdin()).is_ok_and(|front| front != getpgrp())
}

/// Forgets what was typed so far, half a line too.
pub fn discard_typed_input() {
    if !is_terminal_elsewhere() {
        let _ = tcflush(stdin(), QueueSelector::IFlush);
    }
}

/// Waits for a line that is typed after `prompt`, which comes when the question could be read. Ends when
/// the other end of `withdrawn` does.
pub fn read_answer_line(
    withdrawn: &impl AsFd,
    reading: Duration,
    prompt: impl FnOnce(),
) -> TerminalAnswer {
    let withdrawn = || PollFd::new(withdrawn, PollFlags::IN);
    match poll_first_ready(&mut [withdrawn()], Some(reading)) {
        Ok(None) => {}
        Ok(Some(_)) => return TerminalAnswer::Withdrawn,
        Err(_) => return TerminalAnswer::Nothing,
    }
    discard_typed_input();
    prompt();
    let typed = stdin();
    match poll_first_ready(&mut [withdrawn(), PollFd::new(&typed, PollFlags::IN)], None) {
        Ok(Some(0)) => TerminalAnswer::Withdrawn,
        Ok(Some(_)) if !is_terminal_elsewhere() => read_line(),
        Ok(Some(_) | None) | Err(_) => TerminalAnswer::Nothing,
    }
}

/// Which of these is ready first; nothing if none is in time.
fn poll_first_ready(
    watched: &mut [PollFd<'_>],
    within: Option<Duration>,
) -> rustix::io::Result<Option<usize>> {
    let until = within.map(|within| Instant::now() + within);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(watched, left.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(watched.iter().position(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// One line. There is one, so this does not wait.
fn read_line() -> TerminalAnswer {
    let mut buffer = [0; MAX_ANSWER_BYTES];
    match rustix::io::retry_on_intr(|| rustix::io::read(stdin(), &mut buffer)) {
        Ok(count) => TerminalAnswer::Line(String::from_utf8_lossy(&buffer[..count]).into_owned()),
        Err(_) => TerminalAnswer::Nothing,
    }
}
