//! The report as a page of the documentation: an introduction that does not change, the machine, and a table for
//! each that was printed.

use std::fmt::Write as _;

use crate::machine::{MachineFacts, ProgramVersion};
use crate::report::{BenchReport, ReportSection, SectionItem};
use crate::table::{Figures, Timing};

const INTRODUCTION: &str = include_str!("../introduction.md");

/// Where no ratio is known.
const UNKNOWN_RATIO: &str = "–";

/// The whole page. `plot` is the link to the picture, as it is written in the page.
pub fn write_markdown(
    report: &BenchReport,
    machine: &MachineFacts,
    versions: &[ProgramVersion],
    plot: Option<&str>,
) -> String {
    let mut page = format!("{INTRODUCTION}\n## The machine\n\n{}", machine_table(machine));
    for ProgramVersion { program, version } in versions {
        let version = version.as_deref().unwrap_or("version not told");
        let _ = writeln!(page, "| `{program}` | {} |", escape_cell(version));
    }
    let mut measurement = "";
    for section in report.sections() {
        if section.measurement != measurement {
            measurement = section.measurement;
            let _ = write!(page, "\n## {measurement}\n");
        }
        write_section(&mut page, section);
    }
    if let (Some(link), Some(drawn)) = (plot, report.plot()) {
        let _ = write!(page, "\n## {}\n\n![{1}]({link})\n", drawn.title, escape_cell(&drawn.alt));
    }
    page
}

fn machine_table(machine: &MachineFacts) -> String {
    let MachineFacts { date, kernel, processor, cores, memory_mib, cgroups, user } = machine;
    let gib = *memory_mib as f64 / 1024.0;
    format!(
        "| | |\n| --- | --- |\n| date | {date} |\n| kernel | {} |\n| processor | {} |\n| cores | {cores} |\n\
         | memory | {gib:.1} GiB |\n| control groups | {cgroups} |\n| user | {user} |\n",
        escape_cell(kernel),
        escape_cell(processor),
    )
}

fn write_section(page: &mut String, section: &ReportSection) {
    let prefix = format!("{}: ", section.measurement);
    let title = section.title.strip_prefix(&prefix).unwrap_or(&section.title);
    if !title.is_empty() {
        let _ = write!(page, "\n{}\n", escape_cell(title));
    }
    let mut in_list = false;
    for item in &section.items {
        let is_note = matches!(item, SectionItem::Note(_));
        if !(is_note && in_list) {
            page.push('\n');
        }
        in_list = is_note;
        match item {
            SectionItem::Note(text) => page.push_str(&format!("- {}\n", escape_cell(text))),
            SectionItem::Timings(timings) => page.push_str(&timings_table(timings)),
            SectionItem::Figures(figures) => page.push_str(&figures_table(figures)),
        }
    }
}

/// Times in milliseconds, and ratios to the baselines, or to every row where none is marked.
fn timings_table(timings: &[Timing]) -> String {
    let any_baseline = timings.iter().any(|timing| timing.baseline);
    let baselines: Vec<&Timing> =
        timings.iter().filter(|timing| timing.baseline || !any_baseline).collect();
    let mut table = "| | rounds | least ms | p50 ms | p99 ms |".to_owned();
    baselines.iter().for_each(|timing| table.push_str(&format!(" ÷ {} |", timing.name)));
    table.push_str("\n| --- | --: | --: | --: | --: |");
    table.push_str(&" --: |".repeat(baselines.len()));
    table.push('\n');
    for timing in timings {
        let Timing { name, rounds, .. } = timing;
        let _ = write!(table, "| {} | {rounds} |", escape_cell(name));
        for value in [timing.least_ms, timing.p50_ms, timing.p99_ms] {
            let _ = write!(table, " {} |", finite(Some(value), 3));
        }
        for baseline in &baselines {
            let _ = write!(table, " {} |", finite(timing.ratio_to(baseline), 2));
        }
        table.push('\n');
    }
    table
}

fn figures_table(figures: &Figures) -> String {
    let mut table = format!("| {} |", figures.label);
    figures.columns.iter().for_each(|column| table.push_str(&format!(" {} |", column.name)));
    let _ = write!(table, "\n| --: |{}\n", " --: |".repeat(figures.columns.len()));
    for (name, values) in &figures.rows {
        let _ = write!(table, "| {} |", escape_cell(name));
        for (column, value) in figures.columns.iter().zip(values) {
            let _ = write!(table, " {} |", finite(Some(*value), column.decimals));
        }
        table.push('\n');
    }
    table
}

fn finite(value: Option<f64>, decimals: usize) -> String {
    let finite = value.filter(|value| value.is_finite());
    finite.map_or_else(|| UNKNOWN_RATIO.to_owned(), |value| format!("{value:.decimals$}"))
}

/// Text that ends no cell and is no markup of a page.
fn escape_cell(text: &str) -> String {
    let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::table::Row;

    fn timed_row(name: &'static str, millis: u64) -> Row {
        let mut row = Row::new(name);
        row.add(Duration::from_millis(millis));
        row
    }

    fn table(rows: &mut [Row]) -> Vec<String> {
        let timings: Vec<Timing> = rows.iter_mut().map(Row::timing).collect();
        timings_table(&timings).lines().map(str::to_owned).collect()
    }

    #[test]
    fn rows_are_compared_with_baselines_only() {
        let mut rows = [timed_row("floor", 2).into_baseline(), timed_row("bwrap", 5)];
        let lines = table(&mut rows);
        assert_eq!(lines[0], "| | rounds | least ms | p50 ms | p99 ms | ÷ floor |");
        assert_eq!(lines[3], "| bwrap | 1 | 5.000 | 5.000 | 5.000 | 2.50 |");
    }

    #[test]
    fn without_a_baseline_rows_are_compared_with_each_other() {
        let lines = table(&mut [timed_row("one", 2), timed_row("two", 4)]);
        assert_eq!(lines[2], "| one | 1 | 2.000 | 2.000 | 2.000 | 1.00 | 0.50 |");
    }

    #[test]
    fn rows_without_rounds_have_no_ratio() {
        let lines = table(&mut [timed_row("one", 2), Row::new("never run")]);
        assert_eq!(lines[2], "| one | 1 | 2.000 | 2.000 | 2.000 | 1.00 | – |");
        assert_eq!(lines[3], "| never run | 0 | – | – | – | – | – |");
    }

    #[test]
    fn text_of_other_programs_ends_no_cell() {
        assert_eq!(escape_cell("a | <b> & \u{1b}[1mc\n"), "a \\| &lt;b> &amp; [1mc");
    }
}
