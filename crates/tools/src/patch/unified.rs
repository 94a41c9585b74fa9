//! Unified diffs, as `diff -u` and `git diff` print them: with new and deleted files, renames and modes.

use stockade_core::SandboxPath;

use super::at_line;
use super::change::{Action, Change};
use super::names::{header_path, strip, unquote};
use super::text::{Hunk, Line, Place, Text};
use crate::ToolError;

/// Reads a whole diff.
pub(super) fn parse(patch: &str) -> Result<Vec<Change>, ToolError> {
    let lines: Vec<&str> = patch.split_inclusive('\n').collect();
    let mut reader = Reader { lines, at: 0 };
    let mut changes = Vec::new();
    reader.skip_prelude();
    while !reader.over() {
        changes.extend(reader.file()?);
    }
    Ok(changes)
}

/// What the headers of one file say.
#[derive(Default)]
struct Header {
    old: Option<String>,
    new: Option<String>,
    /// Whether there were `---` and `+++` lines.
    named: bool,
    created: bool,
    deleted: bool,
    renamed: bool,
    mode: Option<u32>,
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn number(&self) -> usize {
        self.at + 1
    }

    fn over(&self) -> bool {
        self.at >= self.lines.len()
    }

    fn peek(&self) -> Option<&'a str> {
        let line = self.lines.get(self.at)?;
        Some(line.strip_suffix('\n').unwrap_or(line))
    }

    fn fail(&self, problem: impl std::fmt::Display) -> ToolError {
        at_line(self.number(), problem)
    }

    /// A commit message may stand before the first file.
    fn skip_prelude(&mut self) {
        let begins = |line: &&str| line.starts_with("diff --git ") || line.starts_with("--- ");
        self.at = self.lines.iter().position(begins).unwrap_or(self.lines.len());
    }

    /// One file: its headers, then its hunks.
    fn file(&mut self) -> Result<Option<Change>, ToolError> {
        let start = self.number();
        while self.peek().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
        match self.peek() {
            None => return Ok(None),
            // The signature of a mail ends it.
            Some("-- ") => {
                self.at = self.lines.len();
                return Ok(None);
            }
            Some(_) => {}
        }
        let header = self.header()?;
        let mut hunks = Vec::new();
        while self.peek().is_some_and(|line| line.starts_with("@@")) {
            hunks.push(self.hunk()?);
        }
        change(header, hunks).map(Some).map_err(|problem| at_line(start, problem))
    }

    fn header(&mut self) -> Result<Header, ToolError> {
        let mut header = Header::default();
        let begun = self.at;
        while let Some(line) = self.peek() {
            let again = self.at > begun && line.starts_with("diff --git ");
            if line.starts_with("@@") || again || (header.named && line.starts_with("--- ")) {
                break;
            }
            if line.trim().is_empty() && self.at > begun {
                break;
            }
            self.header_line(line, &mut header)?;
        }
        Ok(header)
    }

    fn header_line(&mut self, line: &str, header: &mut Header) -> Result<(), ToolError> {
        let name = |given: &str| unquote(given).map_err(|problem| at_line(self.at + 1, problem));
        if let Some(rest) = line.strip_prefix("--- ") {
            return self.names(rest, header);
        } else if let Some(rest) = line.strip_prefix("rename from ") {
            header.old = Some(name(rest)?);
            header.renamed = true;
        } else if let Some(rest) = line.strip_prefix("rename to ") {
            header.new = Some(name(rest)?);
        } else if let Some(rest) = line.strip_prefix("new file mode ") {
            (header.created, header.mode) = (true, mode(rest));
        } else if let Some(rest) = line.strip_prefix("new mode ") {
            header.mode = mode(rest);
        } else if line.starts_with("deleted file mode ") {
            header.deleted = true;
        } else if let Some(rest) = line.strip_prefix("diff --git ") {
            (header.old, header.new) = both_names(rest);
        } else if line.starts_with("Binary files ") || line.starts_with("GIT binary patch") {
            return Err(self.fail("binary changes cannot be applied"));
        } else if line.starts_with("copy from ") {
            return Err(self.fail("copies cannot be applied: add the new file instead"));
        } else if !["index ", "similarity ", "dissimilarity ", "old mode "]
            .iter()
            .any(|known| line.starts_with(known))
        {
            return Err(self.fail("this line belongs to no file and no hunk"));
        }
        self.at += 1;
        Ok(())
    }

    /// The `---` and `+++` lines, which outrank the names before them.
    fn names(&mut self, old: &str, header: &mut Header) -> Result<(), ToolError> {
        let read = |name: Option<Result<String, String>>, at: usize| {
            name.transpose().map_err(|problem| at_line(at, problem))
        };
        let old = read(header_path(old), self.number())?;
        self.at += 1;
        let Some(new) = self.peek().and_then(|line| line.strip_prefix("+++ ")) else {
            return Err(self.fail("a `+++ ` line must follow `--- `"));
        };
        let new = read(header_path(new), self.number())?;
        self.at += 1;
        (header.created, header.deleted) =
            (header.created || old.is_none(), header.deleted || new.is_none());
        header.named = true;
        if !header.renamed {
            (header.old, header.new) = strip(old, new);
        }
        Ok(())
    }

    fn hunk(&mut self) -> Result<Hunk, ToolError> {
        let line = self.number();
        let (start, old, new) = self
            .peek()
            .and_then(ranges)
            .ok_or_else(|| self.fail("expected `@@ -START,COUNT +START,COUNT @@`"))?;
        self.at += 1;
        // A hunk that takes nothing away names the line it follows.
        let index = if old == 0 { start } else { start.saturating_sub(1) };
        let mut hunk = Hunk { line, place: Place::Near(index), ..Hunk::default() };
        // Counted down, not counted anew for each line: a hunk may have a million of them.
        let mut due = Due { old, new };
        while due.any() {
            self.hunk_line(&mut hunk, &mut due).map_err(|problem| match problem {
                Problem::Here(problem) => self.fail(problem),
                Problem::Short => {
                    self.fail(format!("the hunk ends before its {old} old and {new} new lines"))
                }
            })?;
        }
        self.open_end(&mut hunk);
        Ok(hunk)
    }

    fn hunk_line(&mut self, hunk: &mut Hunk, due: &mut Due) -> Result<(), Problem> {
        let line = self.peek().ok_or(Problem::Short)?;
        let text = |line: &str| line.as_bytes()[1..].to_vec();
        let line = match line.as_bytes().first() {
            Some(b' ') => Line::Keep(text(line)),
            Some(b'-') => Line::Remove(text(line)),
            Some(b'+') => Line::Insert(text(line)),
            // An empty line of context whose blank was lost on the way.
            None => Line::Keep(Vec::new()),
            Some(b'\\') => {
                self.open_end(hunk);
                return Ok(());
            }
            Some(_) => return Err(Problem::Short),
        };
        due.take(&line).ok_or(Problem::Here("the hunk has more lines than its header says"))?;
        hunk.lines.push(line);
        self.at += 1;
        Ok(())
    }

    /// `\ No newline at end of file`, about the line before.
    fn open_end(&mut self, hunk: &mut Hunk) {
        if !self.peek().is_some_and(|line| line.starts_with('\\')) {
            return;
        }
        self.at += 1;
        match hunk.lines.last() {
            Some(Line::Keep(_)) => (hunk.old_open, hunk.new_open) = (true, true),
            Some(Line::Remove(_)) => hunk.old_open = true,
            Some(Line::Insert(_)) => hunk.new_open = true,
            None => {}
        }
    }
}

