//! Programs that eat memory, in each way there is.

use serde_json::json;
use stockade_core::{Bytes, Ending, Feature, LimitKind, SandboxSpec, Support};

use super::{MIB, held_back, spec, unharmed, within};
use crate::case::{case, check};
use crate::{Case, Kit, Ran, Stop, Verdict};

pub(super) const CASES: &[Case] = &[
    case!("a memory bomb ends at its limit", "C-16", bomb),
    case!("many small processes together end at the limit", "C-16", swarm),
    case!("memory that no process maps counts", "C-16", unmapped).needs(&[Feature::MemoryLimit]),
    case!("files in memory count, or do not fit", "C-16", scratch),
];

const LIMIT: u64 = 96 * MIB;
/// More than the limit, and less than would hurt a host on which it does not hold.
const MUCH: u64 = 1024 * MIB;

fn limited(kit: &Kit) -> Verdict<SandboxSpec> {
    if let Support::Missing { .. } = kit.support(Feature::MemoryLimit) {
        return Err(Stop::Lacking(Feature::MemoryLimit));
    }
    let mut spec = spec(kit);
    spec.limits.memory = Some(Bytes(LIMIT));
    Ok(spec)
}

async fn bomb(kit: Kit) -> Verdict {
    let ran = kit.run_with(limited(&kit)?, within(60, ["allocate", &MUCH.to_string()])).await?;
    within_the_limit(&kit, &ran)?;
    held_back(ran, &[LimitKind::Memory])?;
    unharmed(&kit).await
}

async fn swarm(kit: Kit) -> Verdict {
    let verb = ["allocate-many", "100", &(8 * MIB).to_string()];
    let ran = kit.run_with(limited(&kit)?, within(60, verb)).await?;
    within_the_limit(&kit, &ran)?;
    if ran.outcome.ending != Ending::LimitExceeded(LimitKind::Memory) {
        let facts = ran.facts()?;
        let ready = facts["ready"].as_u64().unwrap_or(u64::MAX);
        let held = ready * 8 * MIB <= LIMIT || facts["lost"] != json!(0);
        check!(held, "expected fewer to get their memory, saw {facts}");
    }
    unharmed(&kit).await
}

async fn unmapped(kit: Kit) -> Verdict {
    let ran = kit.run_with(limited(&kit)?, within(60, ["fill-memory-files", &MUCH.to_string()]));
    let ran = ran.await?;
    within_the_limit(&kit, &ran)?;
    held_back(ran, &[LimitKind::Memory])?;
    unharmed(&kit).await
}

async fn scratch(kit: Kit) -> Verdict {
    let mut spec = limited(&kit)?;
    spec.limits.disk = Some(Bytes(4 * LIMIT));
    let verb = ["fill-many", "/tmp", &MUCH.to_string()];
    let ran = kit.run_with(spec, within(60, verb)).await?;
    held_back(ran, &[LimitKind::Memory, LimitKind::Disk])?;
    unharmed(&kit).await
}

/// Where the kernel holds the limit, what was used at most says so.
fn within_the_limit(kit: &Kit, ran: &Ran) -> Verdict {
    let peak = ran.outcome.usage.peak_memory_bytes.filter(|_| kit.has(Feature::MemoryLimit));
    check!(peak.unwrap_or(0) <= LIMIT, "expected at most {LIMIT} bytes, saw {peak:?}");
    Ok(())
}
