//! Input: none, all at once, piece by piece (C-10, C-13).

use bytes::Bytes as Data;
use stockade_core::{Feature, Stdin};

use super::generate_pattern;
use crate::case::{case, check, same};
use crate::kit::{collect_output, probe_command, wait_for_output};
use crate::{Case, Kit, Verdict};

pub(super) const STDIN_CASES: &[Case] = &[
    case!("a program without input reads its end at once", "C-10", check_empty_stdin),
    case!(
        "input given with the command arrives byte for byte, then its end",
        "C-13",
        check_stdin_bytes
    )
    .needs(&[Feature::Stdin]),
    case!("input written piece by piece arrives in order", "C-13", check_stdin_stream)
        .needs(&[Feature::Stdin]),
    case!("a program that does not read its input ends all the same", "C-10", check_unread_stdin)
        .needs(&[Feature::Stdin]),
    case!("closing the input twice, or after the end, does no harm", "C-15", close_twice)
        .needs(&[Feature::Stdin]),
];

async fn check_empty_stdin(kit: Kit) -> Verdict {
    let ran = kit.run(["echo"]).await?.exited(0)?;
    same!("what came back", ran.stdout, Vec::<u8>::new());
    Ok(())
}

async fn check_stdin_bytes(kit: Kit) -> Verdict {
    let given: Vec<u8> =
        generate_pattern(3 << 20).into_iter().chain(*b"\r\n\0\x04\x1a\xff").collect();
    let mut command = probe_command(["echo"]);
    command.stdin = Stdin::Bytes(given.clone());
    let ran = kit.run_with(kit.spec(), command).await?.exited(0)?;
    same!("the number of bytes", ran.stdout.len(), given.len());
    check!(ran.stdout == given, "expected the same bytes back, saw others");
    Ok(())
}

async fn check_stdin_stream(kit: Kit) -> Verdict {
    let mut command = probe_command(["echo"]);
    command.stdin = Stdin::Stream;
    let execution = kit.start(kit.spec(), command).await?;
    let mut reader = execution.subscribe();
    for piece in ["first ", "second ", "third"] {
        execution.write_stdin(Data::from_static(piece.as_bytes())).await?;
        wait_for_output(&mut reader, piece).await?;
    }
    execution.close_stdin().await?;
    let ran = collect_output(execution.subscribe()).await?.exited(0)?;
    same!("what came back", String::from_utf8_lossy(&ran.stdout), "first second third");
    Ok(())
}

async fn check_unread_stdin(kit: Kit) -> Verdict {
    let mut command = probe_command(["exit", "3"]);
    command.stdin = Stdin::Bytes(generate_pattern(4 << 20));
    kit.run_with(kit.spec(), command).await?.exited(3)?;
    Ok(())
}

async fn close_twice(kit: Kit) -> Verdict {
    let mut command = probe_command(["echo"]);
    command.stdin = Stdin::Stream;
    let execution = kit.start(kit.spec(), command).await?;
    execution.close_stdin().await?;
    execution.close_stdin().await?;
    collect_output(execution.subscribe()).await?.exited(0)?;
    execution.close_stdin().await?;
    Ok(())
}
