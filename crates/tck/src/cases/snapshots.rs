//! Pausing, capturing and bringing back (C-13, C-15).

use std::time::Duration;

use serde_json::json;
use stockade_core::{Ending, Feature, SnapshotKind};
use stockade_engine::Subscription;

use crate::case::{case, check, same};
use crate::kit::probe;
use crate::{Case, Kit, Stop, Verdict};

pub(super) const CASES: &[Case] = &[
    case!("a paused sandbox stands still and then goes on", "C-15", pause).needs(&[Feature::Pause]),
    case!("a snapshot of the files brings them back as they were", "C-22", files)
        .needs(&[Feature::FilesSnapshot]),
    case!("a snapshot holds no secret in its name", "C-41", no_secret)
        .needs(&[Feature::FilesSnapshot]),
    case!("a full snapshot brings files back while the program goes on", "C-22", full)
        .needs(&[Feature::FullSnapshot]),
];

/// Longer than many ticks of the probe.
const QUIET: Duration = Duration::from_millis(400);
const SOON: Duration = Duration::from_secs(20);

/// Reads what is still under way until nothing comes any more.
async fn falls_silent(reader: &mut Subscription) -> Verdict {
    let silence = async { while tokio::time::timeout(QUIET, reader.next()).await.is_ok() {} };
    let silent = tokio::time::timeout(SOON, silence).await;
    silent.map_err(|_| Stop::failed("expected silence while paused, but output goes on"))
}

async fn pause(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start(probe(["tick", "60000"])).await?;
    let mut reader = execution.subscribe();
    check!(reader.next().await.is_some(), "expected output before the pause, saw none");
    let sandbox = room.sandbox()?;
    sandbox.pause().await?;
    sandbox.pause().await?;
    falls_silent(&mut reader).await?;
    sandbox.resume().await?;
    sandbox.resume().await?;
    let more = tokio::time::timeout(SOON, reader.next()).await;
    check!(matches!(more, Ok(Some(_))), "expected output after the pause, saw none");
    sandbox.pause().await?;
    execution.close().await?;
    same!("the end of what was paused", execution.outcome().await.ending, Ending::Cancelled);
    room.destroy().await?;
    kit.all_gone().await
}

async fn files(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let snapshot = room.sandbox()?.snapshot(SnapshotKind::Files).await?;
    room.facts(["write", "kept", "after"]).await?;
    room.facts(["write", "new", "after"]).await?;
    room.sandbox()?.restore(&snapshot).await?;
    same!(
        "the file that was changed",
        room.facts(["read", "kept"]).await?["hex"],
        json!("6265666f7265")
    );
    same!("the file that was new", room.facts(["read", "new"]).await?["ok"], json!(false));
    let unknown = room.sandbox()?.restore(&"nosuchsnapshot".parse()?).await;
    check!(unknown.is_err(), "expected an unknown snapshot to be refused, but it was brought back");
    Ok(())
}

async fn no_secret(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.env.insert("TOKEN".parse()?, "hushhush".into());
    let room = kit.room_with(spec).await?;
    let snapshot = room.sandbox()?.snapshot(SnapshotKind::Files).await?;
    check!(!snapshot.as_str().contains("hushhush"), "expected no secret, saw {snapshot}");
    Ok(())
}

async fn full(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let execution = room.start_ready(["sleep", "600000"]).await?;
    let snapshot = room.sandbox()?.snapshot(SnapshotKind::Full).await?;
    room.facts(["write", "kept", "after"]).await?;
    room.sandbox()?.restore(&snapshot).await?;
    same!(
        "the file that was changed",
        room.facts(["read", "kept"]).await?["hex"],
        json!("6265666f7265")
    );
    execution.close().await?;
    same!("the end of what ran all the time", execution.outcome().await.ending, Ending::Cancelled);
    Ok(())
}
