//! Output: apart, in order, byte for byte, bounded, for any number of readers (C-12, C-13).

use bytes::Bytes as Data;
use stockade_core::{Bytes, Span, StreamId};
use stockade_engine::{HistoryBounds, OutputEvent};

use super::generate_pattern;
use crate::case::{case, check, same};
use crate::kit::{collect_output, probe_command};
use crate::{Case, Kit, Verdict};

pub(super) const OUTPUT_CASES: &[Case] = &[
    case!("standard output and standard error stay apart", "C-13", check_streams_separate),
    case!("every byte value arrives as it was written", "C-13", check_binary_output),
    case!("64 MiB of output arrive byte for byte", "C-13", check_large_output),
    case!("pieces keep their order and are numbered without a gap", "C-13", check_output_order),
    case!("the last bytes before the exit arrive", "C-13", last_bytes),
    case!(
        "a reader who comes after the end gets the history and the outcome",
        "C-13",
        check_late_reader
    ),
    case!("two readers see the same", "C-13", two_readers),
    case!(
        "a reader who does not read slows nobody and learns what was missed",
        "C-13",
        check_slow_reader
    ),
    case!("the cap holds for both streams together", "C-12", cap_together),
    case!("a program beyond its cap runs on and its exit is kept", "C-12", beyond_the_cap),
    case!("a cap of nothing passes nothing on", "C-12", cap_of_nothing),
];

async fn check_streams_separate(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let ran = room.run(["print", "stdout", "to out"]).await?.exited(0)?;
    same!(
        "a line for standard output",
        (&ran.stdout[..], &ran.stderr[..]),
        (&b"to out"[..], &b""[..])
    );
    let ran = room.run(["print", "stderr", "to err"]).await?.exited(0)?;
    same!(
        "a line for standard error",
        (&ran.stdout[..], &ran.stderr[..]),
        (&b""[..], &b"to err"[..])
    );
    Ok(())
}

async fn check_binary_output(kit: Kit) -> Verdict {
    let all: Vec<u8> = (0..=255).chain(*b"\r\n\n\r\0\xff\xfe\xc3").collect();
    let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
    let room = kit.room().await?;
    let ran = room.run(["print-hex", "stdout", &hex]).await?.exited(0)?;
    same!("standard output", ran.stdout, all);
    let ran = room.run(["print-hex", "stderr", &hex]).await?.exited(0)?;
    same!("standard error", ran.stderr, all);
    Ok(())
}

/// Size of a large output that has to arrive whole.
const LARGE_OUTPUT_BYTES: usize = 64 << 20;

async fn check_large_output(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.output = Some(Bytes(LARGE_OUTPUT_BYTES as u64));
    // Judged by its bytes, not by its pace.
    spec.limits.wall_time = Some(Span::secs(600));
    let ran = kit
        .run_with(spec, probe_command(["flood", "stdout", &LARGE_OUTPUT_BYTES.to_string()]))
        .await?
        .exited(0)?;
    same!("the number of bytes", ran.stdout.len(), LARGE_OUTPUT_BYTES);
    check!(
        ran.stdout == generate_pattern(LARGE_OUTPUT_BYTES),
        "expected the pattern in every byte, saw another"
    );
    same!(
        "bytes passed on and dropped",
        (ran.outcome.stdout.bytes, ran.outcome.stdout.dropped),
        (LARGE_OUTPUT_BYTES as u64, 0)
    );
    Ok(())
}

async fn check_output_order(kit: Kit) -> Verdict {
    let ran = kit.run(["interleave", "400"]).await?.exited(0)?;
    let lines = |from: u32| {
        (0..400).filter(|n| n % 2 == from).map(|n| format!("{n}\n")).collect::<String>()
    };
    same!("standard output", String::from_utf8_lossy(&ran.stdout), lines(0));
    same!("standard error", String::from_utf8_lossy(&ran.stderr), lines(1));
    check!(ran.pieces.len() >= 2, "expected several pieces, saw {:?}", ran.pieces);
    Ok(())
}

