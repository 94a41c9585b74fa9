//! Files from outside: in and out, never beyond the root and never waiting for the guest (C-19, C-21, C-22).

use std::time::Duration;

use bytes::Bytes as Data;
use serde_json::json;
use stockade_core::{EntryKind, ErrorCode, Feature, FilesExt, Result, SandboxPath};

use super::generate_pattern;
use crate::case::{case, check, same};
use crate::{Case, Kit, Room, Stop, Verdict};

const REQUIRED_FEATURES: &[Feature] = &[Feature::FileTransfer];

pub(super) const FILE_CASES: &[Case] = &[
    case!(
        "a file that is written from outside can be read inside",
        "C-22",
        check_write_from_outside
    )
    .needs(REQUIRED_FEATURES),
    case!(
        "a file that is written inside can be read from outside",
        "C-22",
        check_read_from_outside
    )
    .needs(REQUIRED_FEATURES),
    case!("a large binary file goes in and out unchanged", "C-22", check_large_file)
        .needs(REQUIRED_FEATURES),
    case!("many files are listed, each with what it is", "C-22", check_directory_listing)
        .needs(REQUIRED_FEATURES),
    case!(
        "directories are made with those above them, and removed with what is in them",
        "C-22",
        check_directories
    )
    .needs(REQUIRED_FEATURES),
    case!("a file is moved, replacing what is in the way", "C-22", check_rename)
        .needs(REQUIRED_FEATURES),
    case!("a file's permissions are set and move with it", "C-22", set_mode)
        .needs(REQUIRED_FEATURES),
    case!("what is not there is reported as not found", "C-22", check_missing_file)
        .needs(REQUIRED_FEATURES),
    case!(
        "an absolute path from outside names the sandbox's own tree",
        "C-22",
        check_absolute_path
    )
    .needs(REQUIRED_FEATURES)
    .isolation(),
    case!("a link out of the workspace is not followed when reading", "C-21", link_read)
        .needs(REQUIRED_FEATURES)
        .isolation(),
    case!("a link out of the workspace is not followed when writing", "C-21", link_write)
        .needs(REQUIRED_FEATURES)
        .isolation(),
    case!("a link to a directory outside leads nowhere", "C-21", link_directory)
        .needs(REQUIRED_FEATURES)
        .isolation(),
    case!("a link is itself, not what it points to", "C-21", link_is_itself)
        .needs(REQUIRED_FEATURES),
    case!("reading a fifo is refused instead of waiting", "C-19", check_fifo_refused)
        .needs(REQUIRED_FEATURES),
];

fn parse_path(text: &str) -> Verdict<SandboxPath> {
    Ok(text.parse()?)
}

/// Stops the case unless the operation was refused with this code, naming the path.
fn check_refused<T>(answer: Result<T>, code: ErrorCode, path: &str) -> Verdict {
    match answer {
        Ok(_) => Err(Stop::Failed(format!("expected `{path}` to be refused, but it was done"))),
        Err(error) => {
            check!(error.code() == code, "expected {code}, saw {}: {error}", error.code());
            check!(
                error.to_string().contains(path),
                "expected the path in the message, saw {error}"
            );
            Ok(())
        }
    }
}

async fn check_write_from_outside(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    sandbox.files()?.write(&parse_path("given")?, Data::from_static(b"\x00hi"), false).await?;
    sandbox.files()?.write(&parse_path("given")?, Data::from_static(b"\xff!"), true).await?;
    same!("the file inside", room.facts(["read", "given"]).await?["hex"], json!("006869ff21"));
    sandbox.files()?.write(&parse_path("given")?, Data::from_static(b"new"), false).await?;
    same!(
        "the file after it was replaced",
        room.facts(["read", "given"]).await?["hex"],
        json!("6e6577")
    );
    Ok(())
}

async fn check_read_from_outside(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.facts(["write", "made", "inside"]).await?;
    let sandbox = room.sandbox()?;
    let read = sandbox.files()?.read_all(&parse_path("made")?, 100).await?;
    same!("the file from outside", String::from_utf8_lossy(&read), "inside");
    let part = sandbox.files()?.read(&parse_path("made")?, 2, 3).await?;
    same!("a part of it", &part[..], &b"sid"[..]);
    let past = sandbox.files()?.read(&parse_path("made")?, 100, 3).await?;
    same!("what is past its end", past.len(), 0);
    Ok(())
}

