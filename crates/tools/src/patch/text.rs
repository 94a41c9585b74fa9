//! A file as lines, and the application of hunks to it.

use std::collections::BTreeSet;

use crate::files::LineEnds;

/// How far from the place it names a hunk of a unified diff may be found.
const FARTHEST: usize = 200;

/// A file as lines without their ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Text {
    pub lines: Vec<Vec<u8>>,
    /// Whether the last line has no end.
    pub open: bool,
}

/// One piece of change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hunk {
    /// Where it stands in the patch, for messages.
    pub line: usize,
    pub place: Place,
    pub lines: Vec<Line>,
    /// Whether it says that the old or the new last line has no end.
    pub old_open: bool,
    pub new_open: bool,
}

/// Where a hunk belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Before the line of this index, or near it.
    Near(usize),
    /// After lines that read like these, one after the other; at the end of the file if so marked.
    After { headings: Vec<String>, at_end: bool },
}

impl Default for Place {
    fn default() -> Self {
        Self::After { headings: Vec::new(), at_end: false }
    }
}

/// One line of a hunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    Keep(Vec<u8>),
    Remove(Vec<u8>),
    Insert(Vec<u8>),
}

/// Why a hunk does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    NotFound,
    Ambiguous(Vec<usize>),
    NoHeading(String),
    LastLine,
}

impl Text {
    pub(super) fn read(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        let open = !bytes.ends_with(b"\n");
        let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        Self { lines: body.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(), open }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = self.lines.join(&b'\n');
        if !self.open && !self.lines.is_empty() {
            bytes.push(b'\n');
        }
        bytes
    }

    /// Applies hunks in order. Each is looked for behind the one before.
    pub(super) fn apply(&mut self, hunks: &[Hunk]) -> Result<(), (usize, Misfit)> {
        let ends = LineEnds::of(&self.write());
        let (mut from, mut shift) = (0, 0);
        for hunk in hunks {
            let hunk = hunk.with_ends(ends);
            let old = hunk.old();
            let at = self.find(&hunk, &old, from, shift).map_err(|misfit| (hunk.line, misfit))?;
            self.check_end(&hunk, at + old.len()).map_err(|misfit| (hunk.line, misfit))?;
            let new = hunk.new_lines();
            let reaches_end = at + old.len() == self.lines.len();
            if let Place::Near(named) = hunk.place {
                shift = at.cast_signed() - named.cast_signed();
                shift += new.len().cast_signed() - old.len().cast_signed();
            }
            from = at + new.len();
            self.lines.splice(at..at + old.len(), new);
            if reaches_end && (hunk.old_open || hunk.new_open) {
                self.open = hunk.new_open;
            }
        }
        Ok(())
    }

    /// A hunk that speaks of the last line's end must be about the last line.
    fn check_end(&self, hunk: &Hunk, end: usize) -> Result<(), Misfit> {
        let speaks = hunk.old_open || hunk.new_open;
        let fits = end == self.lines.len() && (!hunk.old_open || self.open);
        if speaks && !fits { Err(Misfit::LastLine) } else { Ok(()) }
    }

    fn find(&self, hunk: &Hunk, old: &[&[u8]], from: usize, shift: isize) -> Result<usize, Misfit> {
        match &hunk.place {
            Place::Near(named) => self.find_near(old, *named, from, shift),
            Place::After { headings, at_end } => self.find_after(old, headings, *at_end, from),
        }
    }

    fn stands_at(&self, old: &[&[u8]], at: usize) -> bool {
        let window = self.lines.get(at..at + old.len());
        window.is_some_and(|lines| lines.iter().zip(old).all(|(line, old)| line == old))
    }

    /// At the place that is named, or the nearest one. Two at the same distance are too many.
    fn find_near(
        &self,
        old: &[&[u8]],
        named: usize,
        from: usize,
        shift: isize,
    ) -> Result<usize, Misfit> {
        let wanted = named.saturating_add_signed(shift);
        if old.is_empty() {
            let fits = wanted >= from && wanted <= self.lines.len();
            return if fits { Ok(wanted) } else { Err(Misfit::NotFound) };
        }
        for distance in 0..=FARTHEST {
            let places = BTreeSet::from([wanted.checked_sub(distance), Some(wanted + distance)]);
            let found = places.into_iter().flatten().filter(|at| *at >= from);
            let found: Vec<_> = found.filter(|at| self.stands_at(old, *at)).collect();
            match found.as_slice() {
                [] => {}
                [at] => return Ok(*at),
                several => return Err(ambiguous(several)),
            }
        }
        Err(Misfit::NotFound)
    }

