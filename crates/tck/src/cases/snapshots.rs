//! Pausing, capturing and bringing back (C-13, C-15).

use std::time::Duration;

use serde_json::json;
use stockade_core::{Ending, Feature, Mount, SnapshotKind};
use stockade_engine::{Execution, Subscription};

use crate::case::{case, check, same};
use crate::kit::{host_path, probe_command};
use crate::{Case, Kit, Room, Stop, Verdict};

pub(super) const SNAPSHOT_CASES: &[Case] = &[
    case!("a paused sandbox stands still and then goes on", "C-15", check_pause_and_resume)
        .needs(&[Feature::Pause]),
    case!("a snapshot of the files brings them back as they were", "C-22", check_files_snapshot)
        .needs(&[Feature::FilesSnapshot]),
    case!("a snapshot of the files holds every private place", "C-22", private_places)
        .needs(&[Feature::FilesSnapshot, Feature::HostImage])
        .isolation(),
    case!("a snapshot says nothing that is secret", "C-41", no_secret)
        .needs(&[Feature::FilesSnapshot]),
    case!(
        "a full snapshot brings files back while the program goes on",
        "C-22",
        check_full_snapshot
    )
    .needs(&[Feature::FullSnapshot]),
    case!("a sandbox made from a snapshot has its files and shares none", "C-17", made_from)
        .needs(&[Feature::FilesSnapshot]),
    case!("copies of a live sandbox are different machines", "C-17", check_forked_copies)
        .needs(&[Feature::FilesSnapshot]),
    case!(
        "a snapshot in which a byte was changed is not brought back",
        "C-22",
        check_tampered_snapshot
    )
    .needs(&[Feature::FilesSnapshot]),
    case!(
        "a snapshot names no path, mount or given-up feature of its host",
        "C-05",
        no_host_things
    )
    .needs(&[Feature::FilesSnapshot]),
];

/// Ticks heard from another sandbox before one without output counts as silent.
const SILENCE_TICKS: u32 = 40;
/// Timeout for output to stop after a pause, and to come again after a resume.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(20);

/// Reads what is still under way until nothing comes any more while another program is heard: a machine that
/// is slow is so for both.
async fn falls_silent(reader: &mut Subscription, other: &mut Subscription) -> Verdict {
    let silence = async {
        let mut ticks = 0;
        while ticks < SILENCE_TICKS {
            let heard = tokio::select! {
                biased;
                said = reader.next() => { ticks = 0; said.is_some() }
                tick = other.next() => { ticks += 1; tick.is_some() }
            };
            check!(heard, "expected both programs to run on, but one has ended");
        }
        Ok(())
    };
    let silent = tokio::time::timeout(OUTPUT_TIMEOUT, silence).await;
    silent.map_err(|_| Stop::failed("expected silence while paused, but output goes on"))?
}

async fn check_pause_and_resume(kit: Kit) -> Verdict {
    let (room, elsewhere) = (kit.room().await?, kit.room().await?);
    let execution = room.start(probe_command(["tick", "60000"])).await?;
    let clock = elsewhere.start(probe_command(["tick", "60000"])).await?;
    let (mut reader, mut other) = (execution.subscribe(), clock.subscribe());
    check!(reader.next().await.is_some(), "expected output before the pause, saw none");
    let sandbox = room.sandbox()?;
    check!(!sandbox.is_paused(), "expected a sandbox that goes on, but it says it is paused");
    sandbox.pause().await?;
    sandbox.pause().await?;
    falls_silent(&mut reader, &mut other).await?;
    check!(sandbox.is_paused(), "expected a paused sandbox, but it says that it goes on");
    sandbox.resume().await?;
    sandbox.resume().await?;
    check!(!sandbox.is_paused(), "expected a sandbox that goes on, but it says it is paused");
    let more = tokio::time::timeout(OUTPUT_TIMEOUT, reader.next()).await;
    check!(matches!(more, Ok(Some(_))), "expected output after the pause, saw none");
    check_end_while_paused(&room, &execution, &mut other).await?;
    clock.close().await?;
    elsewhere.destroy().await?;
    room.destroy().await?;
    kit.all_gone().await
}

/// Ends one of two programs while they are paused. Whether that resumes the other is the backend's business: what it
/// says is so.
async fn check_end_while_paused(
    room: &Room,
    execution: &Execution,
    clock: &mut Subscription,
) -> Verdict {
    let staying = room.start(probe_command(["tick", "60000"])).await?;
    let mut reader = staying.subscribe();
    check!(reader.next().await.is_some(), "expected output of a second program, saw none");
    let sandbox = room.sandbox()?;
    sandbox.pause().await?;
    execution.close().await?;
    same!("the end of what was paused", execution.outcome().await.ending, Ending::Cancelled);
    if sandbox.is_paused() {
        // Old ticks tell nothing about silence from now on.
        while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, clock.next()).await {}
        falls_silent(&mut reader, clock).await?;
        sandbox.resume().await?;
    }
    room.run(["exit", "5"]).await?.exited(5)?;
    Ok(staying.close().await?)
}

async fn check_files_snapshot(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let snapshot = room.snapshot(SnapshotKind::Files).await?;
    room.facts(["write", "kept", "after"]).await?;
    room.facts(["write", "new", "after"]).await?;
    room.restore(&snapshot.id).await?;
    same!(
        "the file that was changed",
        room.facts(["read", "kept"]).await?["hex"],
        json!("6265666f7265")
    );
    same!("the file that was new", room.facts(["read", "new"]).await?["ok"], json!(false));
    let unknown = room.restore(&"nosuchsnapshot".parse()?).await;
    check!(unknown.is_err(), "expected an unknown snapshot to be refused, but it was brought back");
    Ok(())
}

