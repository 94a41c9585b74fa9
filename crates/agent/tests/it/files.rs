//! File operations under a real agent.
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common;
use crate::common::{Agent, connect, connected, path, run, sh, status, test};
use bytes::Bytes;
use stockade_agent::client::{AgentClient, WatchKind};
use stockade_core::{EntryKind, ErrorCode, ExitStatus, FilesExt, Result, SandboxPath};

fn code<T>(result: Result<T>) -> ErrorCode {
    result.err().expect("it succeeded").code()
}

#[test]
fn what_is_written_is_read_back() {
    test(async {
        let (agent, client) = connected().await;
        let files = client.files();
        let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
        files.write_all(&path("big"), Bytes::from(bytes.clone())).await.unwrap();
        assert!(std::fs::read(agent.path("big")).unwrap() == bytes);
        assert!(files.read_all(&path("big"), 5_000_000).await.unwrap() == bytes);
        assert_eq!(code(files.read_all(&path("big"), 4_000_000).await), ErrorCode::TooLarge);
        assert_eq!(files.read(&path("big"), 250, 3).await.unwrap(), &[250, 0, 1][..]);
        assert!(files.read(&path("big"), 9_000_000, 10).await.unwrap().is_empty());
        files.write(&path("big"), Bytes::from_static(b"short"), false).await.unwrap();
        files.write(&path("big"), Bytes::from_static(b"er"), true).await.unwrap();
        assert_eq!(std::fs::read(agent.path("big")).unwrap(), b"shorter");
        files.write(&path("empty"), Bytes::new(), false).await.unwrap();
        assert_eq!(files.stat(&path("empty")).await.unwrap().size, 0);
    });
}

#[test]
fn stat_sees_what_is_there_and_not_what_a_link_points_to() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::write(agent.path("file"), "12345").unwrap();
        std::fs::set_permissions(agent.path("file"), PermissionsExt::from_mode(0o640)).unwrap();
        symlink("/etc/passwd", agent.path("link")).unwrap();
        let file = client.files().stat(&path("file")).await.unwrap();
        assert_eq!((file.name.as_str(), file.kind, file.size), ("file", EntryKind::File, 5));
        assert_eq!(file.mode, 0o640);
        let link = client.files().stat(&path("link")).await.unwrap();
        assert_eq!(link.kind, EntryKind::Symlink);
        assert_eq!(client.files().stat(&path("/dev/null")).await.unwrap().kind, EntryKind::Other);
        assert_eq!(client.files().stat(&path(".")).await.unwrap().kind, EntryKind::Directory);
        assert_eq!(code(client.files().stat(&path("missing")).await), ErrorCode::NotFound);
    });
}

#[test]
fn absolute_paths_name_the_whole_tree() {
    test(async {
        let (agent, client) = connected().await;
        let whole = agent.path("there").to_str().unwrap().to_owned();
        client.files().write(&path(&whole), Bytes::from_static(b"x"), false).await.unwrap();
        assert_eq!(client.files().read(&path("there"), 0, 9).await.unwrap(), &b"x"[..]);
    });
}

