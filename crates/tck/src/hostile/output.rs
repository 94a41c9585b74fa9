//! Programs that abuse their output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stockade_core::{Bytes, Ending};

use super::{build_hostile_spec, check_engine_unharmed, timed_probe_command};
use crate::case::{case, check, same};
use crate::{Case, Kit, Verdict};

pub(super) const HOSTILE_OUTPUT_CASES: &[Case] = &[
    case!(
        "ten gigabytes of output are dropped beyond the cap, and counted",
        "C-12",
        check_output_flood
    )
    .within(240),
    case!("a write to a closed output harms nobody", "C-12", after_close),
    case!("an exit is told though somebody holds the output open", "C-12", held_open),
    case!("an exit is told though somebody writes on and on", "C-12", held_and_flooded),
];

/// Output written by the flood, far beyond its limit.
const FLOOD_BYTES: u64 = 10_000_000_000;
const OUTPUT_LIMIT_BYTES: u64 = 1 << 20;
/// Memory growth allowed to the engine during a flood: its history, its buffers, and a margin.
const MAX_ENGINE_GROWTH_BYTES: u64 = 128 << 20;

async fn check_output_flood(kit: Kit) -> Verdict {
    let mut spec = build_hostile_spec(&kit);
    spec.limits.output = Some(Bytes(OUTPUT_LIMIT_BYTES));
    let before = read_resident_bytes()?;
    let command = timed_probe_command(150, ["flood-fast", "stdout", &FLOOD_BYTES.to_string()]);
    let (ran, highest) = keeping_highest(kit.run_with(spec, command)).await;
    let ran = ran?.exited(0)?;
    let report = ran.outcome.stdout;
    same!(
        "bytes passed on and dropped",
        (report.bytes, report.dropped),
        (OUTPUT_LIMIT_BYTES, FLOOD_BYTES - OUTPUT_LIMIT_BYTES)
    );
    let grown = highest.saturating_sub(before);
    check!(
        grown < MAX_ENGINE_GROWTH_BYTES,
        "expected the engine to grow by less than {MAX_ENGINE_GROWTH_BYTES} bytes, saw {grown}"
    );
    check_engine_unharmed(&kit).await
}

/// What comes of something, and the highest resident memory of this process meanwhile.
pub(super) async fn keeping_highest<T>(what: impl Future<Output = T>) -> (T, u64) {
    let highest = Arc::new(AtomicU64::new(0));
    let watch = tokio::spawn(keep_highest(Arc::clone(&highest)));
    let done = what.await;
    watch.abort();
    (done, highest.load(Ordering::Relaxed))
}

/// Keeps the highest resident memory of this process, which is where the engine runs.
async fn keep_highest(highest: Arc<AtomicU64>) {
    while let Ok(now) = read_resident_bytes() {
        highest.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) fn read_resident_bytes() -> Verdict<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    Ok(pages * rustix::param::page_size() as u64)
}

async fn after_close(kit: Kit) -> Verdict {
    let ran = kit
        .run_with(build_hostile_spec(&kit), timed_probe_command(30, ["write-after-close"]))
        .await?
        .exited(0)?;
    let facts: Value = serde_json::from_slice(&ran.stderr)?;
    same!("what the write said", facts, json!({ "ok": false, "errno": 9 }));
    same!("what was written", ran.stdout, b"");
    check_engine_unharmed(&kit).await
}

async fn held_open(kit: Kit) -> Verdict {
    told_at_once(&kit, &["hold-output", "60000", "3"]).await
}

async fn held_and_flooded(kit: Kit) -> Verdict {
    told_at_once(&kit, &["hold-output", "60000", "3", "flood"]).await
}

/// The exit of the program is reported although its children live on; and destroying ends those as well.
async fn told_at_once(kit: &Kit, verb: &[&str]) -> Verdict {
    let room = kit.room_with(build_hostile_spec(kit)).await?;
    let begun = Instant::now();
    room.run_command(timed_probe_command(30, verb)).await?.ended(&Ending::Exited(3))?;
    let took = begun.elapsed();
    check!(took < Duration::from_secs(10), "expected the exit at once, saw it after {took:?}");
    room.run(["exit", "0"]).await?.exited(0)?;
    room.destroy().await?;
    kit.all_gone().await?;
    check_engine_unharmed(kit).await
}
