//! The native backend beside its peers: all contestants take turns, so that a noisy machine is noisy
//! for each of them. What is not installed is said, not left out.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_backends::native::Native;
use stockade_core::{Backend, Command, Ending, HostPath, SandboxId, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::floor;
use crate::peers::{Peer, peers};
use crate::report::BenchReport;
use crate::resources::ResourceUsage;
use crate::table::Row;

const ROUNDS: usize = 200;
/// Sandboxes that are created at the same time.
pub const AT_ONCE: usize = 100;
/// Peers that pages compare the others with.
const BASELINE_PEERS: [&str; 2] = ["stockade run", "bwrap"];

/// Where everything is: a static program that does nothing, in a directory that is the workspace.
pub struct ProgramDir {
    pub dir: tempfile::TempDir,
    pub program: PathBuf,
}

impl ProgramDir {
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let source = dir.path().join("true.c");
        let program = dir.path().join("true");
        fs::write(&source, "int main(void) { return 0; }\n")?;
        let built = Process::new("cc")
            .args(["-static", "-O2", "-s", "-o"])
            .arg(&program)
            .arg(&source)
            .status()?;
        if !built.success() {
            return Err(
                "cc cannot build a static program (remedy: install gcc and libc6-dev)".into()
            );
        }
        Ok(Self { dir, program })
    }

    pub fn workspace(&self) -> &Path {
        self.dir.path()
    }
}

/// An engine with one backend, and a sandbox that stays.
pub struct BenchEngine {
    pub engine: Engine,
    pub spec: SandboxSpec,
    live: SandboxId,
    _state: tempfile::TempDir,
}

impl BenchEngine {
    pub async fn new(
        place: &ProgramDir,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, Box<dyn Error>> {
        let state = tempfile::tempdir()?;
        let config = EngineConfig::at(state.path().join("state"));
        let engine = Engine::open(config, vec![backend]).await?;
        let workspace = Workspace::Local(HostPath::try_from(place.workspace().to_owned())?);
        let spec = SandboxSpec { workspace, ..SandboxSpec::default() };
        let live = engine.create(spec.clone()).await?;
        Ok(Self { engine, spec, live, _state: state })
    }

    pub async fn cold(&self) -> Result<(), Box<dyn Error>> {
        let execution = self.engine.run(self.spec.clone(), Command::program(["./true"])).await?;
        expect_success(execution.outcome().await.ending)
    }

    pub async fn exec(&self) -> Result<(), Box<dyn Error>> {
        let execution = self.engine.exec(&self.live, Command::program(["./true"])).await?;
        expect_success(execution.outcome().await.ending)
    }
}

pub fn expect_success(ending: Ending) -> Result<(), Box<dyn Error>> {
    if ending == Ending::Exited(0) { Ok(()) } else { Err(format!("ended with {ending:?}").into()) }
}

/// Prints medians, 99th percentiles and ratios, and what a hundred sandboxes at once take.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let place = ProgramDir::new()?;
    let program = fs::File::open(&place.program)?;
    let stockade = runtime.block_on(BenchEngine::new(&place, Arc::new(Native::new())))?;
    let (present, absent): (Vec<Peer>, Vec<String>) = peers(&place);
    let mut rows = vec![
        Row::new("floor").into_baseline(),
        Row::new("plain spawn").into_baseline(),
        Row::new("library cold").into_baseline(),
        Row::new("library exec"),
    ];
    rows.extend(present.iter().map(|peer| match BASELINE_PEERS.contains(&peer.name) {
        true => Row::new(peer.name).into_baseline(),
        false => Row::new(peer.name),
    }));
    for _ in 0..ROUNDS {
        rows[0].add(timed(|| floor::once(&program).map_err(Into::into))?);
        rows[1].add(timed(|| spawn(&mut Process::new(&place.program)))?);
        rows[2].add(timed_async(&runtime, stockade.cold())?);
        rows[3].add(timed_async(&runtime, stockade.exec())?);
        for (peer, row) in present.iter().zip(&mut rows[4..]) {
            if row.len() < peer.rounds {
                row.add(timed(|| spawn(&mut peer.command()))?);
            }
        }
    }
    report.title(format!(
        "native: a static program that does nothing, {ROUNDS} rounds, taking turns"
    ));
    report.timings(&mut rows);
    absent.iter().for_each(|reason| report.note(format!("not measured: {reason}")));
    runtime.block_on(many_at_once(report, &stockade))?;
    runtime.block_on(stockade.engine.close())?;
    Ok(())
}

pub fn timed(
    work: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

pub fn timed_async(
    runtime: &tokio::runtime::Runtime,
    work: impl Future<Output = Result<(), Box<dyn Error>>>,
) -> Result<Duration, Box<dyn Error>> {
    timed(|| runtime.block_on(work))
}

pub fn spawn(command: &mut Process) -> Result<(), Box<dyn Error>> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

async fn many_at_once(
    report: &mut BenchReport,
    stockade: &BenchEngine,
) -> Result<(), Box<dyn Error>> {
    let before = ResourceUsage::read();
    let start = Instant::now();
    let creating: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (engine, spec) = (stockade.engine.clone(), stockade.spec.clone());
            tokio::spawn(async move { engine.create(spec).await })
        })
        .collect();
    let mut ids = Vec::new();
    for created in creating {
        ids.push(created.await??);
    }
    let live = start.elapsed();
    let each = ResourceUsage::read().each_since(&before, AT_ONCE).resident_kib;
    report.note(format!(
        "{AT_ONCE} at once: all live in {:.0} ms, {each} KiB resident each",
        live.as_secs_f64() * 1e3
    ));
    for id in ids {
        stockade.engine.destroy(&id).await?;
    }
    Ok(())
}