#[test]
fn links_that_leave_the_workspace_are_refused_by_name() {
    test(async {
        let (agent, client) = connected().await;
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        symlink(outside.path(), agent.path("out")).unwrap();
        symlink("..", agent.path("up")).unwrap();
        symlink(outside.path().join("secret"), agent.path("direct")).unwrap();
        let files = client.files();
        for name in ["out/secret", "direct", "up/x"] {
            let error = files.read(&path(name), 0, 10).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::PathEscapes, "{name}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        let data = Bytes::from_static(b"x");
        assert_eq!(
            code(files.write(&path("out/new"), data.clone(), false).await),
            ErrorCode::PathEscapes
        );
        assert_eq!(code(files.write(&path("direct"), data, false).await), ErrorCode::PathEscapes);
        assert_eq!(code(files.list(&path("out")).await), ErrorCode::PathEscapes);
        assert_eq!(code(files.make_dir(&path("out/new")).await), ErrorCode::PathEscapes);
        assert_eq!(code(files.remove(&path("out/secret")).await), ErrorCode::PathEscapes);
        assert_eq!(
            code(files.rename(&path("out/secret"), &path("got")).await),
            ErrorCode::PathEscapes
        );
        assert_eq!(code(client.watch(&path("out")).await), ErrorCode::PathEscapes);
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    });
}

#[test]
fn a_race_with_a_link_is_never_won() {
    test(async {
        let (agent, client) = connected().await;
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), "outside").unwrap();
        std::fs::create_dir(agent.path("real")).unwrap();
        std::fs::write(agent.path("real/file"), "inside").unwrap();
        symlink("real", agent.path("turn")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (workspace, target) = (agent.workspace.path().to_owned(), outside.path().to_owned());
        let racing = stop.clone();
        let racer = std::thread::spawn(move || {
            while !racing.load(Ordering::Relaxed) {
                for to in [target.as_path(), std::path::Path::new("real")] {
                    let _ = std::fs::remove_file(workspace.join("next"));
                    symlink(to, workspace.join("next")).unwrap();
                    std::fs::rename(workspace.join("next"), workspace.join("turn")).unwrap();
                }
            }
        });
        for _ in 0..2000 {
            match client.files().read(&path("turn/file"), 0, 100).await {
                Ok(data) => assert_eq!(data, &b"inside"[..]),
                Err(error) => assert_eq!(error.code(), ErrorCode::PathEscapes, "{error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        racer.join().unwrap();
    });
}

#[test]
fn magic_links_lead_nowhere() {
    test(async {
        let (_agent, client) = connected().await;
        let error = client.files().read(&path("/proc/self/exe"), 0, 10).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Invalid, "{error}");
    });
}

#[test]
fn only_regular_files_are_read_and_written() {
    test(async {
        let (agent, client) = connected().await;
        run(&client, &sh("mkfifo fifo; mkdir dir")).await;
        let _socket = std::os::unix::net::UnixListener::bind(agent.path("socket")).unwrap();
        for (name, what) in
            [("fifo", "fifo"), ("dir", "directory"), ("socket", "socket"), ("/dev/zero", "device")]
        {
            for error in [
                client.files().read(&path(name), 0, 10).await.unwrap_err(),
                client
                    .files()
                    .write(&path(name), Bytes::from_static(b"x"), true)
                    .await
                    .unwrap_err(),
            ] {
                assert_eq!(error.code(), ErrorCode::Invalid, "{error}");
                assert!(error.to_string().contains(what), "{error}");
            }
        }
    });
}

#[test]
fn directories_are_made_and_listed() {
    test(async {
        let (agent, client) = connected().await;
        let files = client.files();
        files.make_dir(&path("a/b/c")).await.unwrap();
        files.make_dir(&path("a/b/c")).await.unwrap();
        assert!(agent.path("a/b/c").is_dir());
        std::fs::write(agent.path("file"), "").unwrap();
        assert_eq!(code(files.make_dir(&path("file")).await), ErrorCode::Invalid);
        assert_eq!(code(files.make_dir(&path("file/x")).await), ErrorCode::Invalid);
        for i in 0..3000 {
            std::fs::write(agent.path(&format!("a/{i:0200}")), "").unwrap();
        }
        let mut entries = files.list(&path("a")).await.unwrap();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        assert_eq!(entries.len(), 3001);
        assert_eq!(entries[17].name, format!("{:0200}", 17));
        assert_eq!((entries[3000].name.as_str(), entries[3000].kind), ("b", EntryKind::Directory));
        assert!(files.list(&path("a/b/c")).await.unwrap().is_empty());
        assert_eq!(code(files.list(&path("file")).await), ErrorCode::Invalid);
        assert_eq!(code(files.list(&path("missing")).await), ErrorCode::NotFound);
    });
}

#[test]
fn files_are_moved() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::write(agent.path("one"), "1").unwrap();
        std::fs::write(agent.path("two"), "2").unwrap();
        client.files().rename(&path("one"), &path("two")).await.unwrap();
        assert!(!agent.path("one").exists());
        assert_eq!(std::fs::read(agent.path("two")).unwrap(), b"1");
        let missing = client.files().rename(&path("one"), &path("two")).await;
        assert_eq!(code(missing), ErrorCode::NotFound);
    });
}

