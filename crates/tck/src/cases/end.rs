//! The outcome, asked by anyone at any time; handles that are dropped, closed and detached (C-14,
//! C-15, C-32).

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use stockade_core::{Ending, Feature, Outcome};

use crate::case::{case, check, same};
use crate::kit::{collect_output, probe_command, wait_for_output, wait_until};
use crate::{Case, Kit, MARK_VARIABLE, Stop, Verdict};

pub(super) const END_CASES: &[Case] = &[
    case!("the outcome is the same however often it is asked for", "C-14", asked_often),
    case!("the outcome in the stream, in the record and in the answer is one", "C-14", one_outcome),
    case!("cancelling after the end changes nothing", "C-15", cancel_after),
    case!("cancelling from many places at once ends it once", "C-15", cancel_many),
    case!("dropping the handle ends the program", "C-15", drop_kills),
    case!("a detached execution goes on without its handle", "C-15", check_detached_execution),
    case!("a run that is given up at any point leaves nothing", "C-32", abandoned_run),
    case!("a create that is given up at any point leaves nothing", "C-32", abandoned_create),
    case!("a create whose answer nobody takes leaves nothing", "C-32", answer_not_taken),
    case!("an exec that is given up at any point leaves no program", "C-15", abandoned_exec),
    case!("closing while the program floods ends at once", "C-15", close_in_flood)
        .needs(&[Feature::CompleteKill]),
];

async fn asked_often(kit: Kit) -> Verdict {
    let execution = kit.start(kit.spec(), probe_command(["exit", "9"])).await?.detach();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let execution = execution.clone();
        asking.spawn(async move { execution.outcome().await });
    }
    let mut answers: Vec<Outcome> = Vec::new();
    while let Some(answer) = asking.join_next().await {
        answers.push(answer?);
    }
    let later = execution.outcome().await;
    same!("ending", later.ending, Ending::Exited(9));
    let differing = answers.iter().filter(|answer| **answer != later).count();
    same!("answers that differ", differing, 0);
    Ok(())
}

async fn one_outcome(kit: Kit) -> Verdict {
    let execution = kit.start(kit.spec(), probe_command(["exit", "11"])).await?;
    let streamed = collect_output(execution.subscribe()).await?.outcome;
    same!("the answer", execution.outcome().await, streamed);
    same!(
        "the answer to a second reader",
        collect_output(execution.subscribe()).await?.outcome,
        streamed
    );
    Ok(())
}

async fn cancel_after(kit: Kit) -> Verdict {
    let execution = kit.start(kit.spec(), probe_command(["exit", "4"])).await?;
    let before = execution.outcome().await;
    execution.cancel();
    execution.close().await?;
    same!("the outcome", execution.outcome().await, before);
    same!("ending", before.ending, Ending::Exited(4));
    Ok(())
}

async fn cancel_many(kit: Kit) -> Verdict {
    let execution =
        kit.start(kit.spec(), probe_command(["ignore-signals-then-sleep", "600000"])).await?;
    wait_for_output(&mut execution.subscribe(), "ready\n").await?;
    let watcher = execution.detach();
    let mut closing = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let watcher = watcher.clone();
        closing.spawn(async move { watcher.close().await });
    }
    while let Some(closed) = closing.join_next().await {
        closed??;
    }
    same!("ending", watcher.outcome().await.ending, Ending::Cancelled);
    kit.soon_all_gone().await
}

async fn drop_kills(kit: Kit) -> Verdict {
    let execution =
        kit.start(kit.spec(), probe_command(["ignore-signals-then-sleep", "600000"])).await?;
    let mut reader = execution.subscribe();
    wait_for_output(&mut reader, "ready\n").await?;
    drop(execution);
    while let Some(event) = reader.next().await {
        if let stockade_engine::OutputEvent::End(outcome) = event {
            same!("ending", outcome.ending, Ending::Cancelled);
            kit.engine().close().await?;
            return kit.soon_all_gone().await;
        }
    }
    Err(Stop::failed("the events ended without an outcome"))
}

async fn check_detached_execution(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start_ready(["sleep", "600000"]).await?;
    let job = execution.job().clone();
    drop(execution.detach());
    room.run(["exit", "0"]).await?.exited(0)?;
    let Some(found) = kit.engine().watch(&job) else {
        return Err(Stop::failed("expected to find the execution by its job, saw none"));
    };
    let ended = tokio::time::timeout(Duration::from_millis(300), found.outcome()).await;
    check!(ended.is_err(), "expected it to go on, saw {ended:?}");
    found.close().await?;
    same!("ending", found.outcome().await.ending, Ending::Cancelled);
    Ok(())
}