async fn last_bytes(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    for round in 0..20 {
        let ran = room.run(["flood", "stdout", "70001", "70000"]).await?.exited(0)?;
        same!(format!("bytes in round {round}"), ran.stdout.len(), 70_001);
    }
    Ok(())
}

async fn check_late_reader(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start(probe_command(["flood", "stdout", "5000", "100"])).await?;
    let outcome = execution.outcome().await;
    for _ in 0..3 {
        let ran = collect_output(execution.subscribe()).await?;
        check!(
            ran.stdout == generate_pattern(5000),
            "expected the whole history, saw {} bytes",
            ran.stdout.len()
        );
        same!("the outcome", ran.outcome, outcome);
    }
    Ok(())
}

async fn two_readers(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start(probe_command(["interleave", "200"])).await?;
    let (one, two) =
        tokio::join!(collect_output(execution.subscribe()), collect_output(execution.follow()));
    let (one, two) = (one?, two?);
    same!("what the second reader saw", (two.stdout, two.stderr), (one.stdout, one.stderr));
    same!("the order it came in", two.pieces, one.pieces);
    Ok(())
}

/// Size of the output that a fast and a stalled reader follow.
const FLOOD_BYTES: u64 = 8 << 20;

async fn check_slow_reader(kit: Kit) -> Verdict {
    let bounds = HistoryBounds { events: 1000, bytes: 256 << 10 };
    let engine = kit.another_engine(|config| config.history = bounds).await?;
    let id = engine.create(kit.spec()).await?;
    kit.equip(&engine, &id).await?;
    let command = probe_command(["flood", "stdout", &FLOOD_BYTES.to_string()]);
    let (execution, fast) = engine.exec_followed(&id, command).await?;
    let mut stalled = execution.subscribe();
    let ran = collect_output(fast).await?.exited(0)?;
    same!("bytes the fast reader saw", ran.stdout.len() as u64, FLOOD_BYTES);
    check!(
        ran.stdout == generate_pattern(FLOOD_BYTES as usize),
        "expected the pattern in every byte, saw another"
    );
    let (mut seen, mut missed) = (0, 0);
    while let Some(event) = stalled.next().await {
        match event {
            OutputEvent::Output { data, .. } => seen += data.len() as u64,
            OutputEvent::Gap { bytes, .. } => missed += bytes,
            OutputEvent::End(_) => {}
        }
    }
    engine.close().await?;
    same!("bytes the stalled reader saw and missed", seen + missed, FLOOD_BYTES);
    check!(seen <= 256 << 10, "expected at most the bounded history, saw {seen} bytes");
    Ok(())
}

async fn cap_together(kit: Kit) -> Verdict {
    let mut command = probe_command(["interleave", "2000"]);
    command.output = Some(Bytes(1000));
    let ran = kit.run_with(kit.spec(), command).await?.exited(0)?;
    same!("bytes passed on", ran.stdout.len() + ran.stderr.len(), 1000);
    let (out, err) = (ran.outcome.stdout, ran.outcome.stderr);
    same!("bytes in all", out.bytes + out.dropped + err.bytes + err.dropped, 8890);
    check!(out.dropped > 0 && err.dropped > 0, "expected both to be cut, saw {out:?} {err:?}");
    Ok(())
}

async fn beyond_the_cap(kit: Kit) -> Verdict {
    let mut command = probe_command(["flood", "stderr", "40000000"]);
    command.output = Some(Bytes(1));
    let ran = kit.run_with(kit.spec(), command).await?.exited(0)?;
    same!("bytes dropped", ran.outcome.stderr.dropped, 39_999_999);
    same!("the piece that was passed on", ran.pieces, vec![(StreamId::Stderr, 1)]);
    Ok(())
}

async fn cap_of_nothing(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.limits.output = Some(Bytes(0));
    let ran = kit.run_with(spec, probe_command(["print", "stdout", "hello"])).await?.exited(0)?;
    same!("what arrived", Data::from(ran.stdout), Data::new());
    same!("bytes dropped", ran.outcome.stdout.dropped, 5);
    Ok(())
}
