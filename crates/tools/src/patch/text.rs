//! A file as lines, and the application of hunks to it.

use std::cell::Cell;
use std::collections::BTreeSet;

use crate::files::LineEnds;

/// How many lines are compared before it is given up: less than a second's worth. Lines that are all alike could
/// keep this going for years.
const MAX_COMPARED_LINES: usize = 20_000_000;

/// Offset in lines from the place it names at which a hunk of a unified diff may be found.
const MAX_HUNK_OFFSET: usize = 200;

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
    pub place: HunkPlace,
    pub lines: Vec<HunkLine>,
    /// Whether it says that the old or the new last line has no end.
    pub old_open: bool,
    pub new_open: bool,
}

/// Where a hunk belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HunkPlace {
    /// Before the line of this index, or near it.
    Near(usize),
    /// After lines that read like these, one after the other; at the end of the file if so marked.
    After { headings: Vec<String>, at_end: bool },
}

impl Default for HunkPlace {
    fn default() -> Self {
        Self::After { headings: Vec::new(), at_end: false }
    }
}

/// One line of a hunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HunkLine {
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
    TooMuch,
}

/// What is left of the work that may be done.
struct WorkBudget(Cell<usize>);

impl WorkBudget {
    fn spend_lines(&self, lines: usize) -> Result<(), Misfit> {
        let left = self.0.get().checked_sub(lines).ok_or(Misfit::TooMuch)?;
        self.0.set(left);
        Ok(())
    }
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
        let work = WorkBudget(Cell::new(MAX_COMPARED_LINES));
        let (mut from, mut shift) = (0, 0);
        for hunk in hunks {
            // Putting lines in moves those behind them.
            work.spend_lines(1 + self.lines.len() / 4).map_err(|misfit| (hunk.line, misfit))?;
            let hunk = hunk.with_ends(ends);
            let old = hunk.old_lines();
            let found = self.find_hunk(&hunk, &old, from, shift, &work);
            let at = found.map_err(|misfit| (hunk.line, misfit))?;
            self.check_end(&hunk, at + old.len()).map_err(|misfit| (hunk.line, misfit))?;
            let new = hunk.new_lines();
            let reaches_end = at + old.len() == self.lines.len();
            if let HunkPlace::Near(named) = hunk.place {
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

    fn find_hunk(
        &self,
        hunk: &Hunk,
        old: &[&[u8]],
        from: usize,
        shift: isize,
        work: &WorkBudget,
    ) -> Result<usize, Misfit> {
        match &hunk.place {
            HunkPlace::Near(named) => {
                self.find_near(old, named.saturating_add_signed(shift), from, work)
            }
            HunkPlace::After { headings, at_end } => {
                self.find_after(old, headings, *at_end, from, work)
            }
        }
    }

    fn stands_at(&self, old: &[&[u8]], at: usize, work: &WorkBudget) -> Result<bool, Misfit> {
        let Some(lines) = self.lines.get(at..at + old.len()) else { return Ok(false) };
        let same = lines.iter().zip(old).take_while(|(line, old)| line == *old).count();
        work.spend_lines(same + 1)?;
        Ok(same == old.len())
    }

    /// Everywhere it stands between two lines, in order.
    fn find_all_matches(
        &self,
        old: &[&[u8]],
        places: impl Iterator<Item = usize>,
        work: &WorkBudget,
    ) -> Result<Vec<usize>, Misfit> {
        let mut found = Vec::new();
        for at in places {
            if self.stands_at(old, at, work)? {
                found.push(at);
            }
        }
        Ok(found)
    }

    /// At the place that is named, or the nearest one. Two at the same distance are too many.
    fn find_near(
        &self,
        old: &[&[u8]],
        wanted: usize,
        from: usize,
        work: &WorkBudget,
    ) -> Result<usize, Misfit> {
        if old.is_empty() {
            let fits = wanted >= from && wanted <= self.lines.len();
            return if fits { Ok(wanted) } else { Err(Misfit::NotFound) };
        }
        for distance in 0..=MAX_HUNK_OFFSET {
            let places = BTreeSet::from([wanted.checked_sub(distance), Some(wanted + distance)]);
            let places = places.into_iter().flatten().filter(|at| *at >= from);
            match self.find_all_matches(old, places, work)?.as_slice() {
                [] => {}
                [at] => return Ok(*at),
                several => return Err(ambiguous_misfit(several)),
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
        work: &WorkBudget,
    ) -> Result<usize, Misfit> {
        let starts = self.find_behind_headings(headings, from, work)?;
        let end = self.lines.len();
        if old.is_empty() {
            return match starts.as_slice() {
                _ if headings.is_empty() || at_end => Ok(end),
                [at] => Ok(*at),
                several => Err(ambiguous_misfit(several)),
            };
        }
        let last = end.checked_sub(old.len()).ok_or(Misfit::NotFound)?;
        let first = starts.first().copied().unwrap_or(from);
        let places: BTreeSet<usize> = if at_end {
            let fits = first <= last && self.stands_at(old, last, work)?;
            fits.then_some(last).into_iter().collect()
        } else {
            let all = self.find_all_matches(old, first..=last, work)?;
            let next = |start: &usize| all.get(all.partition_point(|at| at < start)).copied();
            match headings.is_empty() {
                true => all.into_iter().collect(),
                false => starts.iter().filter_map(next).collect(),
            }
        };
        match places.iter().copied().collect::<Vec<_>>().as_slice() {
            [] => Err(Misfit::NotFound),
            [at] => Ok(*at),
            several => Err(ambiguous_misfit(several)),
        }
    }

    /// The lines behind each run of headings.
    fn find_behind_headings(
        &self,
        headings: &[String],
        from: usize,
        work: &WorkBudget,
    ) -> Result<Vec<usize>, Misfit> {
        let mut starts = vec![from];
        for heading in headings {
            work.spend_lines(1 + self.lines.len())?;
            let wanted = heading.trim();
            let reads = |at: &usize| trim_whitespace(&self.lines[*at]) == wanted.as_bytes();
            let first = starts.first().copied().unwrap_or(from);
            starts = (first..self.lines.len()).filter(reads).map(|at| at + 1).collect();
            if starts.is_empty() {
                return Err(Misfit::NoHeading(heading.clone()));
            }
        }
        Ok(starts)
    }
}

fn trim_whitespace(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

fn ambiguous_misfit(places: &[usize]) -> Misfit {
    Misfit::Ambiguous(places.iter().map(|at| at + 1).collect())
}

impl Hunk {
    /// The same hunk for a file whose lines end another way.
    fn with_ends(&self, ends: LineEnds) -> Self {
        let mut hunk = self.clone();
        if ends == LineEnds::Windows {
            for line in &mut hunk.lines {
                let (HunkLine::Keep(text) | HunkLine::Remove(text) | HunkLine::Insert(text)) = line;
                if !text.ends_with(b"\r") {
                    text.push(b'\r');
                }
            }
        }
        hunk
    }

    fn old_lines(&self) -> Vec<&[u8]> {
        let old = |line: &'_ HunkLine| match line {
            HunkLine::Keep(_) | HunkLine::Remove(_) => true,
            HunkLine::Insert(_) => false,
        };
        self.lines.iter().filter(|line| old(line)).map(HunkLine::text).collect()
    }

    pub(super) fn new_lines(&self) -> Vec<Vec<u8>> {
        let new = |line: &&HunkLine| match line {
            HunkLine::Keep(_) | HunkLine::Insert(_) => true,
            HunkLine::Remove(_) => false,
        };
        self.lines.iter().filter(new).map(|line| line.text().to_vec()).collect()
    }

    /// How many lines it takes away and keeps, and how many it leaves.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.old_lines().len(), self.new_lines().len())
    }
}

impl HunkLine {
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
            Self::LastLine => {
                f.write_str("its mark for a missing newline at the end does not fit the file")
            }
            Self::TooMuch => f.write_str("searching for its position takes too long"),
        }
    }
}
