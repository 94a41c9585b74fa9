//! The report as JSON, for programs that compare runs. A number that is not known is `null`.

use serde_json::{Value, json};

use crate::machine::{MachineFacts, ProgramVersion};
use crate::report::{BenchReport, ReportSection, SectionItem};
use crate::table::{Figures, Timing};

/// The whole report, with a line break at its end.
pub fn write_json(
    report: &BenchReport,
    machine: &MachineFacts,
    versions: &[ProgramVersion],
) -> String {
    let versions = versions.iter().map(|found| (found.program.into(), json!(found.version)));
    let document = json!({
        "machine": {
            "date": machine.date,
            "kernel": machine.kernel,
            "processor": machine.processor,
            "cores": machine.cores,
            "memoryMib": machine.memory_mib,
            "cgroups": machine.cgroups,
            "user": machine.user,
        },
        "versions": versions.collect::<serde_json::Map<String, Value>>(),
        "sections": report.sections().iter().map(section_value).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn section_value(section: &ReportSection) -> Value {
    let (mut notes, mut timings, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for item in &section.items {
        match item {
            SectionItem::Note(text) => notes.push(json!(text)),
            SectionItem::Timings(rows) => {
                timings.push(rows.iter().map(timing_value).collect::<Value>());
            }
            SectionItem::Figures(table) => figures.push(figures_value(table)),
        }
    }
    json!({
        "measurement": section.measurement,
        "title": section.title,
        "notes": notes,
        "timings": timings,
        "figures": figures,
    })
}

fn timing_value(timing: &Timing) -> Value {
    json!({
        "name": timing.name,
        "leastMs": rounded(timing.least_ms),
        "p50Ms": rounded(timing.p50_ms),
        "p99Ms": rounded(timing.p99_ms),
        "rounds": timing.rounds,
    })
}

fn figures_value(figures: &Figures) -> Value {
    let row = |(name, values): &(String, Vec<f64>)| {
        let columns = figures.columns.iter().map(|column| column.name.to_owned());
        let values = columns.zip(values.iter().map(|value| rounded(*value)));
        json!({ "name": name, "values": values.collect::<serde_json::Map<_, _>>() })
    };
    json!({ "label": figures.label, "rows": figures.rows.iter().map(row).collect::<Vec<_>>() })
}

/// To a ten-thousandth, which is a tenth of a microsecond.
fn rounded(value: f64) -> Value {
    // JSON has no other word for what is not finite.
    if value.is_finite() { json!((value * 1e4).round() / 1e4) } else { Value::Null }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Column, Row};

    #[test]
    fn numbers_that_are_not_known_are_null() {
        let mut report = BenchReport::default();
        report.begin_measurement("native");
        report.title("native: nothing was run");
        report.timings(&mut [Row::new("never run")]);
        let mut figures = Figures::new("number", &[Column::new("ratio", 6, 2)]);
        figures.add("10", vec![f64::INFINITY]);
        report.figures(figures);
        let text = write_json(&report, &MachineFacts::read(), &[]);
        let document: Value = serde_json::from_str(&text).unwrap();
        let section = &document["sections"][0];
        assert_eq!(section["timings"][0][0]["p50Ms"], Value::Null);
        assert_eq!(section["timings"][0][0]["rounds"], 0);
        assert_eq!(section["figures"][0]["rows"][0]["values"]["ratio"], Value::Null);
        assert!(!text.contains("NaN") && !text.contains("inf,"), "{text}");
    }
}
