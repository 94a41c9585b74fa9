//! Programs that eat memory, in each way there is.

use serde_json::json;
use stockade_core::{Bytes, Ending, Feature, LimitKind, SandboxSpec, Support};

use super::{MIB_BYTES, held_back, spec, unharmed, within};
use crate::case::{case, check};
use crate::{Case, Kit, Ran, Stop, Verdict};

pub(super) const HOSTILE_MEMORY_CASES: &[Case] = &[
    case!("a memory bomb ends at its limit", "C-16", bomb),
    case!("many small processes together end at the limit", "C-16", swarm),
    case!("memory that no process maps counts", "C-16", unmapped).needs(&[Feature::MemoryLimit]),
    case!("files in memory count, or do not fit", "C-16", scratch),
];

const MEMORY_LIMIT_BYTES: u64 = 96 * MIB_BYTES;
/// Bytes a program tries to use: beyond the limit, and harmless to a host that does not enforce it.
const ATTEMPTED_BYTES: u64 = 1024 * MIB_BYTES;

fn memory_limited_spec(kit: &Kit) -> Verdict<SandboxSpec> {
    if let Support::Missing { .. } = kit.support(Feature::MemoryLimit) {
        return Err(Stop::Lacking(Feature::MemoryLimit));
    }
    let mut spec = spec(kit);
    spec.limits.memory = Some(Bytes(MEMORY_LIMIT_BYTES));
    Ok(spec)
}

async fn bomb(kit: Kit) -> Verdict {
    let ran = kit
        .run_with(
            memory_limited_spec(&kit)?,
            within(60, ["allocate", &ATTEMPTED_BYTES.to_string()]),
        )
        .await?;
    within_the_limit(&kit, &ran)?;
    held_back(ran, &[LimitKind::Memory])?;
    unharmed(&kit).await
}

async fn swarm(kit: Kit) -> Verdict {
    let verb = ["allocate-many", "100", &(8 * MIB_BYTES).to_string()];
    let ran = kit.run_with(memory_limited_spec(&kit)?, within(60, verb)).await?;
    within_the_limit(&kit, &ran)?;
    if ran.outcome.ending != Ending::LimitExceeded(LimitKind::Memory) {
        let facts = ran.facts()?;
        let ready = facts["ready"].as_u64().unwrap_or(u64::MAX);
        let held = ready * 8 * MIB_BYTES <= MEMORY_LIMIT_BYTES || facts["lost"] != json!(0);
        check!(held, "expected fewer to get their memory, saw {facts}");
    }
    unharmed(&kit).await
}

async fn unmapped(kit: Kit) -> Verdict {
    let ran = kit.run_with(
        memory_limited_spec(&kit)?,
        within(60, ["fill-memory-files", &ATTEMPTED_BYTES.to_string()]),
    );
    let ran = ran.await?;
    within_the_limit(&kit, &ran)?;
    held_back(ran, &[LimitKind::Memory])?;
    unharmed(&kit).await
}

async fn scratch(kit: Kit) -> Verdict {
    let mut spec = memory_limited_spec(&kit)?;
    spec.limits.disk = Some(Bytes(4 * MEMORY_LIMIT_BYTES));
    let verb = ["fill-many", "/tmp", &ATTEMPTED_BYTES.to_string()];
    let ran = kit.run_with(spec, within(60, verb)).await?;
    held_back(ran, &[LimitKind::Memory, LimitKind::Disk])?;
    unharmed(&kit).await
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
