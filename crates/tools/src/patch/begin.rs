//! The `*** Begin Patch` form: files by name, hunks by what stands around them, no line numbers.

use stockade_core::SandboxPath;

use super::at_line;
use super::change::{PatchAction, PatchChange};
use super::text::{Hunk, HunkLine, HunkPlace, Text};
use crate::ToolError;

pub(super) const BEGIN_MARKER: &str = "*** Begin Patch";
const END_MARKER: &str = "*** End Patch";
const ADD_MARKER: &str = "*** Add File: ";
const UPDATE_MARKER: &str = "*** Update File: ";
const DELETE_MARKER: &str = "*** Delete File: ";
const MOVE_MARKER: &str = "*** Move to: ";
const END_OF_FILE: &str = "*** End of File";

/// Reads a whole patch.
pub(super) fn parse_begin_patch(patch: &str) -> Result<Vec<PatchChange>, ToolError> {
    let lines: Vec<&str> = patch.lines().collect();
    let mut reader = BeginReader { lines, at: 0 };
    reader.skip_blank();
    // The caller has seen it.
    reader.at += 1;
    let mut changes = Vec::new();
    loop {
        match reader.peek_line() {
            None => {
                return Err(
                    reader.syntax_error(format!("the patch does not end with `{END_MARKER}`"))
                );
            }
            Some(line) if line.trim_end() == END_MARKER => break,
            Some(line) => changes.push(reader.parse_file(line)?),
        }
    }
    reader.at += 1;
    reader.skip_blank();
    match reader.peek_line() {
        None => Ok(changes),
        Some(_) => Err(reader.syntax_error(format!("something follows `{END_MARKER}`"))),
    }
}

struct BeginReader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> BeginReader<'a> {
    fn peek_line(&self) -> Option<&'a str> {
        self.lines.get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        while self.peek_line().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
    }

    fn syntax_error(&self, problem: impl std::fmt::Display) -> ToolError {
        at_line(self.at + 1, problem)
    }

    fn path(&self, given: &str) -> Result<SandboxPath, ToolError> {
        given.trim_end().parse().map_err(|error: stockade_core::PathError| self.syntax_error(error))
    }

    fn parse_file(&mut self, line: &str) -> Result<PatchChange, ToolError> {
        if let Some(name) = line.strip_prefix(ADD_MARKER) {
            let path = self.path(name)?;
            self.at += 1;
            return Ok(PatchChange { path, action: self.parse_added() });
        }
        if let Some(name) = line.strip_prefix(DELETE_MARKER) {
            let path = self.path(name)?;
            self.at += 1;
            return Ok(PatchChange { path, action: PatchAction::Delete { hunks: Vec::new() } });
        }
        let Some(name) = line.strip_prefix(UPDATE_MARKER) else {
            let kinds = format!(
                "expected `{ADD_MARKER}`, `{UPDATE_MARKER}`, `{DELETE_MARKER}` or `{END_MARKER}`"
            );
            return Err(self.syntax_error(kinds));
        };
        let path = self.path(name)?;
        self.at += 1;
        Ok(PatchChange { action: self.parse_updated(&path)?, path })
    }

    fn parse_added(&mut self) -> PatchAction {
        let mut text = Text::default();
        while let Some(line) = self.peek_line().and_then(|line| line.strip_prefix('+')) {
            text.lines.push(line.as_bytes().to_vec());
            self.at += 1;
        }
        PatchAction::Add { text, mode: None }
    }

    fn parse_updated(&mut self, path: &SandboxPath) -> Result<PatchAction, ToolError> {
        let to = match self.peek_line().and_then(|line| line.strip_prefix(MOVE_MARKER)) {
            Some(name) => {
                let to = self.path(name)?;
                self.at += 1;
                Some(to)
            }
            None => None,
        };
        let mut hunks = Vec::new();
        while self.peek_line().is_some_and(|line| !line.starts_with("*** ")) {
            hunks.push(self.parse_hunk()?);
        }
        if hunks.is_empty() && to.is_none() {
            return Err(self.syntax_error(format!("there are no changes for `{path}`")));
        }
        Ok(PatchAction::Update { hunks, to, mode: None })
    }

    fn parse_hunk(&mut self) -> Result<Hunk, ToolError> {
        let mut hunk = Hunk { line: self.at + 1, ..Hunk::default() };
        let mut headings = Vec::new();
        while let Some(rest) = self.peek_line().and_then(|line| line.strip_prefix("@@")) {
            if !rest.trim().is_empty() {
                headings.push(rest.trim().to_owned());
            }
            self.at += 1;
        }
        while let Some(line) = self.peek_line().filter(|line| !starts_next(line)) {
            hunk.lines.push(self.hunk_line(line)?);
            self.at += 1;
        }
        let at_end = self.peek_line().is_some_and(|line| line.trim_end() == END_OF_FILE);
        if at_end {
            self.at += 1;
        }
        if !hunk.lines.iter().any(|line| !matches!(line, HunkLine::Keep(_))) {
            return Err(at_line(hunk.line, "the hunk changes nothing"));
        }
        hunk.place = HunkPlace::After { headings, at_end };
        Ok(hunk)
    }

    fn hunk_line(&self, line: &str) -> Result<HunkLine, ToolError> {
        let text = || line.as_bytes()[1..].to_vec();
        match line.as_bytes().first() {
            // An empty line of context whose blank was lost on the way.
            None => Ok(HunkLine::Keep(Vec::new())),
            Some(b' ') => Ok(HunkLine::Keep(text())),
            Some(b'-') => Ok(HunkLine::Remove(text())),
            Some(b'+') => Ok(HunkLine::Insert(text())),
            Some(_) => Err(self.syntax_error("a line of a hunk begins with ` `, `-` or `+`")),
        }
    }
}

fn starts_next(line: &str) -> bool {
    line.starts_with("@@") || line.starts_with("*** ")
}
