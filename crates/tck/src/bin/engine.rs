//! What the kit's own tests need as a process of its own: an engine to be killed, for each backend they
//! judge; and the kit itself, for places where there is nothing but this program.

use std::io::Write;
use std::sync::Arc;

use stockade_backends::docker::{self, Docker};
use stockade_backends::gvisor::Gvisor;
use stockade_backends::landlock::Landlock;
use stockade_backends::microvm::{self, Microvm};
use stockade_backends::native::Native;
use stockade_backends::ssh::{Host, Ssh};
use stockade_backends::wasm::{self, Settings, Wasm, Worker};
use stockade_core::{LimitKind, Support};
use stockade_tck::control::Control;
use stockade_tck::simulated::Simulated;
use stockade_tck::{
    EngineFailure, OnHost, Options, Subject, churn_engine, hostile, run, serve_engine,
};

/// The variable that names the configuration of `ssh` for the subject of that name.
const SSH_CONFIG: &str = "STOCKADE_TCK_SSH_CONFIG";

/// The variables that name the root and the store of machines for the subject of that name.
const MICROVM_ROOT: &str = "STOCKADE_TCK_MICROVM_ROOT";
const MICROVM_CACHE: &str = "STOCKADE_TCK_MICROVM_CACHE";

fn parse_subject() -> Result<Arc<dyn Subject>, EngineFailure> {
    match std::env::args().nth(1).as_deref() {
        Some("mock") => Ok(Arc::new(Simulated::default())),
        Some("control") => Ok(Arc::new(Control::default())),
        Some("gvisor") => Ok(Arc::new(OnHost::new(Arc::new(Gvisor::new())))),
        Some("landlock") => {
            Ok(Arc::new(OnHost::new(Arc::new(Landlock::new())).without_namespaces()))
        }
        Some("wasm") => OnHost::of_wasm(Arc::new(Wasm::default()))
            .map(|subject| Arc::new(subject) as Arc<dyn Subject>)
            .map_err(|stop| format!("{stop:?}").into()),
        Some("wasm-isolated") => {
            let worker = Worker {
                program: std::env::current_exe()?,
                role: vec![WASM_WORKER_ROLE.to_owned()],
            };
            OnHost::of_wasm(Arc::new(Wasm::new(Settings::default().isolated(worker))))
                .map(|subject| Arc::new(subject) as Arc<dyn Subject>)
                .map_err(|stop| format!("{stop:?}").into())
        }
        Some("microvm") => Ok(Arc::new(OnHost::new(Arc::new(Microvm::new(microvm::Options {
            root: std::env::var_os(MICROVM_ROOT).map(Into::into),
            cache: std::env::var_os(MICROVM_CACHE).map(Into::into),
            prepare: true,
            ..microvm::Options::default()
        }))))),
        Some("native") => Ok(Arc::new(OnHost::new(Arc::new(Native::new())))),
        Some("ssh") => Ok(Arc::new(OnHost::new(Arc::new(Ssh::new(vec![read_ssh_host()?]))))),
        Some(other) if other.starts_with("docker:") => {
            let place = other.strip_prefix("docker:").unwrap_or_default();
            let (runtime, socket) = match place.split_once('@') {
                Some((runtime, socket)) => (Some(runtime.to_owned()), socket),
                None => (None, place),
            };
            let options = docker::Options { socket: Some(socket.into()), runtime };
            Ok(Arc::new(OnHost::new(Arc::new(Docker::new(options, Arc::new(|_| {}))))))
        }
        _ => Err("name a subject: mock, control, gvisor, landlock, microvm, native, ssh, wasm, \
                  wasm-isolated, docker:SOCKET or docker:RUNTIME@SOCKET"
            .into()),
    }
}

/// The host `far` of that configuration.
fn read_ssh_host() -> Result<Host, EngineFailure> {
    let config = std::env::var_os(SSH_CONFIG).ok_or(format!("{SSH_CONFIG} is not set"))?;
    let (name, options) = ("far".into(), Vec::new());
    Ok(Host { name, config: Some(config.into()), options, capacity: None })
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
    let options = Options { only: only.clone(), jobs: 1 };
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
