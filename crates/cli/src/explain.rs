//! `stockade explain`: which backend a command would get and why not the others. Runs nothing.

use clap::Args;
use serde::Serialize;
use stockade_core::{Enforcement, Result, admit};
use stockade_engine::{Choice, Selection};

use crate::args::SpecArgs;
use crate::command::CommandArgs;
use crate::detect::MEASURING;
use crate::printer::{OWN_ERROR, Printer, Tone};
use crate::registry;
use crate::table::{Cell, Table};
use crate::wasm;

/// The flags of `run`.
#[derive(Debug, Args)]
#[command(override_usage = "stockade explain [OPTIONS] [-- CMD [ARGS]...]")]
pub struct ExplainArgs {
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    command: CommandArgs,
}

/// The choice, and how the limits would hold.
#[derive(Debug, Serialize)]
struct Explanation {
    #[serde(flatten)]
    selection: Selection,
    limits: Vec<Enforcement>,
}

/// Shows the choice; ends as `run` would if nobody can do it.
pub async fn explain(args: ExplainArgs, printer: &Printer) -> Result<i32> {
    let wanted = args.spec.wanted()?;
    let settings = wanted.settings(printer)?.settings;
    let mut spec = args.spec.spec(&wanted, &settings)?;
    args.command.adjust(&mut spec);
    if !args.command.is_empty() {
        wasm::recognise(&mut spec, &mut args.command.command()?)?;
    }
    let engine = registry::engine(&settings, &spec.backend).await?;
    let selection = printer.patiently(MEASURING, engine.explain(&spec)).await;
    let taken = match &selection.chosen {
        Some(chosen) => engine.detect_one(chosen).await,
        None => None,
    };
    engine.close().await?;
    let admitted = taken.and_then(|capabilities| admit(&spec, &capabilities).ok());
    let limits = admitted.map(|admitted| admitted.enforcement().to_vec()).unwrap_or_default();
    let explanation = Explanation { selection, limits };
    if printer.is_json() {
        printer.json(&explanation);
    } else {
        printer.data(&explanation.text(printer));
    }
    Ok(if explanation.selection.chosen.is_some() { 0 } else { OWN_ERROR })
}

impl Explanation {
    fn text(&self, printer: &Printer) -> String {
        let mut backends = Table::new(["BACKEND", "BOUNDARY", "TAKEN", "WHY"]);
        for choice in &self.selection.choices {
            let taken = if choice.taken {
                Cell::toned(Tone::Good, "yes")
            } else {
                Cell::toned(Tone::Bad, "no")
            };
            backends.row([
                Cell::plain(choice.backend.as_str()),
                Cell::plain(choice.boundary.name()),
                taken,
                Cell::lines(why(choice)),
            ]);
        }
        let mut text = backends.render(printer);
        if !self.limits.is_empty() {
            text.push('\n');
            text += &limits(&self.limits).render(printer);
        }
        text
    }
}

fn why(choice: &Choice) -> Vec<String> {
    if choice.refusals.is_empty() {
        return vec![choice.why.clone()];
    }
    let told = choice.refusals.iter().flat_map(|refusal| {
        let what = refusal.feature.map_or(refusal.field.as_str(), |feature| feature.name());
        [format!("{what}: {}", refusal.reason), format!("remedy: {}", refusal.remedy)]
    });
    told.collect()
}

fn limits(all: &[Enforcement]) -> Table<4> {
    let mut table = Table::new(["LIMIT", "VALUE", "", "HOW"]);
    for enforcement in all {
        let name = Cell::plain(enforcement.limit().name());
        table.row(match enforcement {
            Enforcement::Fully { value, by, .. } => {
                [name, Cell::plain(value), Cell::toned(Tone::Good, "holds"), Cell::plain(by)]
            }
            Enforcement::Partly { value, by, gap, .. } => {
                let how = vec![by.clone(), format!("gap: {gap}")];
                [name, Cell::plain(value), Cell::toned(Tone::Fair, "partly"), Cell::lines(how)]
            }
            Enforcement::NotAtAll { reason, .. } => {
                [name, Cell::plain("-"), Cell::toned(Tone::Bad, "none"), Cell::plain(reason)]
            }
        });
    }
    table
}
