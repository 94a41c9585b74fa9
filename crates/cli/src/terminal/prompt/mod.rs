//! Prompts: yes-or-no questions to the person at the terminal that `stockade mcp --http` was started from, for clients that
//! cannot ask. One at a time, in the order they came. Nothing but a `y` typed while the question stood is
//! a yes; what the agent wrote never reaches the terminal as anything but plain text, and nothing else is written
//! while a question stands.

mod page;
pub mod typed;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::pipe::{PipeFlags, pipe_with};
use stockade_core::{Error, ErrorCode, Result};
use stockade_tools::{Ask, Decision, Question};
use tokio::sync::{mpsc, oneshot};

use crate::terminal;
use crate::terminal::output::TerminalTurn;
use typed::TerminalAnswer;

/// Length of the queue of questions behind the one that is shown; more wait where they were raised.
const QUESTION_QUEUE_LENGTH: usize = 32;
/// Time a question is shown before an answer is taken: a person who was about to answer the one before, or
/// was typing something else, gets to see that this is another.
const ANSWER_DELAY: Duration = Duration::from_secs(1);

/// The person at the terminal.
pub struct AtTerminal {
    questions: mpsc::Sender<OpenQuestion>,
    turn: TerminalTurn,
}

struct OpenQuestion {
    question: Question,
    answer: oneshot::Sender<Decision>,
    /// Its other end closes when no caller waits for the answer any more.
    withdrawn: OwnedFd,
}

impl AtTerminal {
    /// A person can be asked where standard input and standard error are a terminal.
    pub fn reach() -> Result<Option<Arc<Self>>> {
        if !typed::by_a_person() {
            return Ok(None);
        }
        let (questions, asked) = mpsc::channel(QUESTION_QUEUE_LENGTH);
        // Never joined: a terminal can hold it up for ever, and it ends with the process.
        let turn = TerminalTurn::default();
        let held = Arc::clone(&turn);
        let asking =
            std::thread::Builder::new().name("asking".into()).spawn(move || put_all(asked, &held));
        asking.map_err(|error| {
            Error::new(ErrorCode::System, "mcp", "no question can be asked on this terminal")
                .source(error)
        })?;
        Ok(Some(Arc::new(Self { questions, turn })))
    }

    /// What is held while a question stands, for others who write to the same terminal.
    pub fn turn(&self) -> TerminalTurn {
        Arc::clone(&self.turn)
    }
}

#[async_trait]
impl Ask for AtTerminal {
    async fn ask(&self, question: Question) -> Decision {
        let (answer, decided) = oneshot::channel();
        let Ok((withdrawn, _wanted)) = pipe_with(PipeFlags::CLOEXEC) else {
            return not_now("there are too many open files to ask");
        };
        let gone = "the terminal of the server is gone";
        if self.questions.send(OpenQuestion { question, answer, withdrawn }).await.is_err() {
            return not_now(gone);
        }
        decided.await.unwrap_or_else(|_| not_now(gone))
    }
}

fn put_all(mut questions: mpsc::Receiver<OpenQuestion>, turn: &TerminalTurn) {
    while let Some(open) = questions.blocking_recv() {
        // Given up while another one stood: there is nothing to ask.
        if !open.answer.is_closed() {
            // Nothing panics while it is held.
            let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let decision = put_question(&open);
            drop(turn);
            let _ = open.answer.send(decision);
        }
    }
}

fn put_question(open: &OpenQuestion) -> Decision {
    if typed::is_terminal_elsewhere() {
        return not_now("the server runs in the background of its terminal");
    }
    let page = page::build_page(&open.question, usize::from(terminal::read_terminal_size().cols));
    write_to_stderr(&page.text);
    let heard = typed::read_answer_line(&open.withdrawn, ANSWER_DELAY, || {
        write_to_stderr(prompt_text(page.whole, open.question.lasting))
    });
    let (decision, said) = decide_answer(heard, open.question.lasting);
    write_to_stderr(said);
    decision
}

const fn prompt_text(whole: bool, lasting: bool) -> &'static str {
    if !whole {
        return "not all of it is shown: allow it nevertheless, this once? [y/N] ";
    }
    if lasting {
        return "allow it? y: this once, s: from now on in this sandbox, n: never [y/s/N] ";
    }
    "allow it, this once? [y/N] "
}

fn decide_answer(heard: TerminalAnswer, lasting: bool) -> (Decision, &'static str) {
    match heard {
        TerminalAnswer::Line(line) if lasting && is_for_sandbox(&line) => {
            (Decision::YesForSandbox, "stockade: allowed in this sandbox\n")
        }
        TerminalAnswer::Line(line) if is_yes(&line) => (Decision::Yes, "stockade: allowed\n"),
        // Input was ended instead of a line: nothing that holds from now on is meant by that.
        TerminalAnswer::Line(line) if lasting && !line.ends_with('\n') => {
            (not_now("the question was closed"), "\nstockade: not allowed now\n")
        }
        TerminalAnswer::Line(_) => {
            (deny_because("denied at the server's terminal"), "stockade: not allowed\n")
        }
        TerminalAnswer::Withdrawn => (
            not_now("no answer in time"),
            "\nstockade: not allowed: there was no answer in time, or the call was cancelled\n",
        ),
        TerminalAnswer::Nothing => (
            not_now("the server's terminal is gone, or is another program's now"),
            "\nstockade: not allowed: this terminal cannot be read now\n",
        ),
    }
}

/// Whether a line is a clear yes, typed to its end.
pub fn is_yes(line: &str) -> bool {
    let Some(line) = line.strip_suffix('\n') else { return false };
    ["y", "yes"].iter().any(|yes| line.trim().eq_ignore_ascii_case(yes))
}

/// Whether a line allows something for as long as the sandbox lives.
fn is_for_sandbox(line: &str) -> bool {
    line.strip_suffix('\n').is_some_and(|line| line.trim().eq_ignore_ascii_case("s"))
}

fn deny_because(why: &str) -> Decision {
    Decision::No { because: why.to_owned() }
}

fn not_now(why: &str) -> Decision {
    Decision::Unanswered { because: why.to_owned() }
}

/// Writes text for a person at once. One that cannot be written is left out.
pub fn write_to_stderr(text: &str) {
    let mut out = std::io::stderr();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for yes in ["y\n", "Y\n", " yes \n", "YES\n"] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "y", "yy\n", "y y\n", "yes please\n", "\u{ff59}\n"] {
            assert!(!is_yes(no), "{no:?}");
        }
        for (line, lasting, expected) in [
            ("s\n", true, Decision::YesForSandbox),
            ("y\n", true, Decision::Yes),
            ("s\n", false, deny_because("denied at the server's terminal")),
            ("n\n", true, deny_because("denied at the server's terminal")),
            ("s", true, not_now("the question was closed")),
            ("", true, not_now("the question was closed")),
            ("", false, deny_because("denied at the server's terminal")),
        ] {
            let heard = TerminalAnswer::Line(line.into());
            assert_eq!(decide_answer(heard, lasting).0, expected, "{line:?}");
        }
    }
}
