//! `stockade explain`: which backend a command would get and why not the others. Runs nothing.

use clap::Args;
use serde::Serialize;
use stockade::images::Images;
use stockade_backends::landlock;
use stockade_core::{
    Capabilities, Enforcement, Feature, Image, ImageName, Network, OBSERVE_WARNING, Result,
    SandboxSpec, Support, WORKSPACE_ROOT, Workspace, WorkspaceAt, admit,
};
use stockade_engine::{Choice, Selection};

use super::detect::MEASURING_STATUS;
use crate::args::command::CommandArgs;
use crate::args::{SpecArgs, wasm_module};
use crate::config::Settings;
use crate::project_cache::PlannedCache;
use crate::registry;
use crate::terminal::printer::{OWN_ERROR, Printer, Tone, on_one_line};
use crate::terminal::streams::Attachment;
use crate::terminal::table::{Cell, Table};
use crate::toolchains::{FoundToolchain, Packages};
use crate::workspace::Configured;

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
    toolchains: Vec<FoundToolchain>,
    /// Absent where none is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<PlannedCache>,
    workspace: WorkspacePath,
    /// Absent where no image is named, or no backend is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<NamedImage>,
}

/// Where the image that is named would come from.
#[derive(Debug, Serialize)]
struct NamedImage {
    name: ImageName,
    by: String,
    /// Its digest, where this user's store has it already.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<String>,
}