#[test]
fn a_tree_is_removed_without_following_links() {
    test(async {
        let (agent, client) = connected().await;
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("kept"), "").unwrap();
        std::fs::create_dir_all(agent.path("tree/a/b")).unwrap();
        std::fs::write(agent.path("tree/a/file"), "").unwrap();
        symlink(outside.path(), agent.path("tree/a/b/link")).unwrap();
        client.files().remove(&path("tree")).await.unwrap();
        client.files().remove(&path("tree")).await.unwrap();
        client.files().remove(&path("missing/too")).await.unwrap();
        assert!(!agent.path("tree").exists());
        assert!(outside.path().join("kept").exists());
        assert_eq!(code(client.files().remove(&path(".")).await), ErrorCode::Invalid);
    });
}

#[test]
fn a_tree_deeper_than_any_path_is_removed() {
    test(async {
        let (agent, client) = connected().await;
        let line = "mkdir deep; cd deep; i=0; while [ $i -lt 1500 ]; do mkdir dddd; cd dddd; touch x; \
                    i=$((i+1)); done";
        run(&client, &sh(line)).await;
        assert!(agent.path("deep/dddd/dddd").exists());
        client.files().remove(&path("deep")).await.unwrap();
        assert!(!agent.path("deep").exists());
    });
}

async fn tar_out(client: &AgentClient, from: &SandboxPath) -> Result<Vec<u8>> {
    let mut archive = client.tar_out(from).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = archive.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

async fn tar_in(client: &AgentClient, to: &SandboxPath, bytes: &[u8]) -> Result<()> {
    let mut archive = client.tar_in(to).await?;
    for piece in bytes.chunks(100_000) {
        archive.write(Bytes::copy_from_slice(piece)).await?;
    }
    archive.finish().await
}

#[test]
fn a_tree_travels_out_and_in_as_an_archive() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::create_dir_all(agent.path("from/sub/empty")).unwrap();
        let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 241) as u8).collect();
        std::fs::write(agent.path("from/sub/big"), &big).unwrap();
        std::fs::write(agent.path("from/run"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(agent.path("from/run"), PermissionsExt::from_mode(0o755)).unwrap();
        let long = "n".repeat(200);
        std::fs::write(agent.path(&format!("from/sub/{long}")), "long").unwrap();
        symlink("sub/big", agent.path("from/link")).unwrap();
        let bytes = tar_out(&client, &path("from")).await.unwrap();
        tar_in(&client, &path("to/here"), &bytes).await.unwrap();
        assert!(std::fs::read(agent.path("to/here/sub/big")).unwrap() == big);
        assert!(agent.path("to/here/sub/empty").is_dir());
        assert_eq!(std::fs::read(agent.path(&format!("to/here/sub/{long}"))).unwrap(), b"long");
        let mode = std::fs::metadata(agent.path("to/here/run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let link = std::fs::read_link(agent.path("to/here/link")).unwrap();
        assert_eq!(link.to_str(), Some("sub/big"));
        let single = tar_out(&client, &path("from/run")).await.unwrap();
        tar_in(&client, &path("single"), &single).await.unwrap();
        assert_eq!(std::fs::read(agent.path("single/run")).unwrap(), b"#!/bin/sh\n");
        assert_eq!(code(tar_out(&client, &path("missing")).await), ErrorCode::NotFound);
    });
}

#[test]
fn what_is_mounted_in_a_tree_is_neither_archived_nor_removed_nor_replaced() {
    test(async {
        let mounted = Agent::start_with_mounts("place/engine", "place/secrets");
        let (_agent, client) = connect(mounted).await;
        let works =
            async |line| assert_eq!(status(&client, &sh(line)).await, ExitStatus::Exited(0));
        let place = path("place");
        works("echo its >place/own; mkdir place/dir; echo new >place/dir/file").await;
        let archive = tar_out(&client, &place).await.unwrap();
        let mut names: Vec<_> = tar::Archive::new(&*archive)
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        names.sort();
        assert_eq!(names, ["dir", "dir/file", "own"]);
        for at in [&place, &path("place/secrets"), &path("place/engine")] {
            assert_eq!(code(client.files().remove(at).await), ErrorCode::Invalid);
        }
        works("test -s place/secrets/hosts").await;
        // One that was captured before has what was mounted there.
        works("mkdir -p place/stage/later place/stage/secrets; echo x >place/stage/engine").await;
        client.replace(&place, "stage").await.unwrap();
        let mut left: Vec<_> =
            client.files().list(&place).await.unwrap().into_iter().map(|it| it.name).collect();
        left.sort();
        assert_eq!(left, ["engine", "later", "secrets"]);
        works("test -s place/secrets/hosts && ! grep -qx x place/engine").await;
    });
}

fn archive(kind: tar::EntryType, name: &str, link: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    // Written raw: the library refuses the names that matter here.
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(0);
    header.set_cksum();
    [header.as_bytes().as_slice(), &[0; 1024]].concat()
}

#[test]
fn an_archive_cannot_leave_its_target() {
    test(async {
        let (agent, client) = connected().await;
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().to_str().unwrap();
        for name in ["../x", "/x", "a/../../x"] {
            let bytes = archive(tar::EntryType::Regular, name, "");
            assert_eq!(
                code(tar_in(&client, &path("in"), &bytes).await),
                ErrorCode::PathEscapes,
                "{name}"
            );
        }
        let link = archive(tar::EntryType::Symlink, "d", target);
        tar_in(&client, &path("in"), &link).await.unwrap();
        let through = archive(tar::EntryType::Regular, "d/x", "");
        assert_eq!(code(tar_in(&client, &path("in"), &through).await), ErrorCode::PathEscapes);
        let over = archive(tar::EntryType::Regular, "d", "");
        tar_in(&client, &path("in"), &over).await.unwrap();
        assert!(agent.path("in/d").symlink_metadata().unwrap().is_file());
        for (kind, link) in
            [(tar::EntryType::Link, "d"), (tar::EntryType::Char, ""), (tar::EntryType::Fifo, "")]
        {
            let error =
                tar_in(&client, &path("in"), &archive(kind, "odd", link)).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Invalid);
            assert!(error.to_string().contains("`odd`"), "{error}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        let nonsense = tar_in(&client, &path("in"), &[b'x'; 4096]).await;
        assert_eq!(code(nonsense), ErrorCode::System);
    });
}

#[test]
fn transfers_that_are_dropped_end() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::write(agent.path("big"), vec![1; 20_000_000]).unwrap();
        for _ in 0..20 {
            let mut out = client.tar_out(&path("big")).await.unwrap();
            assert!(out.next().await.unwrap().is_some());
            drop(out);
            drop(client.tar_in(&path("in")).await.unwrap());
        }
        let me = agent.pid().to_string();
        common::eventually("every worker ended", || {
            let children = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children"));
            children.unwrap().trim().is_empty()
        })
        .await;
        assert!(client.files().stat(&path("big")).await.is_ok());
    });
}