/// The lines of a hunk that are still to come.
struct Due {
    old: usize,
    new: usize,
}

/// What is wrong with a line of a hunk.
enum Problem {
    /// It is not there, or belongs to no hunk.
    Short,
    Here(&'static str),
}

impl Due {
    fn any(&self) -> bool {
        self.old > 0 || self.new > 0
    }

    /// Nothing if there is one too many.
    fn take(&mut self, line: &Line) -> Option<()> {
        let (old, new) = match line {
            Line::Keep(_) => (1, 1),
            Line::Remove(_) => (1, 0),
            Line::Insert(_) => (0, 1),
        };
        self.old = self.old.checked_sub(old)?;
        self.new = self.new.checked_sub(new)?;
        Some(())
    }
}

fn change(header: Header, hunks: Vec<Hunk>) -> Result<Change, String> {
    let path = |name: Option<String>| -> Result<SandboxPath, String> {
        let name = name.ok_or("no file is named: give `--- ` and `+++ ` lines")?;
        name.parse().map_err(|error: stockade_core::PathError| error.to_string())
    };
    let Header { old, new, created, deleted, renamed, mode, .. } = header;
    match (created, deleted) {
        (true, true) => Err("a file cannot be both new and deleted".into()),
        (true, false) => Ok(Change { path: path(new)?, action: added(&hunks, mode)? }),
        (false, true) => Ok(Change { path: path(old)?, action: Action::Delete { hunks } }),
        (false, false) => {
            let (old, new) = (path(old)?, path(new)?);
            if old != new && !renamed {
                return Err(format!("`{old}` and `{new}` are different files"));
            }
            if hunks.is_empty() && old == new && mode.is_none() {
                return Err(format!("nothing is said about `{old}`"));
            }
            let to = (old != new).then_some(new);
            Ok(Change { path: old, action: Action::Update { hunks, to, mode } })
        }
    }
}

fn added(hunks: &[Hunk], mode: Option<u32>) -> Result<Action, String> {
    let mut text = Text::default();
    if hunks.iter().any(|hunk| hunk.counts().0 > 0) {
        return Err("a new file has no old lines".into());
    }
    for hunk in hunks {
        text.lines.extend(hunk.new_lines());
        text.open = hunk.new_open;
    }
    Ok(Action::Add { text, mode })
}

/// The old start and both counts of `@@ -1,2 +3,4 @@ …`.
fn ranges(line: &str) -> Option<(usize, usize, usize)> {
    let (old, rest) = line.strip_prefix("@@ -")?.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let range = |text: &str| -> Option<(usize, usize)> {
        let digits = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
        };
        match text.split_once(',') {
            Some((start, count)) => Some((digits(start)?, digits(count)?)),
            None => Some((digits(text)?, 1)),
        }
    };
    let ((start, old), (_, new)) = (range(old)?, range(new)?);
    (old <= MAX_LINE_NUMBER && new <= MAX_LINE_NUMBER && start <= MAX_LINE_NUMBER)
        .then_some((start, old, new))
}

/// Line number beyond those of any file that is patched.
const MAX_LINE_NUMBER: usize = 1 << 30;

/// The permission bits of git's modes; links and submodules have none that can be set.
fn mode(text: &str) -> Option<u32> {
    match text.trim_end() {
        "100644" => Some(0o644),
        "100755" => Some(0o755),
        _ => None,
    }
}

/// `a/x b/x` where both are the same name, which is all that can be told for sure.
fn both_names(rest: &str) -> (Option<String>, Option<String>) {
    let rest = rest.strip_suffix('\r').unwrap_or(rest);
    let half = rest.len() / 2;
    let (Some(old), Some(new)) = (rest.get(..half), rest.get(half + 1..)) else {
        return (None, None);
    };
    let (old, new) = (old.strip_prefix("a/"), new.strip_prefix("b/"));
    if old != new {
        return (None, None);
    }
    (old.map(str::to_owned), new.map(str::to_owned))
}
