//! What the kit's own tests need as a process of its own: an engine to be killed, for each backend they
//! judge; and the kit itself, for places where there is nothing but this program.

use std::io::Write;
use std::sync::Arc;

use stockade::backend::{BuildContext, Isolation, WorkerProgram};
use stockade::registry;
use stockade_backends::wasm;
use stockade_core::{LimitKind, Support};
use stockade_tck::control::Control;
use stockade_tck::simulated::Simulated;
use stockade_tck::{
    EngineFailure, KitOptions, OnHost, Subject, churn_engine, hostile, run, saboteurs, serve_engine,
};

/// What stands before the name of a saboteur.
const SABOTEUR_PREFIX: &str = "saboteur:";

/// The variable that names the configuration of `ssh` for the subject of that name.
const SSH_CONFIG: &str = "STOCKADE_TCK_SSH_CONFIG";

/// The variables that name the root and the store of machines for the subject of that name.
const MICROVM_ROOT: &str = "STOCKADE_TCK_MICROVM_ROOT";
const MICROVM_CACHE: &str = "STOCKADE_TCK_MICROVM_CACHE";

fn parse_subject() -> Result<Arc<dyn Subject>, EngineFailure> {
    let given = std::env::args().nth(1);
    match given.as_deref() {
        Some("mock") => Ok(Arc::new(Simulated::default())),
        Some(name) if name.starts_with(SABOTEUR_PREFIX) => find_saboteur(name),
        Some("control") => Ok(Arc::new(Control::default())),
        Some("wasm") => build_subject("wasm", toml::Table::new(), Isolation::Declined),
        Some("wasm-isolated") => build_subject("wasm", toml::Table::new(), Isolation::Demanded),
        Some("microvm") => build_subject("microvm", read_microvm_table(), Isolation::Usual),
        Some("ssh") => build_subject("ssh", read_ssh_table()?, Isolation::Usual),
        Some(place) if place.starts_with("docker:") => {
            let place = place.strip_prefix("docker:").unwrap_or_default();
            build_subject("docker", parse_docker_table(place), Isolation::Usual)
        }
        Some(name) => build_subject(name, toml::Table::new(), Isolation::Usual),
        None => Err("name a subject: mock, control, wasm-isolated, docker:SOCKET, \
                     docker:RUNTIME@SOCKET or a backend of the registry"
            .into()),
    }
}

fn find_saboteur(subject: &str) -> Result<Arc<dyn Subject>, EngineFailure> {
    let named = subject.strip_prefix(SABOTEUR_PREFIX).unwrap_or_default();
    let found = saboteurs::ALL_SABOTEURS.iter().find(|saboteur| saboteur.name == named);
    Ok(Arc::new(found.ok_or_else(|| format!("no saboteur is called `{named}`"))?.subject()))
}

/// A backend of the registry, with the settings that the kit's tests give it.
fn build_subject(
    name: &str,
    table: toml::Table,
    isolation: Isolation,
) -> Result<Arc<dyn Subject>, EngineFailure> {
    let role = vec![WASM_WORKER_ROLE.to_owned()];
    let worker = WorkerProgram { program: std::env::current_exe()?, role };
    let context =
        BuildContext { named: true, isolation, worker: Some(worker), ..BuildContext::default() };
    let name = name.parse()?;
    let backend = registry::build_backend(&name, table, &context)?;
    if name.as_str() == "wasm" {
        let subject = OnHost::of_wasm(backend).map_err(|stop| format!("{stop:?}"))?;
        return Ok(Arc::new(subject));
    }
    let namespaces = registry::find_factory(&name).is_none_or(|factory| factory.namespaces);
    let subject = OnHost::new(backend);
    Ok(Arc::new(if namespaces { subject } else { subject.without_namespaces() }))
}

/// `SOCKET` or `RUNTIME@SOCKET`.
fn parse_docker_table(place: &str) -> toml::Table {
    let (runtime, socket) = match place.split_once('@') {
        Some((runtime, socket)) => (Some(runtime), socket),
        None => (None, place),
    };
    let runtime = runtime.map(|runtime| ("runtime".to_owned(), runtime.into()));
    [("socket".to_owned(), socket.into())].into_iter().chain(runtime).collect()
}

/// The root and the store of machines.
fn read_microvm_table() -> toml::Table {
    let variables = [("root", MICROVM_ROOT), ("cache", MICROVM_CACHE)];
    let set = variables
        .into_iter()
        .filter_map(|(key, variable)| Some((key.to_owned(), std::env::var(variable).ok()?.into())));
    set.collect()
}

/// The host `far` of that configuration.
fn read_ssh_table() -> Result<toml::Table, EngineFailure> {
    let config = std::env::var(SSH_CONFIG).map_err(|_| format!("{SSH_CONFIG} is not set"))?;
    let host = toml::Table::from_iter([
        ("name".to_owned(), "far".into()),
        ("config".to_owned(), config.into()),
    ]);
    Ok(toml::Table::from_iter([("hosts".to_owned(), vec![host].into())]))
}

/// Judges the subject by the cases that hold one of the texts given, those of the hostile corpus
/// included, and says by what each limit is enforced.
async fn judge_subject(subject: Arc<dyn Subject>, only: Vec<String>) -> Result<(), EngineFailure> {
    let measured = subject.backend().probe().await;
    if let Some((reason, remedy)) = &measured.unavailable {
        return Err(format!("not available: {reason} ({remedy})").into());
    }
    let mut out = std::io::stdout();
    for kind in LimitKind::ALL {
        let told = match measured.support(kind.feature()) {
            Support::Full { by } => format!("in full by {by}"),
            Support::Partial { by, .. } => format!("in part by {by}"),
            Support::Missing { reason, .. } => format!("not at all: {reason}"),
        };
        writeln!(out, "{kind}: {told}")?;
    }
    let options = KitOptions { only: only.clone(), jobs: 1 };
    let reports = [run(Arc::clone(&subject), &options).await, hostile::run(subject, only).await];
    for report in &reports {
        writeln!(out, "{}", report.table())?;
    }
    match reports.iter().flat_map(|report| report.failures()).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} cases failed").into()),
    }
}

/// First argument that makes this program a worker of the wasm backend.
const WASM_WORKER_ROLE: &str = "wasm-worker";

fn main() -> Result<(), EngineFailure> {
    if std::env::args().nth(1).is_some_and(|role| role == WASM_WORKER_ROLE) {
        std::process::exit(wasm::worker(std::env::args().skip(2)));
    }
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run_requested_mode())
}

async fn run_requested_mode() -> Result<(), EngineFailure> {
    let subject = parse_subject()?;
    match std::env::args().nth(2).as_deref() {
        None => serve_engine(subject.as_ref()).await,
        Some("churn") => churn_engine(subject.as_ref()).await,
        Some("judge") => judge_subject(subject, std::env::args().skip(3).collect()).await,
        Some(other) => Err(format!("`{other}` is not a way to run: churn, judge, or none").into()),
    }
}
