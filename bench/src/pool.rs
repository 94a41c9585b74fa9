//! A sandbox from a warm pool beside one that is made when it is asked for, both with the native
//! backend and through the library. Taking down is not counted: it comes after the work.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_backends::native::Native;
use stockade_core::{Command, HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig, Pool, PoolSpec};

use crate::Measured;
use crate::native::{ProgramDir, expect_success};
use crate::report::BenchReport;
use crate::table::Row;

const ROUNDS: usize = 200;
const WAITING_CALLERS: u32 = 16;

/// Prints what a claim takes, alone and one right after the other.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare(report))
}

async fn compare(report: &mut BenchReport) -> Measured {
    let place = ProgramDir::new()?;
    let workspace = Workspace::Local(HostPath::try_from(place.workspace().to_owned())?);
    let spec = SandboxSpec { workspace, ..SandboxSpec::default() };
    let state = tempfile::tempdir()?;
    let open = |name: &str| {
        let config = EngineConfig::at(state.path().join(name));
        Engine::open(config, vec![Arc::new(Native::new())])
    };
    let (cold, warm) = (open("cold").await?, open("warm").await?);
    let pool = PoolSpec {
        minimum: WAITING_CALLERS,
        maximum: 2 * WAITING_CALLERS,
        ..PoolSpec::of(spec.clone())
    };
    let pool = warm.open_pool(pool).await?;
    let mut rows = [
        Row::new("cold create"),
        Row::new("pool claim"),
        Row::new("cold + exec"),
        Row::new("claim + exec"),
        Row::new("16 in a row"),
    ];
    for _ in 0..ROUNDS {
        let (made, used) = once(&cold, &spec).await?;
        rows[0].add(made);
        rows[2].add(used);
        full(&pool).await;
        let (made, used) = once(&warm, &spec).await?;
        rows[1].add(made);
        rows[3].add(used);
    }
    for _ in 0..ROUNDS / 10 {
        full(&pool).await;
        for taken in crowd(&warm, &spec).await? {
            rows[4].add(taken);
        }
    }
    report.title(format!("pool: a sandbox to work in, native, {ROUNDS} rounds, taking turns"));
    report.timings(&mut rows);
    cold.close().await?;
    warm.close().await?;
    Ok(())
}

/// How long a sandbox takes, and how long until a first program in it has ended.
async fn once(engine: &Engine, spec: &SandboxSpec) -> Result<(Duration, Duration), Box<dyn Error>> {
    let start = Instant::now();
    let id = engine.create(spec.clone()).await?;
    let made = start.elapsed();
    let execution = engine.exec(&id, Command::program(["./true"])).await?;
    expect_success(execution.outcome().await.ending)?;
    let used = start.elapsed();
    engine.destroy(&id).await?;
    Ok((made, used))
}

async fn crowd(engine: &Engine, spec: &SandboxSpec) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut taken = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..WAITING_CALLERS {
        let start = Instant::now();
        ids.push(engine.create(spec.clone()).await?);
        taken.push(start.elapsed());
    }
    for id in ids {
        engine.destroy(&id).await?;
    }
    Ok(taken)
}

/// Waits until everything is ready and nothing is at work.
async fn full(pool: &Pool) {
    loop {
        let status = pool.status();
        if status.ready >= status.minimum && status.making + status.used + status.retiring == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