async fn check_large_file(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let whole = generate_pattern((9 << 20) + 13);
    sandbox.files()?.write_all(&parse_path("large")?, Data::from(whole.clone())).await?;
    same!("its size inside", room.facts(["stat", "large"]).await?["size"], json!(whole.len()));
    let back = sandbox.files()?.read_all(&parse_path("large")?, 100 << 20).await?;
    check!(back == whole, "expected the same bytes back, saw {} others", back.len());
    let error = sandbox.files()?.read_all(&parse_path("large")?, 1000).await.map(|data| data.len());
    check_refused(error, ErrorCode::TooLarge, "large")
}

async fn check_directory_listing(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let files = sandbox.files()?;
    files.make_dir(&parse_path("many/below")?).await?;
    for number in 0..300usize {
        files
            .write(&parse_path(&format!("many/{number}"))?, Data::from(vec![0; number]), false)
            .await?;
    }
    let mut entries = files.list(&parse_path("many")?).await?;
    same!("how many there are", entries.len(), 301);
    entries.sort_by(|one, two| one.name.cmp(&two.name));
    let found = |name: &str| {
        entries.iter().find(|entry| entry.name == name).map(|entry| (entry.kind, entry.size))
    };
    same!("a file among them", found("217"), Some((EntryKind::File, 217)));
    same!(
        "the directory among them",
        found("below").map(|(kind, _)| kind),
        Some(EntryKind::Directory)
    );
    Ok(())
}

async fn check_directories(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let files = sandbox.files()?;
    files.make_dir(&parse_path("a/b/c")?).await?;
    files.make_dir(&parse_path("a/b/c")?).await?;
    files.write(&parse_path("a/b/c/file")?, Data::from_static(b"x"), false).await?;
    same!("the file inside", room.facts(["read", "a/b/c/file"]).await?["ok"], json!(true));
    files.remove(&parse_path("a")?).await?;
    files.remove(&parse_path("a")?).await?;
    same!(
        "the file inside after it was removed",
        room.facts(["read", "a/b/c/file"]).await?["ok"],
        json!(false)
    );
    Ok(())
}

async fn check_rename(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let files = sandbox.files()?;
    files.write(&parse_path("from")?, Data::from_static(b"one"), false).await?;
    files.write(&parse_path("to")?, Data::from_static(b"two"), false).await?;
    files.rename(&parse_path("from")?, &parse_path("to")?).await?;
    same!("what is there now", files.read_all(&parse_path("to")?, 10).await?, b"one".to_vec());
    check_refused(files.stat(&parse_path("from")?).await, ErrorCode::NotFound, "from")
}

async fn set_mode(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let files = sandbox.files()?;
    files.write(&parse_path("from")?, Data::from_static(b"one"), false).await?;
    files.set_mode(&parse_path("from")?, 0o4750).await?;
    files.rename(&parse_path("from")?, &parse_path("to")?).await?;
    same!("its permissions", files.stat(&parse_path("to")?).await?.mode, 0o750);
    check_refused(
        files.set_mode(&parse_path("absent")?, 0o600).await,
        ErrorCode::NotFound,
        "absent",
    )
}

async fn check_missing_file(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let files = sandbox.files()?;
    check_refused(files.stat(&parse_path("absent")?).await, ErrorCode::NotFound, "absent")?;
    check_refused(files.read(&parse_path("absent")?, 0, 1).await, ErrorCode::NotFound, "absent")?;
    check_refused(files.list(&parse_path("absent")?).await, ErrorCode::NotFound, "absent")
}

async fn check_absolute_path(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    room.facts(["write", "here", "text"]).await?;
    let whole = format!("{}/here", stockade_core::WORKSPACE_ROOT);
    let read = sandbox.files()?.read_all(&parse_path(&whole)?, 100).await?;
    same!("the workspace's file by its absolute path", String::from_utf8_lossy(&read), "text");
    let secret = kit.outside().join("secret");
    std::fs::write(&secret, "secret")?;
    let answer = sandbox.files()?.read(&parse_path(&secret.to_string_lossy())?, 0, 100).await;
    check!(answer.is_err(), "expected no host file, saw {answer:?}");
    Ok(())
}

