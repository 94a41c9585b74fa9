//! Jobs for other programs: JSON lines, or a table that spreadsheets read.

use clap::ValueEnum;
use stockade_core::{Ending, Outcome, Result};
use stockade_engine::{Event, Job, Journal};

use super::select::{self, SelectArgs};
use super::{find_outcome, format_command_line};
use crate::terminal::printer::Printer;

const CSV_COLUMNS: [&str; 15] = [
    "job",
    "started",
    "stopped",
    "tenant",
    "backend",
    "boundary",
    "sandbox",
    "result",
    "exitCode",
    "wallMs",
    "cpuMs",
    "peakMemoryBytes",
    "stdoutBytes",
    "stderrBytes",
    "command",
];

/// How jobs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One object on each line.
    Json,
    /// Comma-separated values with a line of names.
    Csv,
}

/// Writes every job that was asked for, in the order they ended.
pub fn export_jobs(
    journal: &Journal,
    select: &SelectArgs,
    format: ExportFormat,
    printer: &Printer,
) -> Result<i32> {
    if format == ExportFormat::Csv && !printer.stream(&format!("{}\r\n", CSV_COLUMNS.join(","))) {
        return Ok(0);
    }
    for job in journal.jobs(select.filter())? {
        let job = job?;
        if !select.admits(&job) {
            continue;
        }
        let written = match format {
            ExportFormat::Json => printer.stream_json(&job),
            ExportFormat::Csv => printer.stream(&format_csv_row(&job)),
        };
        if !written {
            break;
        }
    }
    Ok(0)
}

fn format_csv_row(job: &Job) -> String {
    let Event::Started { job: id, sandbox, tenant, backend, boundary, command, .. } =
        &job.started.event
    else {
        return String::new();
    };
    let outcome = find_outcome(job);
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let usage = outcome.map(|outcome| &outcome.usage);
    let exited = |ending: &Ending| matches!(ending, Ending::Exited(_));
    let code = outcome.filter(|outcome| exited(&outcome.ending)).map(Outcome::exit_code);
    let fields = [
        id.to_string(),
        job.started.time.to_string(),
        job.stopped.as_ref().map(|record| record.time.to_string()).unwrap_or_default(),
        tenant.to_string(),
        backend.to_string(),
        boundary.to_string(),
        sandbox.to_string(),
        select::JobResult::of(job).name(),
        code.map(|code| code.to_string()).unwrap_or_default(),
        number(usage.map(|usage| usage.wall_ms)),
        number(usage.and_then(|usage| usage.cpu_ms)),
        number(usage.and_then(|usage| usage.peak_memory_bytes)),
        number(outcome.map(|outcome| outcome.stdout.bytes)),
        number(outcome.map(|outcome| outcome.stderr.bytes)),
        format_command_line(command),
    ];
    let fields: Vec<_> = fields.iter().map(|field| quote_csv_cell(field)).collect();
    format!("{}\r\n", fields.join(","))
}

/// One value, quoted where it has to be. A command may come from anybody: nothing that a spreadsheet would take
/// for a formula begins a cell, and no control character is in one.
fn quote_csv_cell(value: &str) -> String {
    let clean: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let formula = clean.starts_with(['=', '+', '-', '@']);
    let guarded = if formula { format!("'{clean}") } else { clean };
    match guarded.contains([',', '"', '\'']) {
        true => format!("\"{}\"", guarded.replace('"', "\"\"")),
        false => guarded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_cell_and_no_formula() {
        assert_eq!(quote_csv_cell("plain"), "plain");
        assert_eq!(quote_csv_cell("a,b"), "\"a,b\"");
        assert_eq!(quote_csv_cell("say \"hi\""), "\"say \"\"hi\"\"\"");
        assert_eq!(quote_csv_cell("=cmd()"), "\"'=cmd()\"");
        assert_eq!(quote_csv_cell("a\nb\u{1b}"), "a b ");
    }
}
