//! `stockade detect`: what each backend was measured to have on this host. One table of all of them, or
//! one of them with mechanisms, reasons and remedies.

use std::collections::BTreeSet;

use clap::Args;
use stockade_core::{BackendChoice, Capabilities, Feature, Result, Support};

use crate::config::Settings;
use crate::registry;
use crate::terminal::printer::{Printer, Tone};
use crate::terminal::table::{Cell, Table};

/// Status line while the backends are measured, which takes its time.
pub const MEASURING_STATUS: &str = "measuring what each backend can do";

/// Spaces between two columns.
const COLUMN_GAP: usize = 2;
/// How wide a list below the table may get.
const LIST_WIDTH: usize = 100;

/// What to measure.
#[derive(Debug, Args)]
pub struct DetectArgs {
    /// Only this backend, with mechanisms, reasons and remedies.
    #[arg(value_name = "NAME", conflicts_with = "backend")]
    name: Option<BackendChoice>,
    /// The same as NAME.
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendChoice>,
}

/// Measures and shows; fails only if nothing could be measured.
pub async fn detect(args: &DetectArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let choice = args.name.clone().or(args.backend.clone()).unwrap_or_default();
    let engine = registry::engine(&settings, &choice).await?;
    let wanted = |capabilities: &Capabilities| match &choice {
        BackendChoice::Auto => true,
        BackendChoice::Named(name) => capabilities.backend == *name,
    };
    let measured: Vec<_> = printer
        .patiently(MEASURING_STATUS, engine.detect())
        .await
        .into_iter()
        .filter(wanted)
        .collect();
    engine.close().await?;
    if printer.is_json() {
        printer.json(&measured);
    } else if choice == BackendChoice::Auto {
        printer.data(&format_summary(&measured, printer));
    } else {
        let shown: Vec<_> =
            measured.iter().map(|one| format_backend_section(one, printer)).collect();
        printer.data(&shown.join("\n"));
    }
    Ok(0)
}

/// A column of the summary, from the backend's name downwards.
fn build_feature_column(
    capabilities: &Capabilities,
    features: &[Feature],
) -> Vec<(Option<Tone>, String)> {
    let name = capabilities.backend.as_str();
    let head = [
        (Some(Tone::Head), name.to_owned()),
        (None, capabilities.boundary.to_string()),
        (None, registry::typical_start(&capabilities.backend).to_owned()),
    ];
    let features = features.iter().map(|feature| {
        let (tone, word) = match capabilities.support(*feature) {
            Support::Full { .. } => (Tone::Good, "yes"),
            Support::Partial { .. } => (Tone::Fair, "partly"),
            Support::Missing { .. } => (Tone::Bad, "no"),
        };
        (Some(tone), word.to_owned())
    });
    head.into_iter().chain(features).collect()
}

/// Backends that are here across, features in which they differ down, and a few lines on the rest.
fn format_summary(measured: &[Capabilities], printer: &Printer) -> String {
    let here: Vec<_> = measured.iter().filter(|one| one.unavailable.is_none()).collect();
    if here.is_empty() {
        // Nothing to compare: what is wanted is why, and what would help.
        return measured.iter().map(|one| format_backend_section(one, printer)).collect();
    }
    let full = |one: &&Capabilities, feature| matches!(one.support(feature), Support::Full { .. });
    let (common, differing): (Vec<Feature>, Vec<Feature>) =
        Feature::ALL.iter().partition(|feature| here.iter().all(|one| full(one, **feature)));
    let labels = ["", "boundary", "typical start"].into_iter().map(str::to_owned);
    let labels = labels.chain(differing.iter().map(ToString::to_string));
    let labels: Vec<_> = labels.map(|label| (None, label)).collect();
    let columns = here.iter().map(|one| build_feature_column(one, &differing));
    let columns: Vec<_> = std::iter::once(labels).chain(columns).collect();
    let common: Vec<_> = common.iter().map(ToString::to_string).collect();
    join_columns(&columns, printer)
        + &wrap_list("all have", &common)
        + &format_summary_footer(measured)
}

/// A list behind a word, on as many lines as it takes.
fn wrap_list(word: &str, names: &[String]) -> String {
    let mut lines = vec![format!("{word}:")];
    for (at, name) in names.iter().enumerate() {
        let comma = if at + 1 < names.len() { "," } else { "" };
        let part = format!(" {name}{comma}");
        match lines.last_mut() {
            Some(line) if line.len() + part.len() <= LIST_WIDTH => line.push_str(&part),
            _ => lines.push(format!(" {part}")),
        }
    }
    if names.is_empty() { String::new() } else { lines.join("\n") + "\n" }
}

