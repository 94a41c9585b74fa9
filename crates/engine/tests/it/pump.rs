//! 1 GiB of output through the engine, with one reader who follows and one who does not read at all.

use std::sync::Arc;

use stockade_backends::mock::{Mock, Script, ScriptStep};
use stockade_core::*;
use stockade_engine::*;

const TOTAL_BYTES: u64 = 1 << 30;
const CHUNK_BYTES: usize = 256 << 10;

/// The highest resident size of this process so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_gibibyte_passes_a_stalled_reader_in_bounded_memory() {
    let state = tempfile::tempdir().unwrap();
    // Every piece is a fresh allocation, as it is with a real backend.
    let flood = Script(vec![ScriptStep::Flood(StreamId::Stdout, TOTAL_BYTES, CHUNK_BYTES)]);
    let mock = Mock::new().with_program("flood", flood);
    let config = EngineConfig::at(state.path().join("state"));
    let bounds = config.history;
    let engine = Engine::open(config, vec![Arc::new(mock)]).await.unwrap();
    let mut spec = SandboxSpec { backend: "mock".parse().unwrap(), ..SandboxSpec::default() };
    spec.limits.output = Some(Bytes(TOTAL_BYTES));
    let before = peak();
    let flood = Command::program(["flood"]);
    let (execution, mut fast) = engine.run_followed(spec, flood).await.unwrap();
    let mut stalled = execution.subscribe();
    let (mut seen, mut next) = (0, 0);
    while let Some(event) = fast.next().await {
        match event {
            OutputEvent::Output { seq, data, .. } => {
                assert_eq!(seq, next, "the follower sees every event");
                next += 1;
                seen += data.len() as u64;
            }
            OutputEvent::Gap { .. } => unreachable!("a follower never sees a gap"),
            OutputEvent::End(outcome) => assert!(outcome.success() && !outcome.truncated()),
        }
    }
    assert_eq!(seen, TOTAL_BYTES);
    let grown = peak() - before;
    println!("1 GiB passed; resident memory grew by {} KiB at its peak", grown >> 10);
    assert!(grown < 2 * bounds.bytes as u64, "{grown} bytes");
    let Some(OutputEvent::Gap { bytes, .. }) = stalled.next().await else {
        unreachable!("a reader who stalled finds a gap");
    };
    assert_eq!(bytes, TOTAL_BYTES - bounds.bytes as u64);
}
