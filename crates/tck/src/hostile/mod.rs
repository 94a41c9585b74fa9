//! The hostile corpus: programs that mean harm, and how each has to end. They are cases like all
//! others, but slow, hungry and not for a machine whose walls are in doubt, so that they are run only
//! when asked for, one after the other.
//!
//! Each ends in the outcome that is right for it, within its limits; nothing of it is left; and the
//! engine goes on as if nothing had been.

mod files;
mod memory;
mod output;
mod processes;
mod wasm;

use std::sync::Arc;

use stockade_core::{Command, Ending, Feature, LimitKind, SandboxSpec, Span};

use crate::case::check;
use crate::kit::probe_command;
use crate::runner::run_cases;
use crate::{Case, Kit, KitOptions, Ran, Report, Subject, Verdict};

const MIB_BYTES: u64 = 1 << 20;

/// Every program of the corpus.
pub fn all() -> Vec<Case> {
    [
        processes::HOSTILE_PROCESS_CASES,
        memory::HOSTILE_MEMORY_CASES,
        files::HOSTILE_FILE_CASES,
        output::HOSTILE_OUTPUT_CASES,
    ]
    .concat()
}

/// Runs the corpus, one program at a time: what one uses up, another would miss.
pub async fn run(subject: Arc<dyn Subject>, only: Vec<String>) -> Report {
    run_cases(all(), subject, &KitOptions { only, jobs: 1 }).await
}

/// Runs what means harm as WebAssembly, likewise.
pub async fn run_wasm(subject: Arc<dyn Subject>, only: Vec<String>) -> Report {
    run_cases(wasm::HOSTILE_WASM_CASES.to_vec(), subject, &KitOptions { only, jobs: 1 }).await
}

/// The kit's spec, with limits that hold as far as the backend can make them.
fn build_hostile_spec(kit: &Kit) -> SandboxSpec {
    let mut spec = kit.spec();
    spec.without.extend([Feature::MemoryLimit, Feature::DiskLimit, Feature::CpuTimeLimit]);
    let limits = &mut spec.limits;
    let defaults = stockade_core::Limits::defaults();
    (limits.memory, limits.disk) = (defaults.memory, defaults.disk);
    limits.cpu_time = Some(Span::secs(300));
    spec
}

/// A verb of the probe with so many seconds to live.
fn timed_probe_command<'a>(seconds: u64, verb: impl AsRef<[&'a str]>) -> Command {
    Command { wall_time: Some(Span::secs(seconds)), ..probe_command(verb) }
}

/// It was ended by its wall time, and not long after that.
fn timed_out(ran: Ran, seconds: u64) -> Verdict<Ran> {
    let ran = ran.ended(&Ending::TimedOut)?;
    let wall = ran.outcome.usage.wall_ms;
    let most = (seconds + 15) * 1000;
    check!(wall < most, "expected to be ended after {seconds} s, saw {wall} ms");
    Ok(ran)
}

/// Ended for the limit, or held back by it and told so.
fn held_back(ran: Ran, limits: &[LimitKind]) -> Verdict {
    if let Ending::LimitExceeded(limit) = ran.outcome.ending {
        check!(limits.contains(&limit), "expected one of {limits:?}, saw {limit}");
        return Ok(());
    }
    let facts = ran.facts()?;
    check!(facts["ok"] == serde_json::json!(false), "expected to be held back, saw {facts}");
    Ok(())
}

/// Nothing is left, and the next program runs as if nothing had been.
async fn check_engine_unharmed(kit: &Kit) -> Verdict {
    kit.soon_all_gone().await?;
    kit.run_with(kit.spec_apart(99)?, probe_command(["exit", "7"])).await?.exited(7)?;
    Ok(())
}
