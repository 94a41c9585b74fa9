//! Output from the mock through the engine: one reader who follows, one who has stalled.

use std::sync::Arc;
use std::time::Instant;

use stockade_backends::mock::{Mock, Script, ScriptStep};
use stockade_core::{Bytes, Command, SandboxSpec, StreamId};
use stockade_engine::{Engine, EngineConfig, OutputEvent};

use crate::Measured;
use crate::report::BenchReport;
use crate::table::{Column, Figures};

const TOTAL_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 7;

const COLUMNS: [Column; 3] = [
    Column::new("engine GiB/s", 12, 2),
    Column::new("copy GiB/s", 12, 2),
    Column::new("ratio", 6, 2),
];

/// Prints the throughput for several sizes of piece, and the same copy done by hand as the peer.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    report.title("pump: 1 GiB from the mock to a follower, a second reader stalled, one thread");
    let mut figures = Figures::new("piece", &COLUMNS);
    for piece in [16 << 10, 64 << 10, 256 << 10] {
        let mut through = Vec::new();
        let mut copied = Vec::new();
        for _ in 0..ROUNDS {
            through.push(runtime.block_on(through_the_engine(piece))?);
            copied.push(by_hand(piece));
        }
        let (engine, copy) = (median(through), median(copied));
        figures.add(Bytes(piece as u64).to_string(), vec![engine, copy, engine / copy]);
    }
    report.figures(figures);
    report.note(format!("peak resident memory: {} KiB", peak_kib()?));
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn through_the_engine(piece: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let state = tempfile::tempdir()?;
    let flood = Script(vec![ScriptStep::Flood(StreamId::Stdout, TOTAL_BYTES, piece)]);
    let mock = Mock::new().with_program("flood", flood);
    let engine =
        Engine::open(EngineConfig::at(state.path().join("state")), vec![Arc::new(mock)]).await?;
    let mut spec = SandboxSpec { backend: "mock".parse()?, ..SandboxSpec::default() };
    spec.limits.output = Some(Bytes(TOTAL_BYTES));
    let flood = Command::program(["flood"]);
    let start = Instant::now();
    let (execution, mut follower) = engine.run_followed(spec, flood).await?;
    let _stalled = execution.subscribe();
    let mut seen = 0;
    while let Some(event) = follower.next().await {
        if let OutputEvent::Output { data, .. } = event {
            seen += data.len() as u64;
        }
    }
    if seen != TOTAL_BYTES {
        return Err(format!("saw {seen} of {TOTAL_BYTES} bytes").into());
    }
    Ok(1.0 / start.elapsed().as_secs_f64())
}

/// The floor: the one copy into a fresh allocation that the mock makes too.
fn by_hand(piece: usize) -> f64 {
    let block = vec![b'.'; piece];
    let start = Instant::now();
    for _ in 0..TOTAL_BYTES / piece as u64 {
        std::hint::black_box(bytes::Bytes::copy_from_slice(std::hint::black_box(&block)));
    }
    1.0 / start.elapsed().as_secs_f64()
}

fn peak_kib() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
