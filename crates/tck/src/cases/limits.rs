//! Limits, one by one: each holds, and exceeding it is reported by its name (C-16).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use stockade_core::{Boundary, Bytes, Ending, Feature, LimitKind, Millicores, Span};

use crate::case::{case, check, same};
use crate::kit::probe_command;
use crate::{Case, Kit, Ran, Verdict};

pub(super) const LIMIT_CASES: &[Case] = &[
    case!("memory beyond the limit is not to be had", "C-16", check_memory_limit)
        .needs(&[Feature::MemoryLimit])
        .isolation(),
    case!("memory within the limit is to be had", "C-16", memory_within)
        .needs(&[Feature::MemoryLimit]),
    case!("processes beyond the limit cannot be started", "C-16", check_process_limit)
        .needs(&[Feature::ProcessLimit])
        .isolation(),
    case!("a program that uses up its processor time is ended for it", "C-16", cpu_time)
        .needs(&[Feature::CpuTimeLimit])
        .isolation(),
    case!("the processor time of descendants counts", "C-16", cpu_time_of_descendants)
        .needs(&[Feature::CpuTimeLimit])
        .isolation(),
    case!("processor time comes at the rate asked for", "C-16", cpu_rate)
        .needs(&[Feature::CpuRateLimit])
        .isolation(),
    case!("what is written beyond the disk limit does not fit", "C-16", check_disk_limit)
        .needs(&[Feature::DiskLimit])
        .isolation(),
    case!("files beyond the limit cannot be opened", "C-16", open_files)
        .needs(&[Feature::OpenFilesLimit])
        .isolation(),
    case!("the wall time of the sandbox holds for each command", "C-16", wall_time)
        .needs(&[Feature::WallTimeLimit]),
    case!("the output cap of the sandbox holds for each command", "C-16", check_output_limit)
        .needs(&[Feature::OutputLimit]),
    case!("instructions beyond the limit are not executed", "C-16", check_fuel_limit)
        .needs(&[Feature::FuelLimit])
        .isolation(),
    case!("the same input gives the same output and takes as much fuel", "C-16", check_determinism)
        .needs(&[Feature::Determinism, Feature::FuelLimit])
        .isolation(),
    case!("the outcome says how each limit was enforced", "C-02", check_enforcement_report),
    case!("limits of one sandbox are not used up by another", "C-17", check_limits_per_sandbox)
        .needs(&[Feature::CpuTimeLimit]),
];

const MIB_BYTES: u64 = 1 << 20;

/// Ended for the limit, or told by its own attempt that there was no more: at most `most` of it.
fn held_back(ran: Ran, limit: LimitKind, unit: &str, most: u64) -> Verdict {
    if ran.outcome.ending == Ending::LimitExceeded(limit) {
        return Ok(());
    }
    let facts = ran.facts()?;
    let got = facts[unit].as_u64();
    let held = facts["ok"] == json!(false) && got.is_some_and(|got| got <= most);
    check!(held, "expected {limit} to hold at {most}, saw {facts}");
    Ok(())
}

async fn check_memory_limit(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.memory = Some(Bytes::mib(64));
    let bytes = (256 * MIB_BYTES).to_string();
    let verb = kit.staying_if_watched(Feature::MemoryLimit, &["allocate", &bytes]);
    let ran = kit.run_with(spec, probe_command(verb)).await?;
    held_back(ran, LimitKind::Memory, "bytes", 64 * MIB_BYTES)
}

async fn memory_within(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.memory = Some(Bytes::mib(128));
    let facts = kit
        .run_with(spec, probe_command(["allocate", &(32 * MIB_BYTES).to_string()]))
        .await?
        .facts()?;
    same!("what was to be had", facts, json!({ "ok": true, "bytes": 32 * MIB_BYTES }));
    Ok(())
}

async fn check_process_limit(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.processes = Some(16);
    let room = kit.room_with(spec).await?;
    let facts = room.facts(["fork-many", "64"]).await?;
    let count = facts["count"].as_u64().unwrap_or(0);
    check!((4..16).contains(&count), "expected some, but fewer than 16 processes, saw {facts}");
    same!("whether all could be started", facts["ok"], json!(false));
    room.run(["exit", "0"]).await?.exited(0)?;
    Ok(())
}

async fn cpu_time(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.cpu_time = Some(Span::secs(1));
    spec.limits.wall_time = Some(Span::secs(40));
    let ran = kit.run_with(spec, probe_command(["burn", "3000"])).await?;
    ran.ended(&Ending::LimitExceeded(LimitKind::CpuTime)).map(drop)
}

async fn cpu_time_of_descendants(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.cpu_time = Some(Span::secs(1));
    spec.limits.wall_time = Some(Span::secs(40));
    let ran = kit.run_with(spec, probe_command(["burn-children", "8", "400"])).await?;
    ran.ended(&Ending::LimitExceeded(LimitKind::CpuTime)).map(drop)
}

/// CPU time that a program burns at first, and at most: on a busy machine a short burn decides nothing.
const BURN_MS: [u64; 2] = [3000, 48_000];

async fn cpu_rate(kit: Kit) -> Verdict {
    let mut burn_ms = BURN_MS[0];
    loop {
        // At that rate, and a period's worth that may come at once.
        let allowed_ms = burn_ms / 20 + 125;
        let free_ms = burn_at_a_twentieth(&kit, burn_ms, allowed_ms).await?;
        // On a busy machine a program without a limit gets as little: then only a longer look tells.
        if free_ms > 2 * allowed_ms || burn_ms >= BURN_MS[1] {
            return Ok(());
        }
        burn_ms *= 2;
    }
}

