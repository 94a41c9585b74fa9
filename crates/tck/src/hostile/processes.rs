//! Programs that multiply, hide, and signal every process they can reach.

use std::time::Duration;

use serde_json::{Value, json};
use stockade_core::{Ending, Feature};

use super::{build_hostile_spec, check_engine_unharmed, timed_out, timed_probe_command};
use crate::case::{case, check, same};
use crate::{Case, Kit, Ran, Stop, Verdict};

pub(super) const HOSTILE_PROCESS_CASES: &[Case] = &[
    case!("a fork bomb is held to its processes and ended in time", "C-11", fork_bomb)
        .needs(&[Feature::ProcessLimit, Feature::CompleteKill]),
    case!("children nobody waits for use up their own sandbox only", "C-16", check_zombies)
        .needs(&[Feature::ProcessLimit, Feature::CompleteKill]),
    case!("a daemon that ignores every signal ends with its sandbox", "C-30", check_daemon_ended)
        .needs(&[Feature::CompleteKill]),
    case!("a daemon that ignores every signal ends with its wall time", "C-11", daemon_in_time)
        .needs(&[Feature::CompleteKill]),
    case!(
        "a program without descriptors ends with its wall time",
        "C-11",
        check_closed_descriptors
    ),
    case!("a program that stops itself ends with its wall time", "C-11", check_self_stop)
        .needs(&[Feature::CompleteKill]),
    case!("a program that stops who started it ends with its wall time", "C-11", parent_stopped)
        .needs(&[Feature::ProcessIsolation, Feature::CompleteKill]),
    case!("a program that kills who started it loses its sandbox", "C-11", parent_killed)
        .needs(&[Feature::ProcessIsolation, Feature::CompleteKill]),
    case!("a program that kills all it can reach loses its sandbox", "C-11", everybody_killed)
        .needs(&[Feature::ProcessIsolation, Feature::CompleteKill]),
    case!("a program that stops all it can reach ends with its wall time", "C-11", all_stopped)
        .needs(&[Feature::ProcessIsolation, Feature::CompleteKill]),
    case!("who started a program cannot be traced by it", "C-17", check_trace_refused)
        .needs(&[Feature::ProcessIsolation]),
];

/// Milliseconds, as a probe argument, that outlast every wall time here.
const LONG_SLEEP_MS: &str = "600000";

async fn fork_bomb(kit: Kit) -> Verdict {
    let mut spec = build_hostile_spec(&kit);
    spec.limits.processes = Some(64);
    timed_out(kit.run_with(spec, timed_probe_command(3, ["fork-bomb"])).await?, 3)?;
    check_engine_unharmed(&kit).await
}

async fn check_zombies(kit: Kit) -> Verdict {
    let mut spec = build_hostile_spec(&kit);
    spec.limits.processes = Some(64);
    let ran = timed_out(
        kit.run_with(spec, timed_probe_command(3, ["zombies", LONG_SLEEP_MS])).await?,
        3,
    )?;
    let facts: Value = serde_json::from_slice(&ran.stdout)?;
    let count = facts["count"].as_u64().unwrap_or(u64::MAX);
    check!((4..64).contains(&count), "expected some, but fewer than 64 processes, saw {facts}");
    check_engine_unharmed(&kit).await
}

async fn check_daemon_ended(kit: Kit) -> Verdict {
    let facts = kit
        .run_with(
            build_hostile_spec(&kit),
            timed_probe_command(30, ["spawn-detached", "marker", "60000"]),
        )
        .await?;
    let facts = facts.facts()?;
    check!(facts["ok"] == json!(true), "expected a detached process, saw {facts}");
    kit.all_gone().await?;
    check_engine_unharmed(&kit).await
}

async fn daemon_in_time(kit: Kit) -> Verdict {
    let verb = ["spawn-detached", "marker", "60000", LONG_SLEEP_MS];
    timed_out(kit.run_with(build_hostile_spec(&kit), timed_probe_command(3, verb)).await?, 3)?;
    kit.all_gone().await?;
    check_engine_unharmed(&kit).await
}

async fn check_closed_descriptors(kit: Kit) -> Verdict {
    timed_out(
        kit.run_with(
            build_hostile_spec(&kit),
            timed_probe_command(2, ["close-fds-then-sleep", LONG_SLEEP_MS]),
        )
        .await?,
        2,
    )?;
    check_engine_unharmed(&kit).await
}

async fn check_self_stop(kit: Kit) -> Verdict {
    timed_out(
        kit.run_with(build_hostile_spec(&kit), timed_probe_command(2, ["signal-self", "19"]))
            .await?,
        2,
    )?;
    check_engine_unharmed(&kit).await
}

async fn parent_stopped(kit: Kit) -> Verdict {
    let room = kit.room_with(build_hostile_spec(&kit)).await?;
    timed_out(
        room.run_command(timed_probe_command(2, ["signal-parent", "19", LONG_SLEEP_MS])).await?,
        2,
    )?;
    room.destroy().await?;
    check_engine_unharmed(&kit).await
}

async fn parent_killed(kit: Kit) -> Verdict {
    loses_its_sandbox(&kit, ["signal-parent", "9", LONG_SLEEP_MS]).await
}

async fn everybody_killed(kit: Kit) -> Verdict {
    loses_its_sandbox(&kit, ["kill-everybody", "9", LONG_SLEEP_MS]).await
}

async fn all_stopped(kit: Kit) -> Verdict {
    let room = kit.room_with(build_hostile_spec(&kit)).await?;
    let ran =
        room.run_command(timed_probe_command(2, ["kill-everybody", "19", LONG_SLEEP_MS])).await?;
    if !reached_nobody(&kit, &ran) {
        timed_out(ran, 2)?;
    }
    room.destroy().await?;
    check_engine_unharmed(&kit).await
}

/// Which process belongs to which program cannot be told any more: the sandbox is given up as a whole, before
/// the outcome is known.
async fn loses_its_sandbox(kit: &Kit, verb: [&str; 3]) -> Verdict {
    let room = kit.room_with(build_hostile_spec(kit)).await?;
    let run = tokio::time::timeout(
        Duration::from_secs(20),
        room.run_command(timed_probe_command(30, verb)),
    );
    let ran = run.await.map_err(|_| Stop::failed("expected an end within 20 s, saw none"))??;
    if reached_nobody(kit, &ran) {
        room.destroy().await?;
        return check_engine_unharmed(kit).await;
    }
    let ending = &ran.outcome.ending;
    check!(matches!(ending, Ending::Lost(_)), "expected it to be lost, saw {ending:?}");
    kit.gone(room.id()).await?;
    check_engine_unharmed(kit).await
}

/// Whether it was told that there is no process (ESRCH): under a kernel of its own each execution may have a
/// PID namespace of its own.
fn reached_nobody(kit: &Kit, ran: &Ran) -> bool {
    if !kit.has_own_kernel() {
        return false;
    }
    let told: Option<Value> = serde_json::from_slice(&ran.stdout).ok();
    ran.outcome.ending == Ending::Exited(0)
        && told.is_some_and(|facts| facts == json!({ "ok": false, "errno": 3 }))
}

async fn check_trace_refused(kit: Kit) -> Verdict {
    let facts = kit
        .run_with(build_hostile_spec(&kit), timed_probe_command(10, ["trace-parent"]))
        .await?
        .facts()?;
    same!("whether it could be traced", facts["ok"], json!(false));
    check_engine_unharmed(&kit).await
}