/// Private writable directories of every sandbox (C-03).
const PRIVATE_WRITABLE_DIRS: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/home/sandbox", "/dev/shm"];

async fn private_places(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let files = PRIVATE_WRITABLE_DIRS.map(|place| format!("{place}/{}", kit.mark()));
    let verdict = check_files_restored(&room, &files).await;
    for file in &files {
        // Without walls they are the host's. Elsewhere they go with the sandbox.
        let _ = room.facts(["remove", file]).await;
    }
    verdict
}

async fn check_files_restored(room: &Room, files: &[String]) -> Verdict {
    for file in files {
        let written = room.facts(["write", file, "before"]).await?;
        check!(written["ok"] == json!(true), "expected to write {file}, saw {written}");
    }
    let snapshot = room.snapshot(SnapshotKind::Files).await?;
    for file in files {
        room.facts(["remove", file]).await?;
    }
    room.restore(&snapshot.id).await?;
    for file in files {
        same!(file, room.facts(["read", file]).await?["hex"], json!("6265666f7265"));
    }
    Ok(())
}

async fn made_from(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let snapshot = room.snapshot(SnapshotKind::Files).await?;
    room.facts(["write", "kept", "after"]).await?;
    let copy = kit.room_from(&snapshot.id).await?;
    same!("the file there", copy.facts(["read", "kept"]).await?["hex"], json!("6265666f7265"));
    copy.facts(["write", "kept", "copy"]).await?;
    same!("the file here", room.facts(["read", "kept"]).await?["hex"], json!("6166746572"));
    room.destroy().await?;
    same!("the copy's", copy.facts(["read", "kept"]).await?["hex"], json!("636f7079"));
    copy.destroy().await?;
    kit.all_gone().await
}

async fn check_forked_copies(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let copies = room.fork(3).await?;
    for (number, copy) in copies.iter().enumerate() {
        let seen = copy.facts(["read", "kept"]).await?;
        same!("what was there", seen["hex"], json!("6265666f7265"));
        copy.facts(["write", "kept", &number.to_string()]).await?;
    }
    for (number, copy) in copies.iter().enumerate() {
        let own = format!("3{number}");
        same!("its own file", copy.facts(["read", "kept"]).await?["hex"], json!(own));
    }
    let seen = room.facts(["read", "kept"]).await?;
    same!("the file of the one that was copied", seen["hex"], json!("6265666f7265"));
    let listing = kit.engine().snapshots().list()?;
    check!(listing.snapshots.is_empty(), "expected no snapshot to be left, saw {listing:?}");
    for copy in copies {
        copy.destroy().await?;
    }
    room.destroy().await?;
    kit.all_gone().await
}

async fn check_tampered_snapshot(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let snapshot = room.snapshot(SnapshotKind::Files).await?;
    room.facts(["write", "kept", "after"]).await?;
    let parts = kit.engine().snapshots().parts(&snapshot)?;
    let largest = parts.files.values().max_by_key(|path| path.metadata().map_or(0, |it| it.len()));
    let path = largest.ok_or_else(|| Stop::failed("expected parts, saw none"))?;
    let mut bytes = std::fs::read(path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::remove_file(path)?;
    std::fs::write(path, bytes)?;
    let brought_back = room.restore(&snapshot.id).await;
    check!(brought_back.is_err(), "expected it to be refused, but it was brought back");
    same!("the file", room.facts(["read", "kept"]).await?["hex"], json!("6166746572"));
    check!(kit.room_from(&snapshot.id).await.is_err(), "expected no sandbox to be made from it");
    Ok(())
}

async fn no_secret(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.env.insert("TOKEN".parse()?, "hushhush".into());
    let room = kit.room_with(spec).await?;
    let snapshot = room.snapshot(SnapshotKind::Files).await?;
    let told = format!("{snapshot:?}");
    check!(!told.contains("hushhush"), "expected no secret, saw {told}");
    Ok(())
}

async fn check_full_snapshot(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "kept", "before"]).await?;
    let execution = room.start_ready(["sleep", "600000"]).await?;
    let snapshot = room.snapshot(SnapshotKind::Full).await?;
    room.facts(["write", "kept", "after"]).await?;
    room.restore(&snapshot.id).await?;
    same!(
        "the file that was changed",
        room.facts(["read", "kept"]).await?["hex"],
        json!("6265666f7265")
    );
    execution.close().await?;
    same!("the end of what ran all the time", execution.outcome().await.ending, Ending::Cancelled);
    Ok(())
}

async fn no_host_things(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.without.insert(Feature::DiskLimit);
    if kit.has(Feature::ExtraMounts) {
        let source = host_path(&kit.outside())?;
        spec.mounts = vec![Mount { source, target: "/mounted".parse()?, read_only: true }];
    }
    let room = kit.room_with(spec).await?;
    let snapshot = room.snapshot(SnapshotKind::Files).await?;
    same!("what only a caller may say", snapshot.spec.caller_only(), Vec::<&str>::new());
    let told = serde_json::to_string(&snapshot)?;
    for path in [kit.outside(), kit.workspace()] {
        let path = path.to_string_lossy().into_owned();
        check!(!told.contains(&path), "expected no path of the host in the snapshot, saw {path}");
    }
    Ok(())
}