/// Checks what a program uses at that rate. Answers what a thread without a limit used meanwhile.
async fn burn_at_a_twentieth(kit: &Kit, burn_ms: u64, allowed_ms: u64) -> Verdict<u64> {
    let mut spec = kit.spec();
    spec.limits.cpu_rate = Some(Millicores(50));
    let free = FreeThread::start();
    let ran = kit.run_with(spec, probe_command(["burn-for", &burn_ms.to_string()])).await?;
    let free_ms = free.stop();
    let usage = ran.outcome.usage;
    let facts = ran.facts()?;
    let used = facts["ms"].as_u64().unwrap_or(u64::MAX);
    let counted = usage.cpu_ms.unwrap_or(u64::MAX);
    // A kernel of the guest's own cannot tell waiting for the host's processor from using it. Where the host
    // counts for it, that count is the one that tells. In a machine only its own kernel counts: beside other
    // load a program with a limit seems to have several times its share, one without seems to have all of it.
    let held = match kit.boundary() {
        Boundary::Emulated | Boundary::Hardware => used <= burn_ms / 2,
        Boundary::UserspaceKernel => used <= allowed_ms || counted <= usage.wall_ms / 20 + 125,
        Boundary::None | Boundary::Bytecode | Boundary::SharedKernel => used <= allowed_ms,
    };
    check!(held, "expected a twentieth of {burn_ms} ms, saw {used} ms, and from outside {usage:?}");
    Ok(free_ms)
}

/// A thread of the kit's that uses as much processor time as it gets.
struct FreeThread {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl FreeThread {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            used.tv_sec as u64 * 1000 + used.tv_nsec as u64 / 1_000_000
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends it; answers the milliseconds it used.
    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

impl Drop for FreeThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn check_disk_limit(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.disk = Some(Bytes::mib(8));
    let ran =
        kit.run_with(spec, probe_command(["fill", "big", &(64 * MIB_BYTES).to_string()])).await?;
    held_back(ran, LimitKind::Disk, "bytes", 16 * MIB_BYTES)
}

async fn open_files(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.open_files = Some(64);
    let facts = kit.run_with(spec, probe_command(["open-files", "500"])).await?.facts()?;
    let count = facts["count"].as_u64().unwrap_or(u64::MAX);
    check!(count < 64 && facts["ok"] == json!(false), "expected fewer than 64, saw {facts}");
    Ok(())
}

async fn wall_time(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.wall_time = Some(Span::secs(3));
    let room = kit.room_with(spec).await?;
    for _ in 0..2 {
        room.run(["sleep", "600000"]).await?.ended(&Ending::TimedOut)?;
    }
    room.run(["exit", "0"]).await?.exited(0)?;
    Ok(())
}

async fn check_output_limit(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.output = Some(Bytes(100));
    let room = kit.room_with(spec).await?;
    for _ in 0..2 {
        let ran = room.run(["flood", "stdout", "150"]).await?.exited(0)?;
        let report = ran.outcome.stdout;
        same!("bytes passed on and dropped", (report.bytes, report.dropped), (100, 50));
    }
    Ok(())
}

async fn check_enforcement_report(kit: Kit) -> Verdict {
    let ran = kit.run(["exit", "0"]).await?.exited(0)?;
    let told = serde_json::to_value(&ran.outcome.limits)?;
    let entry = |kind: LimitKind| {
        let all = told.as_array().into_iter().flatten();
        all.filter(|entry| entry["limit"] == json!(kind)).collect::<Vec<&Value>>()
    };
    let defaults = stockade_core::Limits::defaults();
    for kind in LimitKind::ALL.into_iter().filter(|kind| defaults.asks_for(*kind)) {
        same!(format!("entries about {kind}"), entry(kind).len(), 1);
    }
    Ok(())
}

async fn check_limits_per_sandbox(kit: Kit) -> Verdict {
    let mut spec = kit.spec_apart(1)?;
    spec.limits.cpu_time = Some(Span::secs(1));
    let one = kit.room_with(spec).await?;
    let mut spec = kit.spec_apart(2)?;
    spec.limits.cpu_time = Some(Span::secs(1));
    let two = kit.room_with(spec).await?;
    for room in [&one, &two] {
        let facts = room.facts(["burn", "600"]).await?;
        same!("whether it could use its own time", facts["ok"], json!(true));
    }
    Ok(())
}

async fn check_fuel_limit(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.fuel = Some(5_000_000);
    let room = kit.room_with(spec).await?;
    room.run(["burn", "30000"]).await?.ended(&Ending::LimitExceeded(LimitKind::Fuel))?;
    let ran = room.run(["exit", "3"]).await?.exited(3)?;
    let used = ran.outcome.usage.fuel;
    check!(
        used.is_some_and(|used| (1..5_000_000).contains(&used)),
        "expected a count, saw {used:?}"
    );
    Ok(())
}

async fn check_determinism(kit: Kit) -> Verdict {
    let world = |number: usize, deterministic: bool| {
        let kit = kit.clone();
        async move {
            let mut spec = kit.spec_apart(number)?;
            (spec.deterministic, spec.limits.fuel) = (deterministic, Some(1_000_000_000));
            let ran = kit.run_with(spec, probe_command(["world"])).await?.exited(0)?;
            Verdict::Ok((ran.stdout, ran.outcome.usage.fuel))
        }
    };
    let (first, second) = (world(1, true).await?, world(2, true).await?);
    check!(!first.0.is_empty(), "expected facts about the world, saw none");
    same!("output and fuel of a second run", second, first);
    let other = world(3, false).await?;
    check!(
        other.0 != first.0,
        "expected another world without being asked to fix it, saw the same"
    );
    Ok(())
}
