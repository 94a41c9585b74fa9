//! Ending a program: all of it, also what hides (C-11, C-15).

use serde_json::json;
use stockade_core::{Ending, ExitStatus, Feature, Process, ProcessEvent, Signal, Span};

use crate::case::{case, check, same};
use crate::kit::{collect_output, probe_command, wait_for_output};
use crate::{Case, Kit, Stop, Verdict};

pub(super) const KILL_CASES: &[Case] = &[
    case!("a time-out ends what was detached, too", "C-11", time_out_detached)
        .needs(&[Feature::CompleteKill])
        .isolation(),
    case!("cancelling ends what was detached, too", "C-15", cancel_detached)
        .needs(&[Feature::CompleteKill])
        .isolation(),
    case!("destroying ends what was detached, too", "C-30", destroy_detached)
        .needs(&[Feature::CompleteKill])
        .isolation(),
    case!(
        "what was detached is gone when a one-shot's outcome is known",
        "C-30",
        one_shot_detached
    )
    .needs(&[Feature::CompleteKill])
    .isolation(),
    case!("a program that gave up its descriptors is ended in time", "C-11", closed_descriptors),
    case!("the tighter of two wall times holds", "C-11", tighter_wall_time),
    case!("killing twice, or after the end, succeeds", "C-15", kill_twice),
    case!("a sandbox can be used again after a time-out", "C-11", used_again),
    case!("a time-out ends one execution and no other", "C-17", only_one),
    case!("a signal reaches the program", "C-10", check_signal_delivery).needs(&[Feature::Signals]),
    case!("a program may ignore a polite signal and still be ended", "C-15", ignored_signal)
        .needs(&[Feature::Signals]),
];

/// Probe arguments that detach a process: it outlives the case, and ends by itself where nothing kills it.
const DETACHED_PROBE_ARGS: [&str; 4] = ["spawn-detached", "marker", "40000", "600000"];

async fn time_out_detached(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    // On a busy machine two seconds may be over before anything has begun: then there is nothing to see.
    for seconds in [2, 8, 30] {
        let mut command = probe_command(DETACHED_PROBE_ARGS);
        command.wall_time = Some(Span::secs(seconds));
        let ran = room.run_command(command).await?.ended(&Ending::TimedOut)?;
        if !ran.stdout.is_empty() {
            let beats = room.beats("marker").await?;
            check!(!beats, "expected the detached process to be gone, but it writes on");
            return Ok(());
        }
    }
    Err(Stop::failed("expected the detached process to have begun, saw no sign of it"))
}

async fn cancel_detached(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start(probe_command(DETACHED_PROBE_ARGS)).await?;
    wait_for_output(&mut execution.subscribe(), "ok").await?;
    check!(room.beats("marker").await?, "expected the detached process to write, but it does not");
    execution.close().await?;
    same!("ending", execution.outcome().await.ending, Ending::Cancelled);
    check!(
        !room.beats("marker").await?,
        "expected the detached process to be gone, but it writes on"
    );
    Ok(())
}

async fn destroy_detached(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let facts = room.facts(["spawn-detached", "marker", "40000"]).await?;
    check!(facts["ok"] == json!(true), "expected a detached process, saw {facts}");
    room.destroy().await?;
    kit.all_gone().await?;
    check!(
        !kit.is_growing("marker").await?,
        "expected the detached process to be gone, but it writes on"
    );
    Ok(())
}

async fn one_shot_detached(kit: Kit) -> Verdict {
    let facts = kit.facts(["spawn-detached", "marker", "40000"]).await?;
    check!(facts["ok"] == json!(true), "expected a detached process, saw {facts}");
    kit.engine().close().await?;
    kit.all_gone().await?;
    check!(
        !kit.is_growing("marker").await?,
        "expected the detached process to be gone, but it writes on"
    );
    Ok(())
}

async fn closed_descriptors(kit: Kit) -> Verdict {
    let mut command = probe_command(["close-fds-then-sleep", "600000"]);
    command.wall_time = Some(Span::millis(700));
    kit.run_with(kit.spec(), command).await?.ended(&Ending::TimedOut)?;
    kit.soon_all_gone().await
}

async fn tighter_wall_time(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.wall_time = Some(Span::millis(700));
    let mut command = probe_command(["sleep", "600000"]);
    command.wall_time = Some(Span::secs(500));
    let ran = kit.run_with(spec, command).await?.ended(&Ending::TimedOut)?;
    let wall = ran.outcome.usage.wall_ms;
    check!((700..30_000).contains(&wall), "expected to be ended after 700 ms, saw {wall} ms");
    Ok(())
}

/// Asks the backend itself: the engine kills but once.
async fn kill_twice(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let limits = stockade_core::Limits::defaults();
    let Process { mut events, control } =
        sandbox.spawn(&probe_command(["sleep", "600000"]), &limits).await?;
    control.kill().await?;
    control.kill().await?;
    let exit = loop {
        match events.next().await {
            Some(ProcessEvent::Output(..)) => {}
            Some(ProcessEvent::Exit(exit)) => break exit,
            None => return Err(Stop::failed("the events ended without an exit")),
        }
    };
    same!("what ended it", exit.status, ExitStatus::Signalled(Signal::KILL));
    check!(events.next().await.is_none(), "expected nothing after the exit, saw another event");
    control.kill().await?;
    Ok(())
}

async fn used_again(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let mut command = probe_command(["ignore-signals-then-sleep", "600000"]);
    command.wall_time = Some(Span::millis(700));
    room.run_command(command).await?.ended(&Ending::TimedOut)?;
    room.run(["exit", "5"]).await?.exited(5)?;
    Ok(())
}

async fn only_one(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let other = room.start_ready(["sleep", "600000"]).await?;
    let mut command = probe_command(["sleep", "600000"]);
    command.wall_time = Some(Span::millis(500));
    room.run_command(command).await?.ended(&Ending::TimedOut)?;
    room.run(["exit", "0"]).await?.exited(0)?;
    other.close().await?;
    same!("the end of the other execution", other.outcome().await.ending, Ending::Cancelled);
    Ok(())
}

async fn check_signal_delivery(kit: Kit) -> Verdict {
    for signal in [Signal::TERM, Signal::INT, Signal(10)] {
        let mut command = probe_command(["sleep", "600000"]);
        command.wall_time = Some(Span::secs(10));
        let execution = kit.start(kit.spec(), command).await?;
        wait_for_output(&mut execution.subscribe(), "ready\n").await?;
        execution.signal(signal).await?;
        collect_output(execution.subscribe()).await?.ended(&Ending::Signalled(signal))?;
        // Every control succeeds without effect after the end.
        execution.signal(signal).await?;
    }
    Ok(())
}

async fn ignored_signal(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start_ready(["ignore-signals-then-sleep", "600000"]).await?;
    execution.signal(Signal::TERM).await?;
    // Still there: the sandbox answers, and the execution has not ended meanwhile.
    room.run(["exit", "0"]).await?.exited(0)?;
    execution.close().await?;
    same!("ending", execution.outcome().await.ending, Ending::Cancelled);
    Ok(())
}