/// Polls a future so many times and no more; gives the answer if it came before.
async fn poll_at_most<T>(mut future: Pin<&mut impl Future<Output = T>>, polls: usize) -> Option<T> {
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls a future until walls are being built for it, then so many times more, and drops it.
async fn poll_while_building<T>(
    kit: &Kit,
    future: impl Future<Output = T>,
    polls: usize,
) -> Option<T> {
    let before = kit.asked_for().len();
    let mut future = pin!(future);
    while kit.asked_for().len() == before {
        tokio::select! {
            biased;
            answer = future.as_mut() => return Some(answer),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    poll_at_most(future, polls).await
}

/// Polls before an operation is dropped: more than the points at which any of these operations waits.
const MAX_POLL_COUNT: usize = 25;
/// Polls after a backend was asked for walls, before an operation is dropped.
const MAX_BUILDING_POLL_COUNT: usize = 3;

async fn abandoned_run(kit: Kit) -> Verdict {
    let run =
        || kit.engine().run(kit.spec(), probe_command(["ignore-signals-then-sleep", "600000"]));
    for polls in 0..MAX_BUILDING_POLL_COUNT {
        if let Some(execution) = poll_while_building(&kit, run(), polls).await {
            drop(execution?);
        }
    }
    for polls in 0..MAX_POLL_COUNT {
        if let Some(execution) = poll_at_most(pin!(run()), polls).await {
            drop(execution?);
            break;
        }
    }
    kit.gone_for_good().await
}

async fn abandoned_create(kit: Kit) -> Verdict {
    let create = || kit.engine().create(kit.spec());
    for polls in 0..MAX_BUILDING_POLL_COUNT {
        if let Some(id) = poll_while_building(&kit, create(), polls).await {
            kit.engine().destroy(&id?).await?;
        }
    }
    for polls in 0..MAX_POLL_COUNT {
        if let Some(id) = poll_at_most(pin!(create()), polls).await {
            kit.engine().destroy(&id?).await?;
            break;
        }
    }
    kit.gone_for_good().await
}

async fn answer_not_taken(kit: Kit) -> Verdict {
    {
        let mut create = pin!(kit.engine().create(kit.spec()));
        let mut turns = 0;
        // Polled until the sandbox is being built, and then left alone until it stands.
        while kit.asked_for().is_empty() && turns < 1000 {
            if let Some(id) = poll_at_most(create.as_mut(), 1).await {
                kit.engine().destroy(&id?).await?;
                return kit.gone_for_good().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            turns += 1;
        }
        wait_until("the sandbox stands", || async {
            let listed = kit.backend().list().await?;
            let stands = kit.asked_for().iter().any(|id| listed.contains(id));
            check!(stands, "expected the sandbox to stand, saw none");
            Ok(())
        })
        .await?;
    }
    kit.gone_for_good().await
}

async fn abandoned_exec(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let own = format!("{}exec", kit.mark());
    for polls in 0..MAX_POLL_COUNT {
        let mut command = probe_command(["ignore-signals-then-sleep", "600000"]);
        command.env.insert(MARK_VARIABLE.parse()?, own.clone());
        let exec = kit.engine().exec(room.id(), command);
        if let Some(execution) = poll_at_most(pin!(exec), polls).await {
            drop(execution?);
            break;
        }
    }
    let left = || async {
        let left = kit.subject().observer().marked(&own);
        check!(left.is_empty(), "expected no program, saw {left:?}");
        Ok(())
    };
    wait_until("every program has ended", left).await?;
    room.run(["exit", "0"]).await?.exited(0)?;
    room.destroy().await?;
    kit.soon_all_gone().await
}

async fn close_in_flood(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.output = Some(stockade_core::Bytes(u64::MAX));
    let execution = kit.start(spec, probe_command(["flood", "stdout", "1000000000000"])).await?;
    let held = execution.follow();
    tokio::time::timeout(Duration::from_secs(20), execution.close())
        .await
        .map_err(|_| Stop::failed("expected close to end within 20 s, it did not"))??;
    drop(held);
    same!("ending", execution.outcome().await.ending, Ending::Cancelled);
    kit.soon_all_gone().await
}