/// A file that the sandbox was not given, for a link to point to.
fn write_secret_file(kit: &Kit) -> Verdict<String> {
    let secret = kit.outside().join("secret");
    std::fs::write(&secret, "secret")?;
    Ok(secret.to_string_lossy().into_owned())
}

/// A link in the workspace: made inside, or, where that is refused already there, by the host.
async fn plant_link(kit: &Kit, room: &Room, target: &str, name: &str) -> Verdict {
    let made = room.facts(["make-link", target, name]).await?;
    if kit.is_wasm() && made["ok"] == json!(false) {
        std::os::unix::fs::symlink(target, kit.workspace().join(name))?;
    }
    Ok(())
}

async fn link_read(kit: Kit) -> Verdict {
    let secret = write_secret_file(&kit)?;
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    for (name, target) in [
        ("whole", secret.as_str()),
        ("up", "../../../../../../etc/hostname"),
        ("etc", "/etc/hostname"),
    ] {
        plant_link(&kit, &room, target, name).await?;
        check_refused(
            sandbox.files()?.read(&parse_path(name)?, 0, 100).await,
            ErrorCode::PathEscapes,
            name,
        )?;
    }
    Ok(())
}

async fn link_write(kit: Kit) -> Verdict {
    let secret = write_secret_file(&kit)?;
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    plant_link(&kit, &room, &secret, "link").await?;
    let answer =
        sandbox.files()?.write(&parse_path("link")?, Data::from_static(b"changed"), false).await;
    same!("the host's file", std::fs::read_to_string(&secret)?, "secret");
    check_refused(answer, ErrorCode::PathEscapes, "link")
}

async fn link_directory(kit: Kit) -> Verdict {
    write_secret_file(&kit)?;
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    plant_link(&kit, &room, &kit.outside().to_string_lossy(), "link").await?;
    let inner = "link/secret";
    check_refused(
        sandbox.files()?.read(&parse_path(inner)?, 0, 100).await,
        ErrorCode::PathEscapes,
        inner,
    )?;
    check_refused(
        sandbox.files()?.list(&parse_path("link")?).await,
        ErrorCode::PathEscapes,
        "link",
    )?;
    let answer = sandbox.files()?.make_dir(&parse_path("link/new")?).await;
    check!(!kit.outside().join("new").exists(), "expected no directory on the host, saw one");
    check_refused(answer, ErrorCode::PathEscapes, "link/new")
}

async fn link_is_itself(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    room.facts(["write", "target", "text"]).await?;
    room.facts(["make-link", "target", "link"]).await?;
    same!(
        "the link's kind",
        sandbox.files()?.stat(&parse_path("link")?).await?.kind,
        EntryKind::Symlink
    );
    let read = sandbox.files()?.read_all(&parse_path("link")?, 100).await?;
    same!("a link within the workspace, read", String::from_utf8_lossy(&read), "text");
    sandbox.files()?.remove(&parse_path("link")?).await?;
    same!("what it pointed to", room.facts(["read", "target"]).await?["ok"], json!(true));
    Ok(())
}

async fn check_fifo_refused(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let sandbox = room.sandbox()?;
    let made = room.facts(["make-fifo", "fifo"]).await?;
    if kit.is_wasm() {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let (kind, at) = (rustix::fs::FileType::Fifo, kit.workspace().join("fifo"));
        rustix::fs::mknodat(rustix::fs::CWD, at, kind, mode, 0)?;
    } else {
        same!("whether the fifo could be made", made["ok"], json!(true));
    }
    let name = parse_path("fifo")?;
    let read = sandbox.files()?.read(&name, 0, 1);
    let answer = tokio::time::timeout(Duration::from_secs(10), read).await;
    let answer =
        answer.map_err(|_| Stop::failed("expected an answer, but reading a fifo waits"))?;
    check_refused(answer, ErrorCode::Invalid, "fifo")?;
    same!("its kind", sandbox.files()?.stat(&name).await?.kind, EntryKind::Other);
    Ok(())
}
