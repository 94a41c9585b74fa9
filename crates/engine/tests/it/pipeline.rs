//! The pipeline above the walls, with the mock: what each step does when the one below fails, hangs
//! or goes away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stockade_backends::mock::{Fault, Faults, Mock, Script, ScriptStep};
use stockade_core::*;
use stockade_engine::*;

use crate::common::drop_after;

struct PipelineBench {
    engine: Engine,
    mock: Mock,
    _state: tempfile::TempDir,
}

fn programs() -> Mock {
    let write = |stream, text: &'static str| ScriptStep::Write(stream, text.into());
    let hello = vec![write(StreamId::Stdout, "out"), write(StreamId::Stderr, "err")];
    let flood = vec![ScriptStep::Flood(StreamId::Stdout, 1 << 20, 4096), ScriptStep::Exit(3)];
    Mock::new()
        .with_program("true", Script::default())
        .with_program("seven", Script(vec![ScriptStep::Exit(7)]))
        .with_program(
            "forever",
            Script(vec![ScriptStep::IgnoreSignals, ScriptStep::Sleep(Duration::MAX / 4)]),
        )
        .with_program("echo", Script(vec![ScriptStep::Echo]))
        .with_program("hello", Script(hello))
        .with_program("endless", Script(vec![ScriptStep::Flood(StreamId::Stdout, u64::MAX, 4096)]))
        .with_program("flood", Script(flood))
}

async fn bench_with(mock: Mock, change: impl FnOnce(&mut EngineConfig)) -> PipelineBench {
    let state = tempfile::tempdir().unwrap();
    let mut config = EngineConfig::at(state.path().join("state"));
    change(&mut config);
    let engine = Engine::open(config, vec![Arc::new(mock.clone())]).await.unwrap();
    PipelineBench { engine, mock, _state: state }
}

async fn bench(faults: Faults) -> PipelineBench {
    bench_with(programs().with_faults(faults), |_| {}).await
}

fn spec() -> SandboxSpec {
    SandboxSpec { backend: "mock".parse().unwrap(), ..SandboxSpec::default() }
}

impl PipelineBench {
    async fn run(&self, program: &str) -> Execution {
        self.engine.run(spec(), Command::program([program])).await.unwrap()
    }

    async fn nothing_left(&self) {
        assert!(self.mock.list().await.unwrap().is_empty(), "a sandbox is left");
        assert!(self.engine.list().await.unwrap().leases.is_empty(), "a lease is left");
    }
}