    /// Behind its headings, wherever that is. It must be the only such place.
    fn find_after(
        &self,
        old: &[&[u8]],
        headings: &[String],
        at_end: bool,
        from: usize,
    ) -> Result<usize, Misfit> {
        let starts = self.behind(headings, from)?;
        let end = self.lines.len();
        if old.is_empty() {
            return match starts.as_slice() {
                _ if headings.is_empty() || at_end => Ok(end),
                [at] => Ok(*at),
                several => Err(ambiguous(several)),
            };
        }
        let last = end.checked_sub(old.len()).ok_or(Misfit::NotFound)?;
        let first_behind = |start: &usize| (*start..=last).find(|at| self.stands_at(old, *at));
        let places: BTreeSet<usize> = if at_end {
            let fits = starts.iter().any(|start| *start <= last) && self.stands_at(old, last);
            fits.then_some(last).into_iter().collect()
        } else if headings.is_empty() {
            (from..=last).filter(|at| self.stands_at(old, *at)).collect()
        } else {
            starts.iter().filter_map(first_behind).collect()
        };
        match places.iter().copied().collect::<Vec<_>>().as_slice() {
            [] => Err(Misfit::NotFound),
            [at] => Ok(*at),
            several => Err(ambiguous(several)),
        }
    }

    /// The lines behind each run of headings.
    fn behind(&self, headings: &[String], from: usize) -> Result<Vec<usize>, Misfit> {
        let mut starts = vec![from];
        for heading in headings {
            let wanted = heading.trim();
            let reads = |at: &usize| trimmed(&self.lines[*at]) == wanted.as_bytes();
            let first = starts.first().copied().unwrap_or(from);
            starts = (first..self.lines.len()).filter(reads).map(|at| at + 1).collect();
            if starts.is_empty() {
                return Err(Misfit::NoHeading(heading.clone()));
            }
        }
        Ok(starts)
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

fn ambiguous(places: &[usize]) -> Misfit {
    Misfit::Ambiguous(places.iter().map(|at| at + 1).collect())
}

impl Hunk {
    /// The same hunk for a file whose lines end another way.
    fn with_ends(&self, ends: LineEnds) -> Self {
        let mut hunk = self.clone();
        if ends == LineEnds::Windows {
            for line in &mut hunk.lines {
                let (Line::Keep(text) | Line::Remove(text) | Line::Insert(text)) = line;
                if !text.ends_with(b"\r") {
                    text.push(b'\r');
                }
            }
        }
        hunk
    }

    fn old(&self) -> Vec<&[u8]> {
        let old = |line: &'_ Line| match line {
            Line::Keep(_) | Line::Remove(_) => true,
            Line::Insert(_) => false,
        };
        self.lines.iter().filter(|line| old(line)).map(Line::text).collect()
    }

    pub(super) fn new_lines(&self) -> Vec<Vec<u8>> {
        let new = |line: &&Line| match line {
            Line::Keep(_) | Line::Insert(_) => true,
            Line::Remove(_) => false,
        };
        self.lines.iter().filter(new).map(|line| line.text().to_vec()).collect()
    }

    /// How many lines it takes away and keeps, and how many it leaves.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.old().len(), self.new_lines().len())
    }
}

impl Line {
    fn text(&self) -> &[u8] {
        match self {
            Self::Keep(text) | Self::Remove(text) | Self::Insert(text) => text,
        }
    }
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("its context is not found in the file"),
            Self::Ambiguous(lines) => {
                let lines: Vec<_> = lines.iter().take(20).map(ToString::to_string).collect();
                write!(f, "it fits in several places, at lines {}", lines.join(", "))
            }
            Self::NoHeading(heading) => {
                write!(f, "no line reads `{}`", heading.escape_debug())
            }
            Self::LastLine => f.write_str("what it says of the last line's end is not so"),
        }
    }
}
