//! The one place that decides what is shown and where: data on standard output, talk on standard
//! error. It never colours what is piped, and a reader who went away is no error; output that is lost for
//! another reason is.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;
use serde_json::json;
use stockade_core::{Error, Refusal, Refusals, is_unsafe_to_show};

use crate::report::refusals::select_decisive;
use crate::terminal::output::{stdout_write_error, write_chunk};
use crate::terminal::status_line;

/// The exit code of stockade's own failures.
pub const OWN_ERROR: i32 = 125;

/// Delay before a status line says what is going on.
const STATUS_DELAY: Duration = Duration::from_secs(1);

/// The first error of writing data, other than a closed pipe: for the end of the command, since few callers have
/// a use for it. Not in the printer, which is copied.
static STDOUT_ERROR: OnceLock<Errno> = OnceLock::new();

/// Hint at where the refusals of the other backends are to be seen.
const EXPLAIN_HINT: &str = "; --verbose, or `stockade explain`, says why not another backend";

/// Decides what is shown.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    json: bool,
    verbose: bool,
    terminal: bool,
    colour: bool,
    /// Columns of the terminal; nothing when output is not shown on one.
    width: Option<usize>,
}

/// What a word says about how things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// Well enough, with a gap.
    Fair,
    /// Not there, or broken.
    Bad,
    /// The head of a table or section.
    Head,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Fair => "33",
            Self::Bad => "31",
            Self::Head => "1",
        }
    }
}

impl Printer {
    /// Looks at where standard output goes.
    pub fn new(json: bool) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = terminal.then(|| usize::from(crate::terminal::read_terminal_size().cols));
        let colour = terminal && !dumb && !set("NO_COLOR");
        Self { json, verbose: false, terminal, colour, width }
    }

    /// Whether everything is told, or what matters most.
    #[must_use]
    pub const fn verbose(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Whether the answer is to be JSON.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Columns there are, when a person looks.
    pub const fn width(&self) -> Option<usize> {
        self.width
    }

    /// The text in the colour of its tone, where colours are shown.
    pub fn tone(&self, tone: Tone, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", tone.code())
    }

    /// Data, as it is.
    pub fn data(&self, text: &str) {
        status_line::clear();
        write_stdout(text);
    }

    /// Data as one JSON value: on one line for programs, on several for people.
    pub fn json(&self, value: &impl Serialize) {
        self.try_json(value);
    }

    /// The same; answers whether it was written.
    fn try_json(&self, value: &impl Serialize) -> bool {
        status_line::clear();
        let written = if self.terminal {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        match written {
            Ok(text) => self.stream(&format!("{}\n", escaped_json(&text))),
            Err(error) => {
                self.note(&format!("the answer cannot be written as JSON: {error}"));
                false
            }
        }
    }

    /// Data that goes on coming. Says whether more can be written: not to a closed pipe, nor after an error.
    pub fn stream(&self, text: &str) -> bool {
        write_stdout(text)
    }

    /// Whether data could not be written, to something other than a closed pipe.
    pub fn has_lost_output(&self) -> bool {
        STDOUT_ERROR.get().is_some()
    }

    /// The same as JSON, one value on each line.
    pub fn stream_json(&self, value: &impl Serialize) -> bool {
        match serde_json::to_string(value) {
            Ok(text) => self.stream(&format!("{}\n", escaped_json(&text))),
            Err(error) => {
                self.note(&format!("a record cannot be written as JSON: {error}"));
                true
            }
        }
    }

    /// Talk: one line on standard error.
    pub fn note(&self, text: &str) {
        let line = format!("stockade: {}\n", escape_unsafe_text(&without_numbers(text)));
        status_line::clear();
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Waits for something, and tells a person who waits with it for more than a second what for.
    pub async fn patiently<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(STATUS_DELAY) => {}
        }
        if std::io::stderr().is_terminal() {
            self.note(&format!("{what} …"));
        }
        work.await
    }

    /// Shows an error; answers the exit code.
    pub fn error(&self, error: &Error) -> i32 {
        // As text where standard output takes no JSON.
        if !self.json || !self.try_json(&error_json(error)) {
            error_lines(error, self.verbose).iter().for_each(|line| self.note(line));
        }
        OWN_ERROR
    }
}

