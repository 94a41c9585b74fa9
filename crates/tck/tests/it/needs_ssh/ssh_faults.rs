//! A fault at each step on the way to another host and back: the right error, nothing lost here, nothing
//! left there.

use std::fs;
use std::sync::Arc;

use crate::sshd::bench::{SshBench, nothing_left};
use crate::sshd::proxy::CuttableWire;
use crate::sshd::{Sshd, generate_key};
use stockade_backends::ssh::{Host, Ssh};
use stockade_core::{Backend, Command, Ending};
use stockade_engine::{Engine, EngineConfig, OutputEvent};

/// What is unavailable about the only host, and the remedy.
async fn probe_unavailable(host: Host) -> (String, String) {
    Ssh::new(vec![host]).probe().await.unavailable.expect("this host cannot be used")
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_host_it_says_how_to_name_one() {
    let (reason, remedy) = Ssh::new(vec![]).probe().await.unavailable.unwrap();
    assert!(reason.contains("no host") && remedy.contains("[[ssh.hosts]]"), "{reason}: {remedy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_key_is_another_one_is_not_connected_to() {
    let sshd = Sshd::start();
    let other = sshd.cache().join("other");
    generate_key(&other);
    sshd.write_known_host("wrong", &other.with_extension("pub"));
    let host = sshd.host_by(&sshd.write_client_config("wrong_key", sshd.port, "wrong"));
    let (reason, remedy) = probe_unavailable(host.clone()).await;
    assert!(reason.contains("not the one that is known"), "{reason}");
    assert!(remedy.contains("ssh-keygen -R"), "{remedy}");
    let error = SshBench::new(vec![host]).await.expect_create_error().await;
    assert!(error.to_string().contains("not the one that is known"), "{error}");
    assert!(!sshd.cache().join("stockade").exists(), "something was carried there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_key_is_not_known_is_not_accepted_silently() {
    let sshd = Sshd::start();
    let config = sshd.write_client_config("unknown_key", sshd.port, "nothing-known");
    let (reason, remedy) = probe_unavailable(sshd.host_by(&config)).await;
    assert!(reason.contains("host key is not known") && remedy.contains("by hand"), "{reason}");
    assert!(!config.with_file_name("nothing-known").exists(), "it was written down as known");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_refused_a_port_nobody_listens_on_and_no_such_host_are_told_apart() {
    let mut sshd = Sshd::start();
    let stranger = sshd.cache().join("stranger");
    generate_key(&stranger);
    let text = fs::read_to_string(sshd.config()).unwrap();
    let mine = format!("{}/user_key", sshd.cache().parent().unwrap().display());
    let config = sshd.config().with_file_name("stranger_config");
    fs::write(&config, text.replace(&mine, stranger.to_str().unwrap())).unwrap();
    let (reason, _) = probe_unavailable(sshd.host_by(&config)).await;
    assert!(reason.contains("refuses the login"), "{reason}");
    fs::write(&config, text.replace("127.0.0.1", "no..such..host")).unwrap();
    let (reason, _) = probe_unavailable(sshd.host_by(&config)).await;
    assert!(reason.contains("no host of that name"), "{reason}");
    sshd.stop();
    let (reason, _) = probe_unavailable(sshd.host()).await;
    assert!(reason.contains("nothing listens"), "{reason}");
}

async fn start_flood(
    bench: &SshBench,
) -> (stockade_engine::Execution, stockade_engine::Subscription) {
    let mut spec = bench.spec();
    spec.limits.output = Some(stockade_core::Bytes(u64::MAX));
    let command = Command::shell("echo made > made; while :; do echo flood; done");
    let (execution, mut follower) = bench.engine.run_followed(spec, command).await.unwrap();
    assert!(matches!(follower.next().await, Some(OutputEvent::Output { .. })));
    (execution, follower)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_the_middle_of_output_is_a_lost_execution_and_nothing_is_left()
{
    let sshd = Sshd::start();
    let wire = CuttableWire::to(sshd.port);
    let host = sshd.host_by(&sshd.write_client_config("wired", wire.port, "known_hosts"));
    let bench = SshBench::new(vec![host]).await;
    let (execution, follower) = start_flood(&bench).await;
    wire.cut_connections();
    drop(follower);
    let outcome = execution.outcome().await;
    let Ending::Lost(why) = &outcome.ending else { panic!("{outcome:?}") };
    assert!(why.contains("connection to host `far` was lost"), "{why}");
    assert_eq!(bench.engine.list().await.unwrap().leases, [], "a lease is left");
    nothing_left(&sshd, &sshd.cache()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wire_that_swallows_everything_is_noticed_on_both_sides() {
    let sshd = Sshd::start();
    let wire = CuttableWire::to(sshd.port);
    let host = sshd.host_by(&sshd.write_client_config("wired", wire.port, "known_hosts"));
    let bench = SshBench::new(vec![host]).await;
    let mut spec = bench.spec();
    spec.limits.wall_time = Some(stockade_core::Span::secs(50));
    let id = bench.engine.create(spec).await.unwrap();
    let execution = bench.engine.exec(&id, Command::shell("sleep 40")).await.unwrap();
    wire.stall_forwarding();
    nothing_left(&sshd, &sshd.cache()).await;
    let outcome = execution.outcome().await;
    assert!(matches!(outcome.ending, Ending::Lost(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_the_middle_of_an_upload_is_an_error_and_nothing_is_left() {
    let sshd = Sshd::start();
    let wire = CuttableWire::to(sshd.port);
    let host = sshd.host_by(&sshd.write_client_config("wired", wire.port, "known_hosts"));
    let bench = SshBench::new(vec![host]).await;
    // The program first, so that it is the workspace that is cut.
    let id = bench.engine.create(bench.spec()).await.unwrap();
    bench.engine.destroy(&id).await.unwrap();
    fs::write(bench.workspace().join("large"), vec![7; 32 << 20]).unwrap();
    wire.cut_after(8 << 20);
    let error = bench.expect_create_error().await;
    assert!(error.to_string().contains("connection to host `far` was lost"), "{error}");
    nothing_left(&sshd, &sshd.cache()).await;
    assert_eq!(bench.engine.list().await.unwrap().leases, [], "a lease is left");
    assert_eq!(fs::metadata(bench.workspace().join("large")).unwrap().len(), 32 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_cut_while_it_was_carried_is_never_run_and_is_carried_again() {
    let sshd = Sshd::start();
    let wire = CuttableWire::to(sshd.port);
    let host = sshd.host_by(&sshd.write_client_config("wired", wire.port, "known_hosts"));
    wire.cut_after(2 << 20);
    let (reason, _) = probe_unavailable(host.clone()).await;
    assert!(reason.contains("host `far`"), "{reason}");
    let measured = Ssh::new(vec![host]).probe().await;
    assert_eq!(measured.unavailable, None);
    let versions = fs::read_dir(sshd.cache().join("stockade/far")).unwrap().flatten();
    let whole = versions.filter(|entry| entry.path().join("stockade-far").exists());
    assert_eq!(whole.count(), 1, "half a program is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_for_good_leaves_its_lease_and_nothing_there() {
    let mut sshd = Sshd::start();
    let wire = CuttableWire::to(sshd.port);
    let host = sshd.host_by(&sshd.write_client_config("wired", wire.port, "known_hosts"));
    let bench = SshBench::new(vec![host.clone()]).await;
    let id = bench.engine.create(bench.spec()).await.unwrap();
    let execution = bench.engine.exec(&id, Command::shell("sleep 600")).await.unwrap();
    sshd.stop();
    wire.cut_for_good();
    let outcome = execution.outcome().await;
    assert!(matches!(outcome.ending, Ending::Lost(_)), "{outcome:?}");
    nothing_left(&sshd, &sshd.cache()).await;
    let error = bench.engine.destroy(&id).await.expect_err("nobody can say that nothing is left");
    assert!(error.to_string().contains("host `far`"), "{error}");
    assert_eq!(bench.engine.list().await.unwrap().leases.len(), 1, "nobody would look again");
    // And others are not held up by it.
    let backend: Arc<dyn Backend> = Arc::new(Ssh::new(vec![host]));
    drop(bench.engine);
    let config = EngineConfig::at(bench.base.path().join("state"));
    Engine::open(config, vec![backend]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_spreads_by_what_is_free_passes_over_who_is_gone_and_says_when_it_is_full() {
    let (one, two) = (Sshd::start(), Sshd::start());
    let wire = CuttableWire::to(two.port);
    let far = two.host_by(&two.write_client_config("wired", wire.port, "known_hosts"));
    let hosts = [one.host(), far].map(|host| Host { capacity: Some(2), ..host });
    let bench = SshBench::new(hosts.to_vec()).await;
    let on = |sshd: &Sshd| fs::read_dir(sshd.cache().join("stockade/sandboxes")).unwrap().count();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(bench.engine.create(bench.spec()).await.unwrap());
        assert!(on(&one).abs_diff(on(&two)) <= 1, "{} and {}", on(&one), on(&two));
    }
    let error = bench.expect_create_error().await;
    assert!(error.to_string().contains("as many sandboxes as it may"), "{error}");
    for id in &ids {
        bench.engine.destroy(id).await.unwrap();
    }
    wire.cut_for_good();
    let measured = Ssh::new(hosts.to_vec()).probe().await;
    assert_eq!(measured.unavailable, None);
    assert!(format!("{measured:?}").contains("skipped: host `far`"), "{measured:?}");
    for _ in 0..2 {
        let id = bench.engine.create(bench.spec()).await.unwrap();
        ids.push(id);
    }
    assert_eq!((on(&one), on(&two)), (2, 0));
    bench.engine.close().await.unwrap();
    nothing_left(&one, &one.cache()).await;
}

mod needs_root {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_disk_there_is_told_and_nothing_is_left() {
        let sshd = Sshd::with_disk("16m");
        let cache = sshd.seen_there(&sshd.cache());
        let bench = SshBench::new(vec![sshd.host()]).await;
        fs::write(bench.workspace().join("large"), vec![7; 32 << 20]).unwrap();
        let error = bench.expect_create_error().await;
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(error.to_string().contains("make room"), "{error}");
        nothing_left(&sshd, &cache).await;
        fs::remove_file(bench.workspace().join("large")).unwrap();
        let command = Command::shell("dd if=/dev/zero of=file bs=1M count=64 2>/dev/null; echo $?");
        let ran = bench.engine.run(bench.spec(), command).await.unwrap();
        assert_eq!(ran.outcome().await.ending, Ending::Exited(0));
        nothing_left(&sshd, &cache).await;
        let small = Sshd::with_disk("2m");
        let (reason, remedy) = probe_unavailable(small.host()).await;
        assert!(reason.contains("No space left") && remedy.contains("room"), "{reason}: {remedy}");
    }
}
