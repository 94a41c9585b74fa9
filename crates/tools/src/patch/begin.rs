//! The `*** Begin Patch` form: files by name, hunks by what stands around them, no line numbers.

use stockade_core::SandboxPath;

use super::at_line;
use super::change::{Action, Change};
use super::text::{Hunk, Line, Place, Text};
use crate::ToolError;

pub(super) const BEGIN_MARKER: &str = "*** Begin Patch";
const END_MARKER: &str = "*** End Patch";
const ADD_MARKER: &str = "*** Add File: ";
const UPDATE_MARKER: &str = "*** Update File: ";
const DELETE_MARKER: &str = "*** Delete File: ";
const MOVE_MARKER: &str = "*** Move to: ";
const END_OF_FILE: &str = "*** End of File";

/// Reads a whole patch.
pub(super) fn parse(patch: &str) -> Result<Vec<Change>, ToolError> {
    let lines: Vec<&str> = patch.lines().collect();
    let mut reader = Reader { lines, at: 0 };
    reader.skip_blank();
    // The caller has seen it.
    reader.at += 1;
    let mut changes = Vec::new();
    loop {
        match reader.peek() {
            None => return Err(reader.fail(format!("the patch does not end with `{END_MARKER}`"))),
            Some(line) if line.trim_end() == END_MARKER => break,
            Some(line) => changes.push(reader.file(line)?),
        }
    }
    reader.at += 1;
    reader.skip_blank();
    match reader.peek() {
        None => Ok(changes),
        Some(_) => Err(reader.fail(format!("something follows `{END_MARKER}`"))),
    }
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.lines.get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        while self.peek().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
    }

    fn fail(&self, problem: impl std::fmt::Display) -> ToolError {
        at_line(self.at + 1, problem)
    }

    fn path(&self, given: &str) -> Result<SandboxPath, ToolError> {
        given.trim_end().parse().map_err(|error: stockade_core::PathError| self.fail(error))
    }

    fn file(&mut self, line: &str) -> Result<Change, ToolError> {
        if let Some(name) = line.strip_prefix(ADD_MARKER) {
            let path = self.path(name)?;
            self.at += 1;
            return Ok(Change { path, action: self.added() });
        }
        if let Some(name) = line.strip_prefix(DELETE_MARKER) {
            let path = self.path(name)?;
            self.at += 1;
            return Ok(Change { path, action: Action::Delete { hunks: Vec::new() } });
        }
        let Some(name) = line.strip_prefix(UPDATE_MARKER) else {
            let kinds = format!(
                "expected `{ADD_MARKER}`, `{UPDATE_MARKER}`, `{DELETE_MARKER}` or `{END_MARKER}`"
            );
            return Err(self.fail(kinds));
        };
        let path = self.path(name)?;
        self.at += 1;
        Ok(Change { action: self.updated(&path)?, path })
    }

    fn added(&mut self) -> Action {
        let mut text = Text::default();
        while let Some(line) = self.peek().and_then(|line| line.strip_prefix('+')) {
            text.lines.push(line.as_bytes().to_vec());
            self.at += 1;
        }
        Action::Add { text, mode: None }
    }

    fn updated(&mut self, path: &SandboxPath) -> Result<Action, ToolError> {
        let to = match self.peek().and_then(|line| line.strip_prefix(MOVE_MARKER)) {
            Some(name) => {
                let to = self.path(name)?;
                self.at += 1;
                Some(to)
            }
            None => None,
        };
        let mut hunks = Vec::new();
        while self.peek().is_some_and(|line| !line.starts_with("*** ")) {
            hunks.push(self.hunk()?);
        }
        if hunks.is_empty() && to.is_none() {
            return Err(self.fail(format!("nothing is said about `{path}`")));
        }
        Ok(Action::Update { hunks, to, mode: None })
    }

    fn hunk(&mut self) -> Result<Hunk, ToolError> {
        let mut hunk = Hunk { line: self.at + 1, ..Hunk::default() };
        let mut headings = Vec::new();
        while let Some(rest) = self.peek().and_then(|line| line.strip_prefix("@@")) {
            if !rest.trim().is_empty() {
                headings.push(rest.trim().to_owned());
            }
            self.at += 1;
        }
        while let Some(line) = self.peek().filter(|line| !starts_next(line)) {
            hunk.lines.push(self.hunk_line(line)?);
            self.at += 1;
        }
        let at_end = self.peek().is_some_and(|line| line.trim_end() == END_OF_FILE);
        if at_end {
            self.at += 1;
        }
        if !hunk.lines.iter().any(|line| !matches!(line, Line::Keep(_))) {
            return Err(at_line(hunk.line, "the hunk changes nothing"));
        }
        hunk.place = Place::After { headings, at_end };
        Ok(hunk)
    }

    fn hunk_line(&self, line: &str) -> Result<Line, ToolError> {
        let text = || line.as_bytes()[1..].to_vec();
        match line.as_bytes().first() {
            // An empty line of context whose blank was lost on the way.
            None => Ok(Line::Keep(Vec::new())),
            Some(b' ') => Ok(Line::Keep(text())),
            Some(b'-') => Ok(Line::Remove(text())),
            Some(b'+') => Ok(Line::Insert(text())),
            Some(_) => Err(self.fail("a line of a hunk begins with ` `, `-` or `+`")),
        }
    }
}

fn starts_next(line: &str) -> bool {
    line.starts_with("@@") || line.starts_with("*** ")
}
