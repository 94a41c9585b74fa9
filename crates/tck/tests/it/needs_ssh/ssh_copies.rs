//! The two copies of a workspace on another host: what changes on one side or on both, and what a guest
//! does to it that makes it hard or costly to copy.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sshd::Sshd;
use crate::sshd::bench::{SshBench, nothing_left};
use stockade_backends::ssh::{Host, Ssh};
use stockade_core::{
    Backend, BackendChoice, Bytes, Command, Ending, Feature, LimitKind, SandboxId, SandboxSpec,
};
use stockade_engine::{Execution, OutputEvent, Subscription};

/// Shell script that nests directories deeper than a path can name and than descriptors can follow.
const DEEP_TREE_SCRIPT: &str = "d=$(printf 'd/%.0s' $(seq 1000)); mkdir -p \"a/$d\" \"b/$d\" \"c/$d\" && \
                    mv b \"a/$d\" && mv a \"c/$d\" && echo ready";

/// The bytes that the files of a directory take.
fn allocated_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).unwrap().flatten();
    files.map(|file| file.metadata().unwrap().blocks() * 512).sum()
}

/// A spec for programs that make deep trees. The disk watch would end them, if it looked in time: so deep a tree
/// cannot be counted.
fn spec_for_deep_trees(bench: &SshBench) -> SandboxSpec {
    let mut spec = bench.spec();
    spec.without.insert(Feature::DiskLimit);
    spec
}

