//! Unified diffs, as `diff -u` and `git diff` print them: with new and deleted files, renames and modes.

use stockade_core::SandboxPath;

use super::at_line;
use super::change::{PatchAction, PatchChange};
use super::names::{header_path, strip_git_prefixes, unquote_name};
use super::text::{Hunk, HunkLine, HunkPlace, Text};
use crate::ToolError;

/// Reads a whole diff.
pub(super) fn parse_unified_diff(patch: &str) -> Result<Vec<PatchChange>, ToolError> {
    let lines: Vec<&str> = patch.split_inclusive('\n').collect();
    let mut reader = UnifiedReader { lines, at: 0 };
    let mut changes = Vec::new();
    reader.skip_prelude();
    while !reader.is_at_end() {
        changes.extend(reader.parse_file()?);
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

struct UnifiedReader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> UnifiedReader<'a> {
    fn line_number(&self) -> usize {
        self.at + 1
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.lines.len()
    }

    fn peek_line(&self) -> Option<&'a str> {
        let line = self.lines.get(self.at)?;
        Some(line.strip_suffix('\n').unwrap_or(line))
    }

    fn syntax_error(&self, problem: impl std::fmt::Display) -> ToolError {
        at_line(self.line_number(), problem)
    }

    /// A commit message may stand before the first file.
    fn skip_prelude(&mut self) {
        let begins = |line: &&str| line.starts_with("diff --git ") || line.starts_with("--- ");
        self.at = self.lines.iter().position(begins).unwrap_or(self.lines.len());
    }

    /// One file: its headers, then its hunks.
    fn parse_file(&mut self) -> Result<Option<PatchChange>, ToolError> {
        let start = self.line_number();
        while self.peek_line().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
        match self.peek_line() {
            None => return Ok(None),
            // The signature of a mail ends it.
            Some("-- ") => {
                self.at = self.lines.len();
                return Ok(None);
            }
            Some(_) => {}
        }
        let header = self.parse_header()?;
        let mut hunks = Vec::new();
        while self.peek_line().is_some_and(|line| line.starts_with("@@")) {
            hunks.push(self.parse_hunk()?);
        }
        build_change(header, hunks).map(Some).map_err(|problem| at_line(start, problem))
    }

    fn parse_header(&mut self) -> Result<Header, ToolError> {
        let mut header = Header::default();
        let begun = self.at;
        while let Some(line) = self.peek_line() {
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
        let name =
            |given: &str| unquote_name(given).map_err(|problem| at_line(self.at + 1, problem));
        if let Some(rest) = line.strip_prefix("--- ") {
            return self.parse_names(rest, header);
        } else if let Some(rest) = line.strip_prefix("rename from ") {
            header.old = Some(name(rest)?);
            header.renamed = true;
        } else if let Some(rest) = line.strip_prefix("rename to ") {
            header.new = Some(name(rest)?);
        } else if let Some(rest) = line.strip_prefix("new file mode ") {
            (header.created, header.mode) = (true, parse_git_mode(rest));
        } else if let Some(rest) = line.strip_prefix("new mode ") {
            header.mode = parse_git_mode(rest);
        } else if line.starts_with("deleted file mode ") {
            header.deleted = true;
        } else if let Some(rest) = line.strip_prefix("diff --git ") {
            (header.old, header.new) = both_names(rest);
        } else if line.starts_with("Binary files ") || line.starts_with("GIT binary patch") {
            return Err(self.syntax_error("binary changes cannot be applied"));
        } else if line.starts_with("copy from ") {
            return Err(self.syntax_error("copies cannot be applied: add the new file instead"));
        } else if !["index ", "similarity ", "dissimilarity ", "old mode "]
            .iter()
            .any(|known| line.starts_with(known))
        {
            return Err(self.syntax_error("this line belongs to no file and no hunk"));
        }
        self.at += 1;
        Ok(())
    }

    /// The `---` and `+++` lines, which outrank the names before them.
    fn parse_names(&mut self, old: &str, header: &mut Header) -> Result<(), ToolError> {
        let read = |name: Option<Result<String, String>>, at: usize| {
            name.transpose().map_err(|problem| at_line(at, problem))
        };
        let old = read(header_path(old), self.line_number())?;
        self.at += 1;
        let Some(new) = self.peek_line().and_then(|line| line.strip_prefix("+++ ")) else {
            return Err(self.syntax_error("a `+++ ` line must follow `--- `"));
        };
        let new = read(header_path(new), self.line_number())?;
        self.at += 1;
        (header.created, header.deleted) =
            (header.created || old.is_none(), header.deleted || new.is_none());
        header.named = true;
        if !header.renamed {
            (header.old, header.new) = strip_git_prefixes(old, new);
        }
        Ok(())
    }

    fn parse_hunk(&mut self) -> Result<Hunk, ToolError> {
        let line = self.line_number();
        let (start, old, new) = self
            .peek_line()
            .and_then(parse_hunk_ranges)
            .ok_or_else(|| self.syntax_error("expected `@@ -START,COUNT +START,COUNT @@`"))?;
        self.at += 1;
        // A hunk that takes nothing away names the line it follows.
        let index = if old == 0 { start } else { start.saturating_sub(1) };
        let mut hunk = Hunk { line, place: HunkPlace::Near(index), ..Hunk::default() };
        // Counted down, not counted anew for each line: a hunk may have a million of them.
        let mut due = DueLines { old, new };
        while due.has_any() {
            self.hunk_line(&mut hunk, &mut due).map_err(|problem| match problem {
                Problem::Here(problem) => self.syntax_error(problem),
                Problem::Short => self.syntax_error(format!(
                    "the hunk ends before its {old} old and {new} new lines"
                )),
            })?;
        }
        self.open_end(&mut hunk);
        Ok(hunk)
    }

    fn hunk_line(&mut self, hunk: &mut Hunk, due: &mut DueLines) -> Result<(), Problem> {
        let line = self.peek_line().ok_or(Problem::Short)?;
        let text = |line: &str| line.as_bytes()[1..].to_vec();
        let line = match line.as_bytes().first() {
            Some(b' ') => HunkLine::Keep(text(line)),
            Some(b'-') => HunkLine::Remove(text(line)),
            Some(b'+') => HunkLine::Insert(text(line)),
            // An empty line of context whose blank was lost on the way.
            None => HunkLine::Keep(Vec::new()),
            Some(b'\\') => {
                self.open_end(hunk);
                return Ok(());
            }
            Some(_) => return Err(Problem::Short),
        };
        due.take_line(&line)
            .ok_or(Problem::Here("the hunk has more lines than its header says"))?;
        hunk.lines.push(line);
        self.at += 1;
        Ok(())
    }

    /// `\ No newline at end of file`, about the line before.
    fn open_end(&mut self, hunk: &mut Hunk) {
        if !self.peek_line().is_some_and(|line| line.starts_with('\\')) {
            return;
        }
        self.at += 1;
        match hunk.lines.last() {
            Some(HunkLine::Keep(_)) => (hunk.old_open, hunk.new_open) = (true, true),
            Some(HunkLine::Remove(_)) => hunk.old_open = true,
            Some(HunkLine::Insert(_)) => hunk.new_open = true,
            None => {}
        }
    }
}

/// The lines of a hunk that are still to come.
struct DueLines {
    old: usize,
    new: usize,
}

/// What is wrong with a line of a hunk.
enum Problem {
    /// It is not there, or belongs to no hunk.
    Short,
    Here(&'static str),
}

impl DueLines {
    fn has_any(&self) -> bool {
        self.old > 0 || self.new > 0
    }

    /// Nothing if there is one too many.
    fn take_line(&mut self, line: &HunkLine) -> Option<()> {
        let (old, new) = match line {
            HunkLine::Keep(_) => (1, 1),
            HunkLine::Remove(_) => (1, 0),
            HunkLine::Insert(_) => (0, 1),
        };
        self.old = self.old.checked_sub(old)?;
        self.new = self.new.checked_sub(new)?;
        Some(())
    }
}

fn build_change(header: Header, hunks: Vec<Hunk>) -> Result<PatchChange, String> {
    let path = |name: Option<String>| -> Result<SandboxPath, String> {
        let name = name.ok_or("no file is named: give `--- ` and `+++ ` lines")?;
        name.parse().map_err(|error: stockade_core::PathError| error.to_string())
    };
    let Header { old, new, created, deleted, renamed, mode, .. } = header;
    match (created, deleted) {
        (true, true) => Err("a file cannot be both new and deleted".into()),
        (true, false) => {
            Ok(PatchChange { path: path(new)?, action: build_added_file(&hunks, mode)? })
        }
        (false, true) => {
            Ok(PatchChange { path: path(old)?, action: PatchAction::Delete { hunks } })
        }
        (false, false) => {
            let (old, new) = (path(old)?, path(new)?);
            if old != new && !renamed {
                return Err(format!("`{old}` and `{new}` are different files"));
            }
            if hunks.is_empty() && old == new && mode.is_none() {
                return Err(format!("there are no changes for `{old}`"));
            }
            let to = (old != new).then_some(new);
            Ok(PatchChange { path: old, action: PatchAction::Update { hunks, to, mode } })
        }
    }
}

fn build_added_file(hunks: &[Hunk], mode: Option<u32>) -> Result<PatchAction, String> {
    let mut text = Text::default();
    if hunks.iter().any(|hunk| hunk.counts().0 > 0) {
        return Err("a new file has no old lines".into());
    }
    for hunk in hunks {
        text.lines.extend(hunk.new_lines());
        text.open = hunk.new_open;
    }
    Ok(PatchAction::Add { text, mode })
}

/// The old start and both counts of `@@ -1,2 +3,4 @@ …`.
fn parse_hunk_ranges(line: &str) -> Option<(usize, usize, usize)> {
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
fn parse_git_mode(text: &str) -> Option<u32> {
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
