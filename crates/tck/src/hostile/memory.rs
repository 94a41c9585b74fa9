//! Programs that eat memory, in each way there is.

use serde_json::json;
use stockade_core::{Bytes, Ending, Feature, LimitKind, SandboxSpec, Support};

use super::{MIB_BYTES, build_hostile_spec, check_engine_unharmed, held_back, timed_probe_command};
use crate::case::{case, check};
use crate::{Case, Kit, Ran, Stop, Verdict};

pub(super) const HOSTILE_MEMORY_CASES: &[Case] = &[
    case!("a memory bomb ends at its limit", "C-16", check_memory_bomb),
    case!("many small processes together end at the limit", "C-16", check_process_swarm),
    case!("memory that no process maps counts", "C-16", check_unmapped_memory)
        .needs(&[Feature::MemoryLimit]),
    case!("files in memory count, or do not fit", "C-16", check_tmpfs_fill),
];

const MEMORY_LIMIT_BYTES: u64 = 96 * MIB_BYTES;
/// Bytes a program tries to use: beyond the limit, and harmless to a host that does not enforce it.
const ATTEMPTED_BYTES: u64 = 1024 * MIB_BYTES;

fn memory_limited_spec(kit: &Kit) -> Verdict<SandboxSpec> {
    if let Support::Missing { .. } = kit.support(Feature::MemoryLimit) {
        return Err(Stop::Lacking(Feature::MemoryLimit));
    }
    let mut spec = build_hostile_spec(kit);
    spec.limits.memory = Some(Bytes(MEMORY_LIMIT_BYTES));
    Ok(spec)
}

async fn check_memory_bomb(kit: Kit) -> Verdict {
    let bytes = ATTEMPTED_BYTES.to_string();
    let verb = kit.staying_if_watched(Feature::MemoryLimit, &["allocate", &bytes]);
    let ran = kit.run_with(memory_limited_spec(&kit)?, timed_probe_command(60, verb)).await?;
    within_the_limit(&kit, &ran)?;
    held_back(ran, &[LimitKind::Memory])?;
    check_engine_unharmed(&kit).await
}

async fn check_process_swarm(kit: Kit) -> Verdict {
    let bytes = (8 * MIB_BYTES).to_string();
    let verb = ["allocate-many", "40", &bytes];
    let verb = kit.staying_if_watched(Feature::MemoryLimit, &verb);
    // In an emulated machine each OOM kill takes up to half a second.
    let ran = kit.run_with(memory_limited_spec(&kit)?, timed_probe_command(180, verb)).await?;
    within_the_limit(&kit, &ran)?;
    if ran.outcome.ending != Ending::LimitExceeded(LimitKind::Memory) {
        let facts = ran.facts()?;
        let ready = facts["ready"].as_u64().unwrap_or(u64::MAX);
        let held = ready * 8 * MIB_BYTES <= MEMORY_LIMIT_BYTES || facts["lost"] != json!(0);
        check!(held, "expected fewer to get their memory, saw {facts}");
    }
    check_engine_unharmed(&kit).await
}

async fn check_unmapped_memory(kit: Kit) -> Verdict {
    let ran = kit.run_with(
        memory_limited_spec(&kit)?,
        timed_probe_command(60, ["fill-memory-files", &ATTEMPTED_BYTES.to_string()]),
    );
    let ran = ran.await?;
    within_the_limit(&kit, &ran)?;
    held_back(ran, &[LimitKind::Memory])?;
    check_engine_unharmed(&kit).await
}

async fn check_tmpfs_fill(kit: Kit) -> Verdict {
    let mut spec = memory_limited_spec(&kit)?;
    spec.limits.disk = Some(Bytes(4 * MEMORY_LIMIT_BYTES));
    let verb = ["fill-many", "/tmp", &ATTEMPTED_BYTES.to_string()];
    let ran = kit.run_with(spec, timed_probe_command(60, verb)).await?;
    held_back(ran, &[LimitKind::Memory, LimitKind::Disk])?;
    check_engine_unharmed(&kit).await
}

/// Where the kernel holds the limit, what was used at most says so.
fn within_the_limit(kit: &Kit, ran: &Ran) -> Verdict {
    let peak = ran.outcome.usage.peak_memory_bytes.filter(|_| kit.has(Feature::MemoryLimit));
    check!(
        peak.unwrap_or(0) <= MEMORY_LIMIT_BYTES,
        "expected at most {MEMORY_LIMIT_BYTES} bytes, saw {peak:?}"
    );
    Ok(())
}