/// A command that goes on after it has said something.
async fn start_command(
    bench: &SshBench,
    id: &SandboxId,
    script: &str,
) -> (Execution, Subscription) {
    let command = Command::shell(format!("{script}; exec sleep 600"));
    let (execution, mut follower) = bench.engine.exec_followed(id, command).await.unwrap();
    assert!(matches!(follower.next().await, Some(OutputEvent::Output { .. })));
    (execution, follower)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_here_meanwhile_is_kept_and_named() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    fs::write(bench.workspace().join("both"), "at first").unwrap();
    let id = bench.engine.create(bench.spec()).await.unwrap();
    let command = Command::shell("echo there > both; echo there > new; echo ready; sleep 600");
    let (execution, mut follower) = bench.engine.exec_followed(&id, command).await.unwrap();
    assert!(matches!(follower.next().await, Some(OutputEvent::Output { .. })));
    fs::write(bench.workspace().join("both"), "here, meanwhile").unwrap();
    execution.close().await.unwrap();
    let error = bench.engine.destroy(&id).await.expect_err("it changed on both sides");
    assert!(error.to_string().contains("`both`"), "{error}");
    let kept = fs::read_to_string(bench.workspace().join("both")).unwrap();
    assert_eq!(kept, "here, meanwhile");
    assert_eq!(fs::read_to_string(bench.workspace().join("new")).unwrap(), "there\n");
    bench.engine.destroy(&id).await.unwrap();
    nothing_left(&sshd, &sshd.cache()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_here_between_two_commands_is_there_for_the_second() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    let id = bench.engine.create(bench.spec()).await.unwrap();
    fs::write(bench.workspace().join("given"), "later").unwrap();
    let command =
        Command::shell("test \"$(cat given)\" = later && mv given taken && ln -s a/b link");
    let ran = bench.engine.exec(&id, command).await.unwrap();
    assert_eq!(ran.outcome().await.ending, Ending::Exited(0));
    assert!(!bench.workspace().join("given").exists());
    assert_eq!(fs::read_to_string(bench.workspace().join("taken")).unwrap(), "later");
    let link = fs::read_link(bench.workspace().join("link")).unwrap();
    assert_eq!(link, Path::new("a/b"));
    bench.engine.destroy(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_here_is_kept_when_it_had_changed_there_before_it_was_sent() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    fs::write(bench.workspace().join("both"), "at first").unwrap();
    let id = bench.engine.create(bench.spec()).await.unwrap();
    let (_running, _follower) = start_command(&bench, &id, "echo there > both; echo ready").await;
    fs::write(bench.workspace().join("both"), "here, meanwhile").unwrap();
    let kept = || fs::read_to_string(bench.workspace().join("both")).unwrap();
    for expected in ["there", "here, meanwhile"] {
        let command = Command::shell(format!("test \"$(cat both)\" = \"{expected}\""));
        let ran = bench.engine.exec(&id, command).await.unwrap();
        assert_eq!(ran.outcome().await.ending, Ending::Exited(0), "{expected}");
        assert_eq!(kept(), "here, meanwhile");
    }
    let error = bench.engine.destroy(&id).await.expect_err("it changed on both sides");
    assert!(error.to_string().contains("`both`"), "{error}");
    assert_eq!(kept(), "here, meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_too_deep_to_be_copied_is_told_and_is_in_nobodys_way() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    let spec = spec_for_deep_trees(&bench);
    let ran = bench.engine.run(spec, Command::shell(DEEP_TREE_SCRIPT)).await.unwrap();
    let outcome = ran.outcome().await;
    let Ending::Lost(why) = &outcome.ending else { panic!("{outcome:?}") };
    assert!(why.contains("256 directories") && why.contains("exited with 0"), "{why}");
    nothing_left(&sshd, &sshd.cache()).await;
    let ran = bench.engine.run(bench.spec(), Command::shell("true")).await.unwrap();
    assert_eq!(ran.outcome().await.ending, Ending::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_left_there_is_removed_however_deep_it_is() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    let id = bench.engine.create(spec_for_deep_trees(&bench)).await.unwrap();
    let (_running, _follower) = start_command(&bench, &id, DEEP_TREE_SCRIPT).await;
    sshd.kill_carried();
    let measured = Ssh::new(vec![sshd.host()]).probe().await;
    assert_eq!(measured.unavailable, None);
    nothing_left(&sshd, &sshd.cache()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_brought_back_at_the_end_is_an_error() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    let id = bench.engine.create(spec_for_deep_trees(&bench)).await.unwrap();
    let (running, _follower) = start_command(&bench, &id, DEEP_TREE_SCRIPT).await;
    // Its end cannot be told without its changes, so that it takes the sandbox along.
    let error = running.close().await.expect_err("the tree is lost");
    assert!(error.to_string().contains("not all changes were copied back"), "{error}");
    assert!(error.to_string().contains("256 directories"), "{error}");
    nothing_left(&sshd, &sshd.cache()).await;
    bench.engine.destroy(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_no_room_there_takes_none_here_and_what_takes_too_much_does_not_arrive() {
    let sshd = Sshd::start();
    let bench = SshBench::new(vec![sshd.host()]).await;
    let mut spec = bench.spec();
    spec.limits.disk = Some(Bytes::mib(8));
    // What is enforced is enough here: nothing goes on growing between two looks.
    spec.without.insert(Feature::DiskLimit);
    let id = bench.engine.create(spec).await.unwrap();
    let command = "for n in $(seq 30); do truncate -s 8M sparse.$n; done; echo x | dd of=sparse.1 \
                   bs=1 seek=1M conv=notrunc";
    let ran = bench.engine.exec(&id, Command::shell(command)).await.unwrap();
    assert_eq!(ran.outcome().await.ending, Ending::Exited(0));
    assert_eq!(fs::metadata(bench.workspace().join("sparse.30")).unwrap().len(), 8 << 20);
    assert!(
        allocated_bytes(&bench.workspace()) < 1 << 20,
        "{} bytes",
        allocated_bytes(&bench.workspace())
    );
    let command =
        "for n in $(seq 20); do dd if=/dev/zero of=large.$n bs=1M count=3; sleep 0.3; done";
    let ran = bench.engine.exec(&id, Command::shell(command)).await.unwrap();
    assert_eq!(ran.outcome().await.ending, Ending::LimitExceeded(LimitKind::Disk));
    assert!(
        allocated_bytes(&bench.workspace()) < 9 << 20,
        "{} bytes",
        allocated_bytes(&bench.workspace())
    );
    let error = bench.engine.destroy(&id).await.expect_err("not all of it is here");
    assert!(error.to_string().contains("may grow by"), "{error}");
    bench.engine.destroy(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_connected_to_unless_it_was_asked_for() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let options = vec![format!("Port={}", listener.local_addr().unwrap().port())];
    let host = Host { name: "127.0.0.1".into(), config: None, options, capacity: None };
    let bench = SshBench::new(vec![host]).await;
    let spec = SandboxSpec { backend: BackendChoice::Auto, ..bench.spec() };
    let why = bench.engine.explain(&spec).await.choices.remove(0).why;
    assert!(why.contains("only when named") && why.contains("another host"), "{why}");
    bench.engine.create(spec).await.expect_err("it was not named");
    let connected = listener.accept().expect_err("somebody was connected to");
    assert_eq!(connected.kind(), std::io::ErrorKind::WouldBlock);
}
