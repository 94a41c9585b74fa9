//! Tables that fit the terminal: every column as wide as it needs, the last one wrapped or cut to
//! what is left. Without a terminal nothing is wrapped or cut, so that lines can be searched.

use stockade_core::is_unsafe_to_show;

use crate::terminal::printer::{Printer, Tone};

const COLUMN_GAP: usize = 2;
/// Least width of the last column, however narrow the terminal.
const MIN_LAST_WIDTH: usize = 12;

/// One cell: lines of text, and the tone of all of them.
#[derive(Debug, Clone)]
pub struct Cell {
    lines: Vec<String>,
    tone: Option<Tone>,
}

/// Rows under a head.
#[derive(Debug)]
pub struct Table<const N: usize> {
    rows: Vec<[Cell; N]>,
    fit: fn(&str, usize) -> Vec<String>,
}

impl Cell {
    /// One line of text.
    pub fn plain(text: impl Into<String>) -> Self {
        Self::lines(vec![text.into()])
    }

    /// Several lines, one below the other.
    pub fn lines(lines: Vec<String>) -> Self {
        Self { lines: lines.iter().map(|line| escape_unsafe_line(line)).collect(), tone: None }
    }

    /// One line in a tone.
    pub fn toned(tone: Tone, text: impl Into<String>) -> Self {
        Self { tone: Some(tone), ..Self::plain(text) }
    }

    fn width(&self) -> usize {
        self.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)
    }
}

/// What a guest or a caller wrote may hold anything; a terminal must not obey it.
fn escape_unsafe_line(line: &str) -> String {
    let shown = |c: char| {
        if is_unsafe_to_show(c) { c.escape_default().to_string() } else { c.to_string() }
    };
    line.chars().map(shown).collect()
}

impl<const N: usize> Table<N> {
    /// An empty table with these heads.
    pub fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(|text| Cell::toned(Tone::Head, text))], fit: wrap_line }
    }

    /// One line for each row: a last column that is too long is cut.
    #[must_use]
    pub fn cut(self) -> Self {
        Self { fit: cut_line, ..self }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// The table as text, a newline at the end of each line.
    pub fn render(&self, printer: &Printer) -> String {
        let widths = self.column_widths();
        let before: usize =
            widths[..N.saturating_sub(1)].iter().map(|width| width + COLUMN_GAP).sum();
        let room = printer.width().map(|width| width.saturating_sub(before).max(MIN_LAST_WIDTH));
        let fitted = self.rows.iter().map(|row| self.fit_row(row, room));
        fitted.map(|row| render_row(&row, &widths, printer)).collect()
    }

    fn fit_row(&self, row: &[Cell; N], room: Option<usize>) -> [Cell; N] {
        let mut cells = row.clone();
        if let (Some(room), Some(last)) = (room, cells.last_mut()) {
            last.lines = last.lines.iter().flat_map(|line| (self.fit)(line, room)).collect();
        }
        cells
    }

    fn column_widths(&self) -> [usize; N] {
        std::array::from_fn(|at| self.rows.iter().map(|row| row[at].width()).max().unwrap_or(0))
    }
}

fn render_row<const N: usize>(cells: &[Cell; N], widths: &[usize; N], printer: &Printer) -> String {
    let height = cells.iter().map(|cell| cell.lines.len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in 0..height {
        let mut shown = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let part = cell.lines.get(line).map_or("", String::as_str);
            let padding = (width + COLUMN_GAP).saturating_sub(part.chars().count());
            shown += &cell.tone.map_or_else(|| part.to_owned(), |tone| printer.tone(tone, part));
            shown += &" ".repeat(padding);
        }
        text += shown.trim_end();
        text.push('\n');
    }
    text
}

/// The beginning of a line, and a sign that there is more.
fn cut_line(line: &str, room: usize) -> Vec<String> {
    match line.char_indices().nth(room) {
        None => vec![line.to_owned()],
        Some(_) => vec![line.chars().take(room.saturating_sub(1)).chain(['…']).collect()],
    }
}

/// Breaks a line between words; a word that is too long stands alone and is broken where it must.
fn wrap_line(line: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    for word in line.split(' ') {
        let mut rest = word;
        let used = current.chars().count();
        if used > 0 && used + 1 + rest.chars().count() > room {
            lines.push(std::mem::take(&mut current));
        } else if used > 0 {
            current.push(' ');
        }
        while let Some((at, _)) = rest.char_indices().nth(room).filter(|_| current.is_empty()) {
            lines.push(rest[..at].to_owned());
            rest = &rest[at..];
        }
        current += rest;
    }
    lines.push(current);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_long_words_break_anywhere() {
        assert_eq!(wrap_line("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap_line("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap_line("", 5), [""]);
    }

    #[test]
    fn lines_that_are_cut_fill_the_room_exactly() {
        assert_eq!(cut_line("abcd", 4), ["abcd"]);
        assert_eq!(cut_line("abcde", 4), ["abc…"]);
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(escape_unsafe_line("a\x1b[31mb\n"), "a\\u{1b}[31mb\\n");
    }

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let mut table = Table::new(["A", "B"]);
        table.row([Cell::plain("long"), Cell::lines(vec!["x".into(), "y".into()])]);
        table.row([Cell::plain("s"), Cell::plain("")]);
        assert_eq!(table.render(&Printer::new(true)), "A     B\nlong  x\n      y\ns\n");
    }
}