async fn collect(mut subscription: Subscription) -> (Vec<u8>, Vec<u8>, Vec<u64>) {
    let (mut out, mut err, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(event) = subscription.next().await {
        if let OutputEvent::Output { seq, stream, data } = event {
            seqs.push(seq);
            match stream {
                StreamId::Stdout => out.extend_from_slice(&data),
                StreamId::Stderr => err.extend_from_slice(&data),
            }
        }
    }
    (out, err, seqs)
}

#[tokio::test]
async fn a_run_gives_output_and_outcome_and_leaves_nothing() {
    let bench = bench(Faults::default()).await;
    let hello = Command::program(["hello"]);
    let (execution, follower) = bench.engine.run_followed(spec(), hello).await.unwrap();
    let (out, err, seqs) = collect(follower).await;
    assert_eq!((out.as_slice(), err.as_slice(), seqs), (&b"out"[..], &b"err"[..], vec![0, 1]));
    assert!(execution.outcome().await.success());
    bench.nothing_left().await;
    let late = execution.output().await;
    assert_eq!(late.stdout, b"out", "the history is there after the end too");
    assert_eq!((late.stderr_utf8(), late.missed, late.success()), ("err".into(), 0, true));
}

#[tokio::test]
async fn collected_output_is_bounded_and_the_program_is_not_held_up_by_it() {
    let bench = bench(Faults::default()).await;
    let flood = Command::program(["flood"]);
    let (_execution, follower) = bench.engine.run_followed(spec(), flood).await.unwrap();
    let output = follower.output_within(1000).await;
    assert_eq!((output.stdout.len(), output.missed), (1000, (1 << 20) - 1000));
    assert_eq!(output.outcome.ending, Ending::Exited(3));
}

#[tokio::test]
async fn the_outcome_is_the_same_however_often_and_whoever_asks() {
    let bench = bench(Faults::default()).await;
    let execution = Arc::new(bench.run("seven").await);
    let ask = |_| {
        let execution = Arc::clone(&execution);
        tokio::spawn(async move { execution.outcome().await })
    };
    let askers: Vec<_> = (0..100).map(ask).collect();
    for asker in askers {
        assert_eq!(asker.await.unwrap().ending, Ending::Exited(7));
    }
    execution.cancel();
    execution.close().await.unwrap();
    assert_eq!(execution.outcome().await.ending, Ending::Exited(7));
}

#[tokio::test]
async fn output_past_the_cap_is_dropped_and_counted_and_the_exit_is_kept() {
    let bench = bench(Faults::default()).await;
    let mut command = Command::program(["flood"]);
    command.output = Some(Bytes(1000));
    let execution = bench.engine.run(spec(), command).await.unwrap();
    let outcome = execution.outcome().await;
    assert_eq!(outcome.ending, Ending::Exited(3));
    assert_eq!(outcome.stdout, StreamReport { bytes: 1000, dropped: (1 << 20) - 1000 });
}

#[tokio::test]
async fn time_running_out_kills_and_says_so() {
    let bench = bench(Faults::default()).await;
    let mut command = Command::program(["forever"]);
    command.wall_time = Some(Span::millis(20));
    let outcome = bench.engine.run(spec(), command).await.unwrap().outcome().await;
    assert_eq!(outcome.ending, Ending::TimedOut);
    bench.nothing_left().await;
}

#[tokio::test]
async fn cancelling_and_closing_are_idempotent() {
    let bench = bench(Faults::default()).await;
    let execution = bench.run("forever").await;
    for _ in 0..3 {
        execution.cancel();
        execution.close().await.unwrap();
    }
    assert_eq!(execution.outcome().await.ending, Ending::Cancelled);
    bench.nothing_left().await;
}

#[tokio::test]
async fn dropping_the_handle_kills_unless_it_was_detached() {
    let bench = bench(Faults::default()).await;
    let execution = bench.run("forever").await;
    let watcher = bench.engine.watch(execution.job()).unwrap();
    drop(execution);
    assert_eq!(watcher.outcome().await.ending, Ending::Cancelled);
    bench.nothing_left().await;

    let detached = bench.run("forever").await.detach();
    assert_eq!(bench.mock.list().await.unwrap().len(), 1);
    detached.close().await.unwrap();
    bench.nothing_left().await;
}

#[tokio::test]
async fn input_arrives_whole_and_then_ends() {
    let bench = bench(Faults::default()).await;
    let mut command = Command::program(["echo"]);
    command.stdin = Stdin::Bytes(b"to the guest".to_vec());
    let (_execution, follower) = bench.engine.run_followed(spec(), command).await.unwrap();
    assert_eq!(collect(follower).await.0, b"to the guest");
}

#[tokio::test]
async fn a_follower_that_does_not_read_cannot_keep_a_program_alive() {
    let bench = bench_with(programs(), |config| config.history.events = 4).await;
    let execution = bench.run("endless").await;
    let follower = execution.follow();
    execution.close().await.unwrap();
    assert_eq!(execution.outcome().await.ending, Ending::Cancelled);
    drop(follower);
}

#[tokio::test]
async fn a_lasting_sandbox_runs_many_commands_until_it_is_destroyed() {
    let bench = bench(Faults::default()).await;
    let id = bench.engine.create(spec()).await.unwrap();
    for _ in 0..3 {
        let execution = bench.engine.exec(&id, Command::program(["seven"])).await.unwrap();
        assert_eq!(execution.outcome().await.ending, Ending::Exited(7));
    }
    let running = bench.engine.exec(&id, Command::program(["forever"])).await.unwrap();
    bench.engine.destroy(&id).await.unwrap();
    assert_eq!(running.outcome().await.ending, Ending::Cancelled);
    bench.engine.destroy(&id).await.unwrap();
    let error = bench.engine.exec(&id, Command::program(["true"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    bench.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_destroy_ends_was_cancelled_whoever_is_faster() {
    let bench = bench(Faults::default()).await;
    for _ in 0..200 {
        let id = bench.engine.create(spec()).await.unwrap();
        let running = bench.engine.exec(&id, Command::program(["forever"])).await.unwrap();
        bench.engine.destroy(&id).await.unwrap();
        assert_eq!(running.outcome().await.ending, Ending::Cancelled);
    }
    bench.nothing_left().await;
}

#[tokio::test]
async fn closing_the_engine_ends_everything() {
    let bench = bench(Faults::default()).await;
    let id = bench.engine.create(spec()).await.unwrap();
    let inside = bench.engine.exec(&id, Command::program(["forever"])).await.unwrap();
    let alone = bench.run("forever").await;
    bench.engine.close().await.unwrap();
    bench.engine.close().await.unwrap();
    assert_eq!(inside.outcome().await.ending, Ending::Cancelled);
    assert_eq!(alone.outcome().await.ending, Ending::Cancelled);
    bench.nothing_left().await;
}

fn without_memory_limit() -> Mock {
    programs().with_support(Feature::MemoryLimit, Support::missing("no cgroup", "get one"))
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_at_once_and_nothing_is_created() {
    let bench = bench_with(without_memory_limit(), |_| {}).await;
    let mut wish = spec();
    wish.limits.memory = Some(Bytes::mib(8));
    wish.workspace = Workspace::Local("/somewhere".parse().unwrap());
    let error = bench.engine.run(wish, Command::program(["true"])).await.unwrap_err();
    let named: Vec<_> = error.refusals().unwrap().0.iter().filter_map(|r| r.feature).collect();
    assert_eq!(named, [Feature::LocalWorkspace, Feature::MemoryLimit]);
    assert!(error.to_string().contains("get one"), "{error}");
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_default_limit_that_cannot_be_enforced_is_reported_not_refused() {
    let bench = bench_with(without_memory_limit(), |_| {}).await;
    let outcome = bench.run("true").await.outcome().await;
    let memory = outcome.limits.iter().find(|entry| entry.limit() == LimitKind::Memory).unwrap();
    assert!(matches!(memory, Enforcement::NotAtAll { reason, .. } if reason == "no cgroup"));
}

#[tokio::test]
async fn an_unknown_backend_is_named_with_the_ones_there_are() {
    let bench = bench(Faults::default()).await;
    let wish = SandboxSpec { backend: "dokcer".parse().unwrap(), ..SandboxSpec::default() };
    let error = bench.engine.run(wish, Command::program(["true"])).await.unwrap_err();
    assert!(error.to_string().contains("dokcer") && error.to_string().contains("mock"), "{error}");
}

#[tokio::test]
async fn the_mock_is_never_chosen_automatically() {
    let bench = bench(Faults::default()).await;
    let wish = SandboxSpec::default();
    let error = bench.engine.run(wish, Command::program(["true"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Refused);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_start_failure() {
    let bench = bench(Faults::default()).await;
    let outcome = bench.run("nonesuch").await.outcome().await;
    assert!(matches!(outcome.ending, Ending::StartFailed(StartFailure::NotFound(_))));
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing() {
    let bench = bench(Faults { create: Fault::Error, ..Faults::default() }).await;
    assert!(bench.engine.run(spec(), Command::program(["true"])).await.is_err());
    assert!(bench.engine.create(spec()).await.is_err());
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_spawn_that_fails_leaves_nothing() {
    let bench = bench(Faults { spawn: Fault::Error, ..Faults::default() }).await;
    assert!(bench.engine.run(spec(), Command::program(["true"])).await.is_err());
    bench.nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_that_hangs_is_given_up_after_its_deadline() {
    let bench = bench(Faults { create: Fault::Hang, ..Faults::default() }).await;
    let error = bench.engine.run(spec(), Command::program(["true"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooSlow);
    bench.nothing_left().await;
}

#[tokio::test]
async fn events_that_end_without_an_exit_are_reported_as_lost() {
    for stream in [Fault::Drop, Fault::Error] {
        let bench = bench(Faults { stream, ..Faults::default() }).await;
        let outcome = bench.run("true").await.outcome().await;
        assert!(matches!(outcome.ending, Ending::Lost(_)), "{outcome:?}");
        bench.nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_is_not_confirmed_takes_the_whole_sandbox() {
    for kill in [Fault::Hang, Fault::Error] {
        let bench = bench(Faults { kill, ..Faults::default() }).await;
        let id = bench.engine.create(spec()).await.unwrap();
        let execution = bench.engine.exec(&id, Command::program(["forever"])).await.unwrap();
        execution.close().await.unwrap();
        assert_eq!(execution.outcome().await.ending, Ending::Cancelled);
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn a_destroy_that_fails_is_told_and_the_lease_is_kept_for_the_reaper() {
    let bench = bench(Faults { destroy: Fault::Error, ..Faults::default() }).await;
    let execution = bench.run("seven").await;
    assert_eq!(execution.outcome().await.ending, Ending::Exited(7));
    assert!(execution.close().await.is_err());
    assert_eq!(bench.engine.list().await.unwrap().leases.len(), 1);
}

#[tokio::test]
async fn what_could_not_be_taken_down_after_a_loss_stays_known_and_can_be_tried_again() {
    let destroy = Fault::ErrorTimes(Arc::new(1.into()));
    let bench = bench(Faults { stream: Fault::Drop, destroy, ..Faults::default() }).await;
    let id = bench.engine.create(spec()).await.unwrap();
    let execution = bench.engine.exec(&id, Command::program(["seven"])).await.unwrap();
    assert!(matches!(execution.outcome().await.ending, Ending::Lost(_)));
    assert!(bench.engine.walls(&id).is_ok(), "its engine has forgotten it");
    bench.engine.destroy(&id).await.unwrap();
    bench.nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_fails_or_never_answers_stops_no_engine_from_opening() {
    for destroy in [Fault::Error, Fault::Hang] {
        let stuck = programs().with_faults(Faults { destroy, ..Faults::default() });
        let bench = bench_with(stuck.clone(), |_| {}).await;
        for _ in 0..3 {
            assert!(bench.run("seven").await.close().await.is_err());
        }
        let PipelineBench { engine, _state: state, .. } = bench;
        drop(engine);
        let config = EngineConfig::at(state.path().join("state"));
        let patience = config.destroy_deadline;
        let before = tokio::time::Instant::now();
        let next = Engine::open(config, vec![Arc::new(stuck)]).await.unwrap();
        assert!(before.elapsed() <= patience, "each of them was waited for");
        assert_eq!(next.list().await.unwrap().leases.len(), 3, "kept for an engine that can");
    }
}

#[tokio::test]
async fn what_an_unknown_backend_left_is_not_called_gone() {
    let stuck = programs().with_faults(Faults { destroy: Fault::Error, ..Faults::default() });
    let bench = bench_with(stuck, |_| {}).await;
    assert!(bench.run("seven").await.close().await.is_err());
    let id = bench.engine.list().await.unwrap().leases[0].body.id.clone();
    let PipelineBench { engine, _state: state, .. } = bench;
    drop(engine);
    let next = Engine::open(EngineConfig::at(state.path().join("state")), vec![]).await.unwrap();
    assert_eq!(next.destroy(&id).await.unwrap_err().code(), ErrorCode::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn giving_up_at_any_await_leaves_nothing() {
    for polls in 0..40 {
        let bench = bench(Faults::default()).await;
        drop_after(polls, bench.engine.run(spec(), Command::program(["forever"]))).await;
        let created = drop_after(polls, bench.engine.create(spec())).await;
        if let Some(Ok(id)) = created {
            // A create that ran to its end in time is the caller's to destroy.
            bench.engine.destroy(&id).await.unwrap();
        }
        settle(&bench).await;
        bench.nothing_left().await;
    }
}

/// Lets the tasks that were left behind finish their work.
async fn settle(bench: &PipelineBench) {
    for _ in 0..10_000 {
        let gone = bench.mock.list().await.unwrap().is_empty();
        if gone && bench.engine.list().await.unwrap().leases.is_empty() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_quota_bounds_the_live_sandboxes_of_a_tenant() {
    let limited: TenantName = "limited".parse().unwrap();
    let quotas =
        BTreeMap::from([(limited.clone(), Quota { sandboxes: Some(1), ..Quota::default() })]);
    let bench = bench_with(programs(), |config| config.quotas = quotas).await;
    let wish = SandboxSpec { tenant: limited, ..spec() };
    let first = bench.engine.create(wish.clone()).await.unwrap();
    let error = bench.engine.create(wish.clone()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    bench.engine.create(spec()).await.unwrap();
    bench.engine.destroy(&first).await.unwrap();
    bench.engine.create(wish).await.unwrap();
}

#[tokio::test]
async fn a_quota_bounds_the_executions_of_a_tenant_and_its_starts() {
    let quota = Quota { executions: Some(1), ..Quota::default() };
    let bench = bench_with(programs(), |config| config.default_quota = quota).await;
    let sandbox = bench.engine.create(spec()).await.unwrap();
    let first = bench.engine.exec(&sandbox, Command::program(["forever"])).await.unwrap();
    let refused = bench.engine.exec(&sandbox, Command::program(["true"])).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    let refused = bench.engine.run(spec(), Command::program(["true"])).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    first.close().await.unwrap();
    let second = bench.engine.exec(&sandbox, Command::program(["true"])).await.unwrap();
    second.outcome().await;
    let quota = Quota { starts_per_minute: Some(2), ..Quota::default() };
    let bench = bench_with(programs(), |config| config.default_quota = quota).await;
    let sandbox = bench.engine.create(spec()).await.unwrap();
    bench.engine.exec(&sandbox, Command::program(["true"])).await.unwrap();
    let refused = bench.engine.create(spec()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    assert!(refused.retry_delay().is_some(), "{refused}");
}

#[tokio::test]
async fn a_quota_bounds_what_the_limits_of_live_sandboxes_add_up_to() {
    let quota = Quota { memory: Some(Bytes::mib(1024)), ..Quota::default() };
    let bench = bench_with(programs(), |config| config.default_quota = quota).await;
    // Half of it each, by default.
    let first = bench.engine.create(spec()).await.unwrap();
    bench.engine.create(spec()).await.unwrap();
    let error = bench.engine.create(spec()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    let error = bench.engine.run(spec(), Command::program(["true"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    let other = SandboxSpec { tenant: "other".parse().unwrap(), ..spec() };
    bench.engine.create(other).await.unwrap();
    bench.engine.destroy(&first).await.unwrap();
    bench.engine.create(spec()).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_without_a_limit_that_a_quota_counts_is_refused_with_the_flag() {
    let cpus = Quota { cpus: Some(Millicores(800)), ..Quota::default() };
    let bench = bench_with(programs(), |config| config.default_quota = cpus).await;
    let error = bench.engine.create(spec()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Refused);
    assert!(error.hint().unwrap().contains("--cpu"), "{error}");
    let limits = Limits { cpu_rate: Some(Millicores(500)), ..Limits::default() };
    let half = SandboxSpec { limits, ..spec() };
    bench.engine.create(half.clone()).await.unwrap();
    let error = bench.engine.create(half).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    // A limit that was given up bounds as little as one that nothing enforces.
    let memory = Quota { memory: Some(Bytes::mib(1024)), ..Quota::default() };
    let given_up = SandboxSpec { without: [Feature::MemoryLimit].into(), ..spec() };
    for (mock, wish) in [(programs(), given_up), (without_memory_limit(), spec())] {
        let bench = bench_with(mock, |config| config.default_quota = memory).await;
        let error = bench.engine.create(wish).await.unwrap_err();
        let named: Vec<_> = error.refusals().unwrap().0.iter().filter_map(|r| r.feature).collect();
        assert_eq!(named, [Feature::MemoryLimit]);
        bench.nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn processor_time_of_ended_and_running_commands_is_counted_by_the_hour() {
    let quota = Quota { cpu_seconds_per_hour: Some(2), ..Quota::default() };
    let burn = ScriptStep::Burn(Duration::from_secs(2));
    let mock = programs()
        .with_program("burn", Script(vec![burn.clone()]))
        .with_program("serve", Script(vec![burn, ScriptStep::Sleep(Duration::MAX / 4)]));
    for program in ["burn", "serve"] {
        let bench = bench_with(mock.clone(), |config| config.default_quota = quota).await;
        let sandbox = bench.engine.create(spec()).await.unwrap();
        let execution = bench.engine.exec(&sandbox, Command::program([program])).await.unwrap();
        // In simulated time: past the next time that it is charged.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(execution.known_outcome().is_some(), program == "burn");
        let error = bench.engine.exec(&sandbox, Command::program(["true"])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::QuotaExceeded);
        assert!(error.retry_delay().is_some(), "{error}");
        let error = bench.engine.run(spec(), Command::program(["true"])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::QuotaExceeded);
        // A sandbox alone uses none, and another tenant has its own.
        let other = SandboxSpec { tenant: "other".parse().unwrap(), ..spec() };
        bench.engine.create(spec()).await.unwrap();
        bench.engine.run(other, Command::program(["true"])).await.unwrap();
        execution.close().await.unwrap();
    }
}

/// A mock that counts how often it is measured.
struct Counted(Mock, Arc<std::sync::atomic::AtomicU32>);

#[async_trait::async_trait]
impl Backend for Counted {
    fn name(&self) -> BackendName {
        self.0.name()
    }

    async fn probe(&self) -> Capabilities {
        self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.0.probe().await
    }

    fn fingerprint(&self) -> Option<String> {
        Some("the same kernel".into())
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        self.0.create(id, admitted).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.0.list().await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.0.destroy(id).await
    }
}

#[tokio::test]
async fn a_measurement_is_kept_for_the_next_engine_and_taken_anew_when_asked() {
    let state = tempfile::tempdir().unwrap();
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    for _ in 0..3 {
        let backend = Counted(programs(), Arc::clone(&count));
        let config = EngineConfig::at(state.path().join("state"));
        let engine = Engine::open(config, vec![Arc::new(backend)]).await.unwrap();
        let execution = engine.run(spec(), Command::program(["true"])).await.unwrap();
        assert!(execution.outcome().await.success());
        assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
    let backend = Counted(programs(), Arc::clone(&count));
    let config = EngineConfig::at(state.path().join("state"));
    Engine::open(config, vec![Arc::new(backend)]).await.unwrap().detect().await;
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 2);
}
