//! A limit that was exceeded belongs to one execution: its sandbox can be used again, and what else runs in it
//! goes on (C-16). Also where a limit is only watched.

use stockade_core::{Bytes, Ending, Feature, LimitKind, Limits, Span, Support};

use crate::case::{case, check, same};
use crate::{Case, Kit, Ran, Verdict};

pub(super) const REUSE_CASES: &[Case] = &[
    case!(
        "a sandbox can be used again after its memory was exceeded",
        "C-16",
        check_reuse_after_memory_limit
    )
    .isolation(),
    case!(
        "a sandbox can be used again after its processes were used up",
        "C-16",
        check_reuse_after_process_limit
    )
    .isolation(),
    case!("a sandbox can be used again after processor time was used up", "C-16", cpu_time)
        .isolation(),
    case!(
        "a sandbox can be used again after too much was written",
        "C-16",
        check_reuse_after_disk_limit
    )
    .isolation(),
    case!("a command that runs out of its own time is told that time", "C-16", wall_time)
        .needs(&[Feature::WallTimeLimit]),
    case!(
        "a sandbox can be used again after its output was cut",
        "C-16",
        check_reuse_after_output_limit
    )
    .needs(&[Feature::OutputLimit]),
];

const MIB_BYTES: u64 = 1 << 20;

/// Runs something that exceeds a limit beside a program that does not; then something else.
async fn used_again(kit: Kit, limits: Limits, verb: &[&str]) -> Verdict<Ran> {
    let mut spec = kit.spec();
    spec.limits = limits;
    let room = kit.room_with(spec).await?;
    let bystander = room.start_ready(["sleep", "600000"]).await?;
    let exceeding = room.run(verb).await?;
    for _ in 0..2 {
        room.run(["exit", "0"]).await?.exited(0)?;
    }
    bystander.close().await?;
    same!("the end of what ran beside it", bystander.outcome().await.ending, Ending::Cancelled);
    Ok(exceeding)
}

/// Skips what the backend does not hold at all; what it only watches is tried too.
fn is_held(kit: &Kit, limit: LimitKind) -> bool {
    !matches!(kit.support(limit.feature()), Support::Missing { .. })
}

/// Ended for the limit, or told by its own attempt that there was no more.
fn is_held_back(ran: Ran, limit: LimitKind) -> Verdict {
    if ran.outcome.ending == Ending::LimitExceeded(limit) {
        return Ok(());
    }
    let facts = ran.facts()?;
    check!(facts["ok"] == serde_json::json!(false), "expected {limit} to hold, saw {facts}");
    Ok(())
}

async fn check_reuse_after_memory_limit(kit: Kit) -> Verdict {
    if !is_held(&kit, LimitKind::Memory) {
        return Err(crate::Stop::Lacking(Feature::MemoryLimit));
    }
    if kit.has_own_kernel() {
        let reason =
            "its kernel is one of its processes: beyond the limit the sandbox ends with it";
        return Err(crate::Stop::Unfit(reason.into()));
    }
    let limits = Limits { memory: Some(Bytes::mib(128)), ..Limits::default() };
    let bytes = (512 * MIB_BYTES).to_string();
    let verb = kit.staying_if_watched(Feature::MemoryLimit, &["allocate", &bytes]);
    is_held_back(used_again(kit, limits, &verb).await?, LimitKind::Memory)
}

async fn check_reuse_after_process_limit(kit: Kit) -> Verdict {
    if !is_held(&kit, LimitKind::Processes) {
        return Err(crate::Stop::Lacking(Feature::ProcessLimit));
    }
    if kit.is_wasm() {
        return Err(crate::Stop::Unfit("WebAssembly starts no processes".into()));
    }
    let limits = Limits { processes: Some(16), ..Limits::default() };
    let verb = kit.staying_if_watched(Feature::ProcessLimit, &["fork-many", "64"]);
    is_held_back(used_again(kit, limits, &verb).await?, LimitKind::Processes)
}

async fn cpu_time(kit: Kit) -> Verdict {
    if !is_held(&kit, LimitKind::CpuTime) {
        return Err(crate::Stop::Lacking(Feature::CpuTimeLimit));
    }
    if kit.has_own_kernel() {
        let reason = "from outside the processes of its executions cannot be told apart";
        return Err(crate::Stop::Unfit(reason.into()));
    }
    let (cpu_time, wall_time) = (Some(Span::secs(1)), Some(Span::secs(40)));
    let limits = Limits { cpu_time, wall_time, ..Limits::default() };
    let ran = used_again(kit, limits, &["burn", "3000"]).await?;
    ran.ended(&Ending::LimitExceeded(LimitKind::CpuTime)).map(drop)
}

async fn check_reuse_after_disk_limit(kit: Kit) -> Verdict {
    if !is_held(&kit, LimitKind::Disk) {
        return Err(crate::Stop::Lacking(Feature::DiskLimit));
    }
    let limits = Limits { disk: Some(Bytes::mib(8)), ..Limits::default() };
    let bytes = (64 * MIB_BYTES).to_string();
    let verb = kit.staying_if_watched(Feature::DiskLimit, &["fill", "big", &bytes]);
    is_held_back(used_again(kit, limits, &verb).await?, LimitKind::Disk)
}

async fn wall_time(kit: Kit) -> Verdict {
    let room = kit.room_with(kit.spec()).await?;
    let bystander = room.start_ready(["sleep", "600000"]).await?;
    let mut command = crate::kit::probe_command(["sleep", "600000"]);
    command.wall_time = Some(Span::millis(700));
    let ran = room.run_command(command).await?.ended(&Ending::TimedOut)?;
    let told = serde_json::to_value(&ran.outcome.limits)?;
    let wall = told.as_array().into_iter().flatten().find(|it| it["limit"] == "wall-time");
    same!("the limit that is told", wall.map(|it| it["value"].clone()), Some("700ms".into()));
    room.run(["exit", "0"]).await?.exited(0)?;
    bystander.close().await?;
    same!("the end of what ran beside it", bystander.outcome().await.ending, Ending::Cancelled);
    Ok(())
}

async fn check_reuse_after_output_limit(kit: Kit) -> Verdict {
    let limits = Limits { output: Some(Bytes(100)), ..Limits::default() };
    let ran = used_again(kit, limits, &["flood", "stdout", "150"]).await?.exited(0)?;
    same!("bytes dropped", ran.outcome.stdout.dropped, 50);
    Ok(())
}