#[test]
fn a_watch_sees_changes_until_the_directory_goes() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::create_dir(agent.path("dir")).unwrap();
        let mut watch = client.watch(&path("dir")).await.unwrap();
        std::fs::write(agent.path("dir/new"), "x").unwrap();
        let change = watch.next().await.unwrap().unwrap();
        assert_eq!((change.kind, change.name.as_str()), (WatchKind::Created, "new"));
        assert_eq!(watch.next().await.unwrap().unwrap().kind, WatchKind::Changed);
        std::fs::remove_dir_all(agent.path("dir")).unwrap();
        let mut kinds = Vec::new();
        while let Some(change) = watch.next().await.unwrap() {
            kinds.push(change.kind);
        }
        assert!(kinds.contains(&WatchKind::Removed), "{kinds:?}");
        assert_eq!(kinds.last(), Some(&WatchKind::Gone));
        assert_eq!(code(client.watch(&path("dir")).await), ErrorCode::NotFound);
    });
}

#[test]
fn a_watch_nobody_reads_overflows_and_says_so() {
    test(async {
        let (agent, client) = connected().await;
        let mut watch = client.watch(&path(".")).await.unwrap();
        let most: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        for i in 0..most + 30_000 {
            std::fs::File::create(agent.path(&format!("{}", i % 2))).unwrap();
            std::fs::remove_file(agent.path(&format!("{}", i % 2))).unwrap();
        }
        loop {
            if watch.next().await.unwrap().unwrap().kind == WatchKind::Overflow {
                break;
            }
        }
    });
}
