//! A guest that takes nothing and lets nothing go: no operation outlives its deadline for it (C-19).

use std::time::Duration;

use stockade_core::{Bytes, Ending, Feature, Outcome, Span, Stdin};
use stockade_engine::Execution;

use super::generate_pattern;
use crate::case::{case, check, same};
use crate::kit::{probe_command, start_engine_process};
use crate::{Case, ENGINE_FLOOD, Kit, Room, Stop, Verdict};

pub(super) const PEER_CASES: &[Case] = &[
    case!("a program that takes none of its input is ended in time", "C-19", check_deaf_program)
        .needs(&[Feature::Stdin]),
    case!(
        "a program whose output waits for its reader is ended in time",
        "C-19",
        check_output_not_taken
    )
    .needs(&[Feature::CompleteKill]),
    case!("output that is not read costs bounded memory", "C-19", check_memory_of_output),
];

/// Wall time of a program that does not end by itself.
const WALL_TIME: Span = Span::secs(2);
/// Timeout for its outcome: far beyond its wall time and the time that ending it may take.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(60);
/// Input that no pipe or queue on the way holds.
const UNTAKEN_INPUT_BYTES: usize = 4 << 20;

/// Output that an engine process reads and is not asked for, and by how much its memory may grow meanwhile: history, queues
/// and what an allocator keeps.
const UNREAD_OUTPUT_BYTES: u64 = 12 << 20;
const MAX_GROWTH_KIB: u64 = 8 << 10;

async fn check_deaf_program(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let mut command = probe_command(["ignore-signals-then-sleep", "600000"]);
    command.stdin = Stdin::Bytes(generate_pattern(UNTAKEN_INPUT_BYTES));
    command.wall_time = Some(WALL_TIME);
    let execution = room.start(command).await?;
    same!("ending", wait_for_outcome(&execution).await?.ending, Ending::TimedOut);
    check_usable(&kit, &room).await
}

async fn check_output_not_taken(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.output = Some(Bytes(u64::MAX));
    let room = kit.room_with(spec).await?;
    let mut command = probe_command(["flood", "stdout", "1000000000000"]);
    command.wall_time = Some(WALL_TIME);
    let execution = room.start(command).await?;
    // While it is not read, the program waits: its wall time goes on all the same.
    let unread = execution.follow();
    same!("ending", wait_for_outcome(&execution).await?.ending, Ending::TimedOut);
    drop(unread);
    check_usable(&kit, &room).await
}

/// In an engine process of its own: other cases take memory of this one.
async fn check_memory_of_output(kit: Kit) -> Verdict {
    let Some(mut process) = kit.engine_command() else {
        return Err(Stop::Unfit("the subject offers no engine process".into()));
    };
    process.env(ENGINE_FLOOD, UNREAD_OUTPUT_BYTES.to_string());
    let (mut child, line) = start_engine_process(process).await?;
    child.kill().await?;
    // Opening an engine reaps what the killed one has left.
    kit.another_engine(|_| ()).await?;
    let grown: u64 = line.parse().map_err(|_| {
        Stop::Failed(format!("expected a number of KiB from the engine process, saw {line:?}"))
    })?;
    check!(
        grown <= MAX_GROWTH_KIB,
        "expected memory for {UNREAD_OUTPUT_BYTES} unread bytes to grow by at most {MAX_GROWTH_KIB} KiB, saw {grown}"
    );
    kit.soon_all_gone().await
}

async fn wait_for_outcome(execution: &Execution) -> Verdict<Outcome> {
    let outcome = tokio::time::timeout(OUTCOME_TIMEOUT, execution.outcome()).await;
    outcome.map_err(|_| {
        let expected = format!("expected an outcome within {OUTCOME_TIMEOUT:?}");
        Stop::Failed(format!("{expected} of a wall time of {WALL_TIME}, saw none"))
    })
}

/// The sandbox goes on, and goes when it is told to.
async fn check_usable(kit: &Kit, room: &Room) -> Verdict {
    room.run(["exit", "7"]).await?.exited(7)?;
    let destroyed = tokio::time::timeout(OUTCOME_TIMEOUT, room.destroy()).await;
    destroyed.map_err(|_| {
        Stop::Failed(format!("expected destroy to end within {OUTCOME_TIMEOUT:?}, it did not"))
    })??;
    kit.all_gone().await
}
