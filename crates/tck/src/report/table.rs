//! The report for a person: one line per case, the reason beneath, never wider than a hundred columns.

use crate::{Counts, Report, Status};

/// Line width of the table, in columns.
const MAX_LINE_COLUMNS: usize = 100;
const DETAIL_INDENT: &str = "            ";

pub(super) fn render_table(report: &Report) -> String {
    let mut lines =
        vec![format!("{} (boundary: {})", report.subject, report.boundary), String::new()];
    for case in &report.cases {
        let (mark, detail) = match &case.status {
            Status::Passed => ("pass", None),
            Status::Failed(message) => ("FAIL", Some(message)),
            Status::Skipped(reason) => ("skip", Some(reason)),
        };
        let time = format!("{:.2}s", case.took.as_secs_f64());
        let mut names =
            wrap_text(case.name, MAX_LINE_COLUMNS - DETAIL_INDENT.len() - 9).into_iter();
        let first = names.next().unwrap_or_default();
        let room = MAX_LINE_COLUMNS - DETAIL_INDENT.len() - 8;
        lines.push(
            format!("{mark}  {}  {first:<room$}{time:>8}", case.clause).trim_end().to_owned(),
        );
        lines.extend(names.map(|rest| format!("{DETAIL_INDENT}{rest}")));
        let detail = detail
            .map(|detail| wrap_text(detail, MAX_LINE_COLUMNS - DETAIL_INDENT.len() - 2))
            .unwrap_or_default();
        lines.extend(detail.into_iter().map(|line| format!("{DETAIL_INDENT}  {line}")));
    }
    let Counts { passed, failed, skipped } = report.counts();
    lines.push(String::new());
    lines.push(format!("{passed} passed, {failed} failed, {skipped} skipped"));
    lines.join("\n") + "\n"
}

/// Breaks text at blanks, and words that are too long anywhere; control characters are shown escaped.
pub(crate) fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let plain: String = text
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect();
    let mut lines = vec![String::new()];
    for word in plain.split(' ').flat_map(|word| split_word(word, width)) {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(word);
        } else if let Some(line) = lines.last_mut() {
            if last > 0 {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    lines
}

fn split_word(word: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(width).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_line_is_wider_than_a_hundred_columns_and_nothing_is_lost() {
        let table = crate::report::sample_report().table();
        assert!(
            table.lines().all(|line| line.chars().count() <= super::MAX_LINE_COLUMNS),
            "{table}"
        );
        assert_eq!(table.matches("long").count(), 40);
        assert!(table.contains("1 passed, 1 failed, 1 skipped"), "{table}");
    }
}
