//! What the front door promises beyond the engine, with native's walls.

use std::time::Duration;

use stockade::{Ending, ErrorCode, Sandbox, Settings, SnapshotKind, Stockade};
use tempfile::TempDir;

/// How long what happens in the background may take on a busy host.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);

struct Bench {
    stockade: Stockade,
    _state: TempDir,
}

async fn bench() -> Bench {
    let state = tempfile::tempdir().unwrap();
    let opened = Stockade::builder()
        .settings(Settings::default())
        .state_dir(state.path().join("state"))
        .open()
        .await;
    Bench { stockade: opened.unwrap(), _state: state }
}

impl Bench {
    async fn sandbox(&self) -> Sandbox {
        self.stockade.sandbox().backend("native").create().await.unwrap()
    }

    async fn wait_until_nothing_is_left(&self) {
        let empty = async {
            while !self.stockade.engine().list().await.unwrap().leases.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(BACKGROUND_TIMEOUT, empty).await.unwrap();
    }
}

#[tokio::test]
async fn dropping_a_sandbox_ends_it() {
    let bench = bench().await;
    let sandbox = bench.sandbox().await;
    let running = sandbox.exec(["sleep", "600"]).start().await.unwrap();
    drop(sandbox);
    let output = tokio::time::timeout(BACKGROUND_TIMEOUT, running.output()).await.unwrap();
    assert!(!output.success(), "{output:?}");
    bench.wait_until_nothing_is_left().await;
}

#[tokio::test]
async fn dropping_a_running_command_kills_it_and_leaves_the_sandbox() {
    let bench = bench().await;
    let sandbox = bench.sandbox().await;
    let running = sandbox.exec(["sleep", "600"]).start().await.unwrap();
    let watcher = bench.stockade.engine().watch(running.execution().job()).unwrap();
    drop(running);
    let outcome = tokio::time::timeout(BACKGROUND_TIMEOUT, watcher.outcome()).await.unwrap();
    assert_eq!(outcome.ending, Ending::Cancelled);
    assert!(sandbox.exec(["true"]).output().await.unwrap().success());
    sandbox.destroy().await.unwrap();
    bench.wait_until_nothing_is_left().await;
}

#[tokio::test]
async fn a_snapshot_is_gone_back_to_and_begun_with() {
    let bench = bench().await;
    let sandbox = bench.sandbox().await;
    sandbox.write_file("a", "early").await.unwrap();
    let snapshot = sandbox.snapshot(SnapshotKind::Files).await.unwrap();
    sandbox.write_file("a", "late").await.unwrap();
    sandbox.restore(&snapshot).await.unwrap();
    assert_eq!(sandbox.read_file("a").await.unwrap(), b"early");
    let another = bench.stockade.sandbox().from_snapshot(&snapshot.id).create().await.unwrap();
    assert_eq!(another.read_file("a").await.unwrap(), b"early");
    bench.stockade.close().await.unwrap();
}

#[tokio::test]
async fn a_workspace_is_the_hosts_directory_and_read_only_if_told() {
    let bench = bench().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "host").unwrap();
    let builder = || bench.stockade.sandbox().backend("native").workspace(dir.path());
    let sandbox = builder().create().await.unwrap();
    let output = sandbox.shell("cat a; echo guest > b").output().await.unwrap();
    assert_eq!((output.stdout_utf8(), output.success()), ("host".into(), true));
    assert_eq!(std::fs::read_to_string(dir.path().join("b")).unwrap(), "guest\n");
    sandbox.destroy().await.unwrap();
    let sandbox = builder().read_only().create().await.unwrap();
    assert!(!sandbox.shell("echo guest > c").output().await.unwrap().success());
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn a_value_that_does_not_parse_is_told_with_its_field() {
    let bench = bench().await;
    for (builder, field) in [
        (bench.stockade.sandbox().memory("plenty"), "memory"),
        (bench.stockade.sandbox().env("A=B", "c"), "env"),
        (bench.stockade.sandbox().workspace("/no/such/directory"), "workspace"),
        (bench.stockade.sandbox().mount("/etc", "../x"), "mount"),
    ] {
        let error = builder.create().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Invalid);
        assert!(error.message().starts_with(field), "{error}");
    }
    let sandbox = bench.sandbox().await;
    let escaping = sandbox.read_file("../../etc/passwd").await.unwrap_err();
    assert!(escaping.message().contains("leaves its root"), "{escaping}");
    sandbox.destroy().await.unwrap();
}
