//! An engine process to be killed: opens an engine, builds a sandbox, starts something in it that does
//! not end by itself, says which sandbox that is, and waits; or builds one after the other.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stockade_core::{Bytes, Command, Feature, HostPath, SandboxId, SandboxSpec, Span, Workspace};
use stockade_engine::{Engine, EngineConfig, HistoryBounds, OutputEvent};

use crate::kit::carry_probe_in;
use crate::{ENGINE_FLOOD, ENGINE_STATE, ENGINE_WORKSPACE, MARK_VARIABLE, Subject};

/// Output that is kept of a program: little, so that what else is kept can be seen.
const MAX_HISTORY_BYTES: usize = 1 << 20;

/// Why it could not get as far as waiting.
pub type EngineFailure = Box<dyn std::error::Error + Send + Sync>;

fn path_from_env(name: &str) -> Result<PathBuf, EngineFailure> {
    Ok(std::env::var_os(name).ok_or(format!("{name} is not set"))?.into())
}

/// An engine as the variables ask for it, and a spec with the mark in it.
async fn open_engine(subject: &dyn Subject) -> Result<(Engine, SandboxSpec), EngineFailure> {
    let backend = subject.backend();
    let mut spec = subject.spec();
    if backend.probe().await.has(Feature::LocalWorkspace) {
        spec.workspace = Workspace::Local(HostPath::try_from(path_from_env(ENGINE_WORKSPACE)?)?);
    }
    // So that what is left behind can be told apart from everybody else's.
    spec.env.insert(MARK_VARIABLE.parse()?, std::env::var(MARK_VARIABLE).unwrap_or_default());
    let config = EngineConfig {
        history: HistoryBounds { bytes: MAX_HISTORY_BYTES, ..HistoryBounds::default() },
        ..EngineConfig::at(path_from_env(ENGINE_STATE)?)
    };
    Ok((Engine::open(config, vec![backend]).await?, spec))
}

/// Builds sandboxes, runs something in each and takes them down, on and on, and says a line when it
/// begins: wherever it is killed, it is in the middle of something. Ends by itself after a minute, in
/// case the process that should kill it is gone.
pub async fn churn_engine(subject: &dyn Subject) -> Result<(), EngineFailure> {
    let (engine, spec) = open_engine(subject).await?;
    writeln!(std::io::stdout(), "begun")?;
    std::io::stdout().flush()?;
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        let id = engine.create(spec.clone()).await?;
        let stays = engine.exec(&id, Command::program(["./probe", "sleep", "60000"])).await?;
        engine.exec(&id, Command::program(["./probe", "exit", "0"])).await?.outcome().await;
        engine.destroy(&id).await?;
        drop(stays);
        engine.run(spec.clone(), Command::program(["./probe", "exit", "0"])).await?.outcome().await;
    }
    Ok(())
}

/// Does what [`Subject::engine_process`] describes; returns only if it fails.
pub async fn serve_engine(subject: &dyn Subject) -> Result<(), EngineFailure> {
    let (engine, mut spec) = open_engine(subject).await?;
    let flood = std::env::var(ENGINE_FLOOD).ok();
    if flood.is_some() {
        spec.limits.output = Some(Bytes(u64::MAX));
        // Judged by its memory, not by its pace.
        spec.limits.wall_time = Some(Span::secs(600));
    }
    let shown = spec.workspace != Workspace::Ephemeral;
    let id = engine.create(spec).await?;
    if !shown {
        carry_probe_in(engine.sandbox(&id)?.as_ref(), subject.probe()).await?;
    }
    if let Some(bytes) = flood {
        let grown = measure_flood(&engine, &id, &bytes).await?;
        writeln!(std::io::stdout(), "{grown}")?;
        std::io::stdout().flush()?;
        return std::future::pending().await;
    }
    let command = Command::program(["./probe", "ignore-signals-then-sleep", "60000"]);
    let (_execution, mut follower) = engine.exec_followed(&id, command).await?;
    if let Some(OutputEvent::Output { .. }) = follower.next().await {
        writeln!(std::io::stdout(), "{id}")?;
        std::io::stdout().flush()?;
    }
    std::future::pending().await
}

/// By how many KiB the peak of this process's resident memory grows while a program writes that nobody reads.
async fn measure_flood(engine: &Engine, id: &SandboxId, bytes: &str) -> Result<u64, EngineFailure> {
    // What the first output of any program takes is taken already.
    run_flood(engine, id, "1000000").await?;
    let before = read_peak_kib()?;
    run_flood(engine, id, bytes).await?;
    Ok(read_peak_kib()?.saturating_sub(before))
}

async fn run_flood(engine: &Engine, id: &SandboxId, bytes: &str) -> Result<(), EngineFailure> {
    let flood = engine.exec(id, Command::program(["./probe", "flood", "stdout", bytes])).await?;
    let outcome = flood.outcome().await;
    let whole = bytes.parse() == Ok(outcome.stdout.bytes);
    if whole {
        Ok(())
    } else {
        Err(format!("the program did not write all of it: {outcome:?}").into())
    }
}

fn read_peak_kib() -> Result<u64, EngineFailure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(peak.ok_or("the kernel tells no peak of resident memory")?.trim().parse()?)
}
