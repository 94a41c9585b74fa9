//! The eight scenarios that every backend must pass.

use serde_json::{Value, json};
use stockade_core::{Bytes, Ending, Feature, Span};

use super::generate_pattern;
use crate::case::{case, check, same};
use crate::kit::{collect_output, probe_command, wait_for_output};
use crate::{Case, Kit, Verdict};

pub(super) const MANDATORY_CASES: &[Case] = &[
    case!(
        "a program that succeeds exits with 0 and all of its output arrives",
        "C-13",
        check_success_exit
    ),
    case!("a non-zero exit code arrives as it is", "C-10", non_zero),
    case!(
        "a program that takes too long is ended and reported as timed out with -1",
        "C-11",
        time_out
    ),
    case!("output beyond the cap is dropped and the outcome says how much", "C-12", output_cap),
    case!("cancelling twice is as good as cancelling once", "C-15", check_cancel_twice),
    case!("a read-only workspace refuses every write", "C-20", read_only)
        .needs(&[Feature::ReadOnlyWorkspace])
        .isolation(),
    case!(
        "sandboxes that start at once see nothing of each other",
        "C-17",
        check_concurrent_sandboxes
    )
    .needs(&[Feature::ProcessIsolation])
    .isolation(),
    case!("close releases everything and can be called again", "C-30", check_close_releases_all),
];

async fn check_success_exit(kit: Kit) -> Verdict {
    let ran = kit.run(["flood", "stdout", "100000", "777"]).await?.exited(0)?;
    check!(
        ran.stdout == generate_pattern(100_000),
        "expected the whole flood, saw {} bytes",
        ran.stdout.len()
    );
    same!("standard error", ran.stderr.len(), 0);
    same!("bytes in the outcome", ran.outcome.stdout.bytes, 100_000);
    check!(
        !ran.outcome.truncated(),
        "expected nothing to be dropped, saw {:?}",
        ran.outcome.stdout
    );
    Ok(())
}

async fn non_zero(kit: Kit) -> Verdict {
    let ran = kit.run(["exit", "42"]).await?.exited(42)?;
    same!("the JSON form", serde_json::to_value(ran.outcome)?["exitCode"], json!(42));
    Ok(())
}

async fn time_out(kit: Kit) -> Verdict {
    let mut command = probe_command(["ignore-signals-then-sleep", "600000"]);
    command.wall_time = Some(Span::millis(700));
    let ran = kit.run_with(kit.spec(), command).await?.ended(&Ending::TimedOut)?;
    let wall = ran.outcome.usage.wall_ms;
    check!((700..20_000).contains(&wall), "expected to be ended after 700 ms, saw {wall} ms");
    let told = serde_json::to_value(ran.outcome)?;
    same!(
        "exit code and timedOut",
        (&told["exitCode"], &told["timedOut"]),
        (&json!(-1), &json!(true))
    );
    kit.soon_all_gone().await
}

async fn output_cap(kit: Kit) -> Verdict {
    let mut command = probe_command(["flood", "stdout", "100000"]);
    command.output = Some(Bytes(10_000));
    let ran = kit.run_with(kit.spec(), command).await?.exited(0)?;
    let report = ran.outcome.stdout;
    same!("bytes passed on and dropped", (report.bytes, report.dropped), (10_000, 90_000));
    check!(
        ran.stdout == generate_pattern(10_000),
        "expected the first 10000 bytes, saw {}",
        ran.stdout.len()
    );
    same!("truncated", serde_json::to_value(ran.outcome)?["truncated"], json!(true));
    Ok(())
}

async fn check_cancel_twice(kit: Kit) -> Verdict {
    let execution = kit.start(kit.spec(), probe_command(["sleep", "600000"])).await?;
    wait_for_output(&mut execution.subscribe(), "ready\n").await?;
    execution.cancel();
    execution.cancel();
    let ran = collect_output(execution.subscribe()).await?.ended(&Ending::Cancelled)?;
    execution.cancel();
    same!("the outcome after one more cancel", execution.outcome().await, ran.outcome);
    execution.close().await?;
    kit.soon_all_gone().await
}

async fn read_only(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.read_only = true;
    let room = kit.room_with(spec).await?;
    for verb in [["write", "new", "text"], ["make-link", "target", "link"], ["fill", "new", "10"]] {
        let facts = room.facts(verb).await?;
        check!(facts["ok"] == json!(false), "expected {verb:?} to be refused, saw {facts}");
    }
    let names = room.facts(["list", "."]).await?["names"].clone();
    let holds = |name: &str| names.as_array().is_some_and(|names| names.contains(&json!(name)));
    check!(!holds("new") && !holds("link"), "expected an unchanged workspace, saw {names}");
    check!(!kit.workspace().join("new").exists(), "expected no new file on the host, saw one");
    Ok(())
}

async fn check_concurrent_sandboxes(kit: Kit) -> Verdict {
    let mut starting = tokio::task::JoinSet::new();
    for number in 0..6 {
        let kit = kit.clone();
        starting.spawn(async move { kit.room_with(kit.spec_apart(number)?).await });
    }
    let mut running = Vec::new();
    while let Some(room) = starting.join_next().await {
        let room = room??;
        let tag = format!("{}tag{}", kit.mark(), running.len());
        room.facts(["write", "mine", &tag]).await?;
        let execution = room.start_ready(["sleep", "600000", &tag]).await?;
        running.push((room, tag, execution));
    }
    for (room, own, _) in &running {
        let read = room.facts(["read", "mine"]).await?;
        let hex: String = own.bytes().map(|byte| format!("{byte:02x}")).collect();
        same!("the sandbox's own file", read["hex"], Value::String(hex));
        for (_, other, _) in running.iter().filter(|(_, tag, _)| tag != own) {
            let found = room.facts(["find-process", other]).await?["found"].clone();
            same!("processes of another sandbox that can be seen", found, json!(0));
        }
    }
    Ok(())
}

async fn check_close_releases_all(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let inside = room.start_ready(["ignore-signals-then-sleep", "600000"]).await?;
    let alone = kit.start(kit.spec(), probe_command(["sleep", "600000"])).await?;
    alone.close().await?;
    alone.close().await?;
    kit.engine().close().await?;
    kit.engine().close().await?;
    same!("the end of what still ran", inside.outcome().await.ending, Ending::Cancelled);
    kit.all_gone().await
}