/// Says on standard error that data could not be written, if so; answers the exit code, which is then no success.
pub fn report_lost_output(code: i32) -> i32 {
    let Some(errno) = STDOUT_ERROR.get() else { return code };
    let error = stdout_write_error("output", (*errno).into());
    // As text also with --json: standard output takes nothing.
    let own_error = Printer::new(false).error(&error);
    if code == 0 { own_error } else { code }
}

/// Writes to standard output and remembers the first error; answers whether all was written. A reader that is done
/// closes the pipe, which is no error.
fn write_stdout(text: &str) -> bool {
    let Err(errno) = write_chunk(rustix::stdio::stdout(), text.as_bytes()) else { return true };
    if errno != Errno::PIPE {
        // One after the first changes nothing.
        let _ = STDOUT_ERROR.set(errno);
    }
    false
}

fn error_json(error: &Error) -> serde_json::Value {
    json!({ "error": {
        "code": error.code(),
        "operation": error.operation(),
        "message": with_causes(error, error.message().to_owned()),
        "remedy": error.hint(),
        "refusals": error.refusals(),
    }})
}

/// One line, or one for each refusal that matters where there are several.
fn error_lines(error: &Error, verbose: bool) -> Vec<String> {
    match error.refusals() {
        Some(refusals) if refusals.0.len() > 1 => refusal_lines(refusals, verbose),
        Some(_) | None => vec![error_line(error)],
    }
}

fn refusal_lines(refusals: &Refusals, verbose: bool) -> Vec<String> {
    let shown = if verbose { refusals.0.iter().collect() } else { select_decisive(refusals) };
    let hidden = refusals.0.len() - shown.len();
    let line = |(at, refusal): (usize, &&Refusal)| {
        let Refusal { reason, remedy, .. } = refusal;
        let more = if hidden > 0 && at + 1 == shown.len() { EXPLAIN_HINT } else { "" };
        format!("refused: {}: {reason} (remedy: {remedy}{more})", refusal.subject())
    };
    shown.iter().enumerate().map(line).collect()
}

fn error_line(error: &Error) -> String {
    let shown = error.to_string();
    let remedy = error.hint().map(|hint| format!(" (remedy: {hint})")).unwrap_or_default();
    let bare = shown.strip_suffix(&remedy).unwrap_or(&shown).to_owned();
    with_causes(error, bare).replace('\n', " ") + &remedy
}

fn with_causes(error: &Error, mut text: String) -> String {
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// Escapes what a terminal would obey: the last barrier for text that came in uncleaned. Lines stay lines.
fn escape_unsafe_text(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if is_unsafe_to_show(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The same on one line.
pub fn on_one_line(text: &str) -> String {
    escape_unsafe_text(text).replace(['\n', '\t'], " ")
}

/// The same for JSON, which leaves some control characters in its strings as they are.
fn escaped_json(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' => c.to_string(),
        // All of them are of the first plane.
        c if is_unsafe_to_show(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The text without ` (os error 2)`: the words beside it say the same.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| match part.split_once(')') {
        Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => shown + rest,
        Some(_) | None => shown + " (os error " + part,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert_eq!(
            escape_unsafe_text("a\x1b[2Jb\u{9b}\u{202e}\nc"),
            "a\\u{1b}[2Jb\\u{9b}\\u{202e}\nc"
        );
        let text = serde_json::to_string(&json!({ "a": "\u{9b}2J\u{202e}\x1b" })).unwrap();
        let shown = escaped_json(&text);
        assert!(!shown.chars().any(is_unsafe_to_show), "{shown:?}");
        let (given, back): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&text).unwrap(), serde_json::from_str(&shown).unwrap());
        assert_eq!(given, back);
    }

    #[test]
    fn numbers_of_system_errors_are_left_out() {
        let shown = without_numbers("`x`: No such file (os error 2) (remedy: make it)");
        assert_eq!(shown, "`x`: No such file (remedy: make it)");
        assert_eq!(without_numbers("a (os error x) b"), "a (os error x) b");
    }
}
