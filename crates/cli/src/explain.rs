//! `stockade explain`: which backend a command would get and why not the others. Runs nothing.

use clap::Args;
use serde::Serialize;
use stockade_core::{Capabilities, Enforcement, Feature, Network, Result, Support, admit};
use stockade_engine::{Choice, Selection};

use crate::args::SpecArgs;
use crate::command::CommandArgs;
use crate::detect::MEASURING;
use crate::printer::{OWN_ERROR, Printer, Tone};
use crate::registry;
use crate::streams::Attachment;
use crate::table::{Cell, Table};
use crate::wasm;

/// Stands for the command where none is given.
const ANY_PROGRAM: &str = "true";

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
    /// Absent where no backend is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkChoice>,
    limits: Vec<Enforcement>,
}

/// What could be reached, and why that.
#[derive(Debug, Serialize)]
struct NetworkChoice {
    policy: Network,
    why: String,
}

/// Shows the choice; ends as `run` would if nobody can do it.
pub async fn explain(mut args: ExplainArgs, printer: &Printer) -> Result<i32> {
    let wanted = args.spec.wanted()?;
    let settings = wanted.settings(printer)?.settings;
    let mut spec = args.spec.spec(&wanted, &settings)?;
    if args.command.is_empty() {
        args.command.program.push(ANY_PROGRAM.into());
    }
    let mut command = args.command.command(Attachment::of_streams(printer.is_json()))?;
    CommandArgs::adjust(&command, &mut spec);
    wasm::recognise(&mut spec, &mut command)?;
    let engine = registry::engine(&settings, &spec.backend).await?;
    let selection = printer.patiently(MEASURING, engine.explain(&spec)).await;
    let taken = match &selection.chosen {
        Some(chosen) => engine.detect_one(chosen).await,
        None => None,
    };
    engine.close().await?;
    let admitted = taken.and_then(|taken| Some((admit(&spec, &taken).ok()?, taken)));
    let network = admitted.as_ref().map(|(admitted, taken)| {
        let policy = admitted.spec().network.clone();
        NetworkChoice { why: why_network(&spec.network, taken), policy }
    });
    let limits = admitted.map(|(admitted, _)| admitted.enforcement().to_vec()).unwrap_or_default();
    let explanation = Explanation { selection, network, limits };
    if printer.is_json() {
        printer.json(&explanation);
    } else {
        printer.data(&explanation.text(printer));
    }
    Ok(if explanation.selection.chosen.is_some() { 0 } else { OWN_ERROR })
}

fn why_network(asked: &Network, taken: &Capabilities) -> String {
    if *asked != Network::Auto {
        return "asked for".into();
    }
    match taken.support(Feature::LoopbackNetwork) {
        Support::Full { .. } => "the default: nothing leaves the sandbox".into(),
        Support::Partial { gap: reason, .. } | Support::Missing { reason, .. } => {
            format!("{} has no loopback of its own: {reason}", taken.backend)
        }
    }
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
        if let Some(NetworkChoice { policy, why }) = &self.network {
            text += &format!("\nnetwork: {} ({why})\n", policy_name(policy));
        }
        if !self.limits.is_empty() {
            text.push('\n');
            text += &limits(&self.limits).render(printer);
        }
        text
    }
}

fn policy_name(policy: &Network) -> String {
    match policy {
        Network::Auto | Network::None => "none".into(),
        Network::Loopback => "loopback".into(),
        Network::Egress(rules) => {
            rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
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
