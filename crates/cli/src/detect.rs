//! `stockade detect`: what each backend was measured to have on this host.

use clap::Args;
use stockade_core::{BackendChoice, Capabilities, Result, Support};

use crate::config::Settings;
use crate::printer::{Printer, Tone};
use crate::registry;
use crate::table::{Cell, Table};

/// What takes its time.
pub const MEASURING: &str = "measuring what each backend can do";

/// What to measure.
#[derive(Debug, Args)]
pub struct DetectArgs {
    /// Only this backend.
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendChoice>,
}

/// Measures and shows; fails only if nothing could be measured.
pub async fn detect(args: &DetectArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let choice = args.backend.clone().unwrap_or_default();
    let engine = registry::engine(&settings, &choice).await?;
    let wanted = |capabilities: &Capabilities| match &choice {
        BackendChoice::Auto => true,
        BackendChoice::Named(name) => capabilities.backend == *name,
    };
    let measured: Vec<_> =
        printer.patiently(MEASURING, engine.detect()).await.into_iter().filter(wanted).collect();
    engine.close().await?;
    if printer.is_json() {
        printer.json(&measured);
    } else {
        let shown: Vec<_> = measured.iter().map(|one| section(one, printer)).collect();
        printer.data(&shown.join("\n"));
    }
    Ok(0)
}

fn section(capabilities: &Capabilities, printer: &Printer) -> String {
    let name = printer.tone(Tone::Head, capabilities.backend.as_str());
    if let Some((reason, remedy)) = &capabilities.unavailable {
        let state = printer.tone(Tone::Bad, "not available");
        return format!("{name}: {state}: {reason}\n  remedy: {remedy}\n");
    }
    let state = printer.tone(Tone::Good, "available");
    let reserved = match &capabilities.only_by_name {
        Some(reason) => format!(", taken only by its name: {reason}"),
        None => String::new(),
    };
    let head = format!("{name}: {state}, boundary {}{reserved}\n\n", capabilities.boundary);
    let mut table = Table::new(["FEATURE", "", "HOW"]);
    for (feature, support) in capabilities.iter() {
        let (word, how) = row(support);
        table.row([Cell::plain(feature.name()), word, Cell::lines(how)]);
    }
    head + &table.render(printer) + &gaps(capabilities, printer)
}

/// What the contract promises and this backend does not keep here.
fn gaps(capabilities: &Capabilities, printer: &Printer) -> String {
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
fn row(support: Support) -> (Cell, Vec<String>) {
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