fn join_columns(columns: &[Vec<(Option<Tone>, String)>], printer: &Printer) -> String {
    let width = |column: &[(Option<Tone>, String)]| {
        column.iter().map(|(_, word)| word.chars().count()).max().unwrap_or(0)
    };
    let height = columns.first().map_or(0, Vec::len);
    let mut text = String::new();
    for row in 0..height {
        let mut line = String::new();
        for column in columns {
            let (tone, word) = &column[row];
            let padding = " ".repeat(width(column) - word.chars().count() + COLUMN_GAP);
            line += &tone.map_or_else(|| word.clone(), |tone| printer.tone(tone, word));
            line += &padding;
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Which backends are not here, what the contract promises and one does not keep, and where more is to be read.
fn format_summary_footer(measured: &[Capabilities]) -> String {
    let absent = measured.iter().filter(|one| one.unavailable.is_some());
    let absent: Vec<_> = absent.map(|one| one.backend.to_string()).collect();
    let gaps = measured.iter().filter(|one| !one.gaps.is_empty()).map(|one| {
        let clauses: BTreeSet<_> = one.gaps.iter().map(|gap| gap.clause.as_str()).collect();
        let clauses: Vec<_> = clauses.into_iter().collect();
        format!("{} ({})", one.backend, clauses.join(", "))
    });
    let gaps: Vec<_> = gaps.collect();
    let mut said = Vec::new();
    if !absent.is_empty() {
        said.push(format!("not available: {}", absent.join(", ")));
    }
    if !gaps.is_empty() {
        said.push(format!("gaps: {}", gaps.join(", ")));
    }
    said.push("how, why not and the remedy: stockade detect NAME".to_owned());
    said.join("; ") + "\n"
}

fn format_backend_section(capabilities: &Capabilities, printer: &Printer) -> String {
    let name = printer.tone(Tone::Head, capabilities.backend.as_str());
    if let Some((reason, remedy)) = &capabilities.unavailable {
        let state = printer.tone(Tone::Bad, "not available");
        return format!("{name}: {state}: {reason}\n  remedy: {remedy}\n");
    }
    let state = printer.tone(Tone::Good, "available");
    let reserved = match &capabilities.only_by_name {
        Some(reason) => format!(", used only when named: {reason}"),
        None => String::new(),
    };
    let head = format!("{name}: {state}, boundary {}{reserved}\n\n", capabilities.boundary);
    let mut table = Table::new(["FEATURE", "", "HOW"]);
    for (feature, support) in capabilities.iter() {
        let (word, how) = build_support_row(support);
        table.row([Cell::plain(feature.name()), word, Cell::lines(how)]);
    }
    head + &table.render(printer) + &format_contract_gaps(capabilities, printer)
}

/// What the contract promises and this backend does not keep here.
fn format_contract_gaps(capabilities: &Capabilities, printer: &Printer) -> String {
    if capabilities.gaps.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["GAP", "WHAT"]);
    for gap in &capabilities.gaps {
        let lines = vec![gap.what.clone(), format!("remedy: {}", gap.remedy)];
        table.row([Cell::toned(Tone::Fair, &gap.clause), Cell::lines(lines)]);
    }
    format!("\n{}", table.render(printer))
}

/// How far it goes, and by what or why not.
fn build_support_row(support: Support) -> (Cell, Vec<String>) {
    match support {
        Support::Full { by } => (Cell::toned(Tone::Good, "yes"), vec![by]),
        Support::Partial { by, gap, remedy } => (
            Cell::toned(Tone::Fair, "partly"),
            vec![by, format!("gap: {gap}"), format!("remedy: {remedy}")],
        ),
        Support::Missing { reason, remedy } => {
            (Cell::toned(Tone::Bad, "no"), vec![reason, format!("remedy: {remedy}")])
        }
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::{BackendName, Boundary};

    use super::*;

    #[test]
    fn a_host_without_any_backend_is_told_why_and_what_helps() {
        let absent = |name| {
            let name = BackendName::literal(name);
            Capabilities::unavailable(name, Boundary::SharedKernel, "no namespaces", "allow them")
        };
        let text = format_summary(&[absent("native"), absent("landlock")], &Printer::new(false));
        assert_eq!(text.matches("no namespaces\n  remedy: allow them\n").count(), 2, "{text}");
        assert!(!text.contains("all have"), "{text}");
    }
}