/// Where the workspace would appear.
#[derive(Debug, Serialize)]
struct WorkspacePath {
    path: String,
    /// Why not at its own path.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What could be reached, and why that.
#[derive(Debug, Serialize)]
struct NetworkChoice {
    policy: Network,
    why: String,
}

/// Shows the choice; ends as `run` would if no backend can do it.
pub async fn explain(mut args: ExplainArgs, printer: &Printer) -> Result<i32> {
    let wanted = args.spec.wanted()?;
    let Configured { mut settings, origin } = wanted.settings(printer)?;
    settings.ask_registries(args.spec.pull);
    settings.use_daemon(args.spec.host.as_deref());
    let mut spec = args.spec.spec(&wanted, &settings)?;
    if args.command.is_empty() {
        args.command.program.push(ANY_PROGRAM.into());
    }
    let mut command = args.command.command(Attachment::of_streams(printer.is_json()))?;
    CommandArgs::adjust(&command, &mut spec);
    wasm_module::recognise_module(&mut spec, &mut command)?;
    let cache = args.spec.plan_cache((&wanted, &origin), &mut spec, &settings)?;
    if let Some(cache) = &cache {
        settings.show_cache(cache.path());
    }
    let toolchains = args.spec.add_toolchains(Packages::InHome, &mut spec, &settings)?;
    let engine = registry::engine(&settings, &spec.backend).await?;
    let selection = printer.patiently(MEASURING_STATUS, engine.explain(&spec)).await;
    let taken = match &selection.chosen {
        Some(chosen) => engine.detect_one(chosen).await,
        None => None,
    };
    let provided = engine.provides_images(&spec).await == Some(true);
    engine.close().await?;
    let image = taken.as_ref().and_then(|taken| named_image(&spec, taken, provided, &settings));
    let workspace = workspace_path(&spec, taken.as_ref());
    let admitted = taken.and_then(|taken| Some((admit(&spec, &taken).ok()?, taken)));
    let network = admitted.as_ref().map(|(admitted, taken)| {
        let policy = admitted.spec().network.clone();
        NetworkChoice { why: why_network(&spec.network, taken), policy }
    });
    let limits = admitted.map(|(admitted, _)| admitted.enforcement().to_vec()).unwrap_or_default();
    let explanation =
        Explanation { selection, network, limits, toolchains, cache, workspace, image };
    if printer.is_json() {
        printer.json(&explanation);
    } else {
        printer.data(&explanation.render_text(printer));
    }
    Ok(if explanation.selection.chosen.is_some() { 0 } else { OWN_ERROR })
}

/// Where an image by name would come from. Nothing is pulled.
fn named_image(
    spec: &SandboxSpec,
    taken: &Capabilities,
    provided: bool,
    settings: &Settings,
) -> Option<NamedImage> {
    let Image::Named(name) = &spec.image else { return None };
    let Support::Full { by } = taken.support(Feature::NamedImage) else { return None };
    let find = || Images::new(settings).ok()?.store().ok()?.find(name.as_str()).ok()?;
    let stored = provided.then(find).flatten().map(|image| image.manifest.to_string());
    Some(NamedImage { name: name.clone(), by, stored })
}

fn why_network(asked: &Network, taken: &Capabilities) -> String {
    if asked.observes() {
        return format!("asked for; {OBSERVE_WARNING}");
    }
    if asked.asks() {
        return "asked for; a person is asked about what no rule names".into();
    }
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
    fn render_text(&self, printer: &Printer) -> String {
        let mut backends = Table::new(["BACKEND", "BOUNDARY", "CHOSEN", "WHY"]);
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
                Cell::lines(explain_choice(choice)),
            ]);
        }
        let mut text = backends.render(printer);
        if let Some(NetworkChoice { policy, why }) = &self.network {
            text += &format!("\nnetwork: {} ({why})\n", policy_name(policy));
        }
        if !self.limits.is_empty() {
            text.push('\n');
            text += &build_limits_table(&self.limits).render(printer);
        }
        let WorkspacePath { path, reason } = &self.workspace;
        let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        text += &format!("\nWORKSPACE  {}\n", on_one_line(&format!("{path}{reason}")));
        if let Some(NamedImage { name, by, stored }) = &self.image {
            let stored = stored.as_ref().map(|digest| format!("; stored as {digest}"));
            let image = format!("{name}: {by}{}", stored.unwrap_or_default());
            text += &format!("\nIMAGE  {}\n", on_one_line(&image));
        }
        if let Some(cache) = &self.cache {
            let (name, path, limit) = (cache.name(), cache.path().display(), cache.limit());
            let cache = format!("{name}: {path}, at most {limit}");
            text += &format!("\nCACHE  {}\n", on_one_line(&cache));
        }
        if !self.toolchains.is_empty() {
            text.push('\n');
            text += &build_toolchain_table(&self.toolchains).render(printer);
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

fn explain_choice(choice: &Choice) -> Vec<String> {
    if choice.refusals.is_empty() {
        return vec![choice.why.clone()];
    }
    let told = choice.refusals.iter().flat_map(|refusal| {
        let what = refusal.feature.map_or(refusal.field.as_str(), |feature| feature.name());
        [format!("{what}: {}", refusal.reason), format!("remedy: {}", refusal.remedy)]
    });
    told.collect()
}

/// Where the workspace appears on the backend that is taken.
fn workspace_path(spec: &SandboxSpec, taken: Option<&Capabilities>) -> WorkspacePath {
    let usual = |reason: Option<String>| WorkspacePath { path: WORKSPACE_ROOT.into(), reason };
    let own = match &spec.workspace {
        Workspace::Local(dir) => dir.to_string(),
        Workspace::Overlay(layers) => layers.lower.to_string(),
        Workspace::Ephemeral => spec.workspace_dir().to_owned(),
    };
    let Some(at) = &spec.workspace_at else {
        let at = own.parse().ok().map(|path| WorkspaceAt { path, required: false });
        let problem = at.and_then(|at| at.problem()).map(|problem| format!("`{own}` {problem}"));
        return usual(problem.filter(|_| spec.image == Image::Host));
    };
    let Some(taken) = taken else { return usual(None) };
    let Support::Missing { reason, .. } = taken.support(Feature::WorkspacePath) else {
        return WorkspacePath { path: at.path.to_string(), reason: None };
    };
    match taken.backend == landlock::NAME {
        true => WorkspacePath { path: own, reason: None },
        false => usual(Some(reason)),
    }
}

fn build_toolchain_table(all: &[FoundToolchain]) -> Table<3> {
    let mut table = Table::new(["TOOLCHAIN", "SHOWN", "NOT SHOWN"]);
    for found in all {
        let left_out = found.left_out.iter();
        let left_out = left_out.map(|out| format!("{}: {}", out.path.display(), out.reason));
        let mut shown = match found.shown.is_empty() {
            true => vec!["with the host's system directories".to_owned()],
            false => found.shown.clone(),
        };
        shown.extend(found.writable.iter().map(|path| format!("{path} (writable)")));
        table.row([Cell::plain(found.name), Cell::lines(shown), Cell::lines(left_out.collect())]);
    }
    table
}

fn build_limits_table(all: &[Enforcement]) -> Table<4> {
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
