//! What the record says about executions that did not end by themselves, or whose engine did not live to see
//! their end; and the output that outlives them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stockade_backends::mock::{Fault, Faults, Mock, Script, ScriptStep};
use stockade_core::*;
use stockade_engine::*;

fn programs() -> Mock {
    let hello = vec![
        ScriptStep::Write(StreamId::Stdout, "out".into()),
        ScriptStep::Write(StreamId::Stderr, "err".into()),
        ScriptStep::Exit(3),
    ];
    let server = vec![
        ScriptStep::Write(StreamId::Stdout, "listening".into()),
        ScriptStep::Sleep(Duration::MAX / 4),
    ];
    Mock::new()
        .with_program("true", Script::default())
        .with_program("hello", Script(hello))
        .with_program(
            "forever",
            Script(vec![ScriptStep::IgnoreSignals, ScriptStep::Sleep(Duration::MAX / 4)]),
        )
        .with_program("server", Script(server))
}

async fn engine_at(state: &Path, mock: &Mock, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig::at(state);
    change(&mut config);
    Engine::open(config, vec![Arc::new(mock.clone())]).await.unwrap()
}

fn spec() -> SandboxSpec {
    SandboxSpec { backend: "mock".parse().unwrap(), ..SandboxSpec::default() }
}

fn jobs(engine: &Engine) -> Vec<Job> {
    engine.journal().jobs(Filter::default()).unwrap().map(|job| job.unwrap()).collect()
}

fn recorded_ending(engine: &Engine) -> Ending {
    let job = jobs(engine).pop().unwrap();
    job.stopped.unwrap().event.outcome().unwrap().ending.clone()
}

fn leases_at(state: &Path) -> Leases {
    Leases::open(&StateDir::open(state).unwrap()).unwrap()
}

#[tokio::test]
async fn a_sandbox_that_another_process_ends_on_purpose_is_killed_and_not_lost() {
    let state = tempfile::tempdir().unwrap();
    let mock = programs();
    let engine = engine_at(state.path(), &mock, |_| {}).await;
    let running = engine.run(spec(), Command::program(["forever"])).await.unwrap();
    let request = leases_at(state.path()).request_kill(running.sandbox()).unwrap();
    mock.destroy(running.sandbox()).await.unwrap();
    assert_eq!(running.outcome().await.ending, Ending::Killed);
    assert_eq!(recorded_ending(&engine), Ending::Killed);
    drop(request);
    assert!(engine.ended_on_purpose(running.sandbox()), "also when the request is gone");
    let leases: Vec<_> = std::fs::read_dir(state.path().join("leases")).unwrap().collect();
    assert_eq!(leases.len(), 1, "only the lock is left: {leases:?}");
}

#[tokio::test]
async fn a_request_to_kill_whose_maker_has_died_means_nothing_and_is_cleared_away() {
    let state = tempfile::tempdir().unwrap();
    let mock = programs().with_faults(Faults { stream: Fault::Drop, ..Faults::default() });
    let engine = engine_at(state.path(), &mock, |_| {}).await;
    let running = engine.run(spec(), Command::program(["forever"])).await.unwrap();
    let left = state.path().join(format!("leases/{}.kill", running.sandbox()));
    std::fs::write(&left, "").unwrap();
    mock.destroy(running.sandbox()).await.unwrap();
    assert!(matches!(running.outcome().await.ending, Ending::Lost(_)));
    assert!(!engine.ended_on_purpose(running.sandbox()));
    engine.reap().await.unwrap();
    assert!(!left.exists());
}

#[tokio::test]
async fn what_a_quota_does_not_allow_is_refused_and_not_lost() {
    let state = tempfile::tempdir().unwrap();
    let quota = Quota { sandboxes: Some(1), ..Quota::default() };
    let engine = engine_at(state.path(), &programs(), |config| config.default_quota = quota).await;
    engine.create(spec()).await.unwrap();
    let error = engine.run(spec(), Command::program(["true"])).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    let Ending::Refused(why) = recorded_ending(&engine) else { panic!("{:?}", jobs(&engine)) };
    assert!(why.contains("1 of at most 1"), "{why}");
}

/// A backend that does not take the image.
struct Picky(Mock);

#[async_trait::async_trait]
impl Backend for Picky {
    fn name(&self) -> BackendName {
        self.0.name()
    }

    async fn probe(&self) -> Capabilities {
        self.0.probe().await
    }

    async fn create(&self, _: &SandboxId, _: &Admitted) -> Result<Arc<dyn Sandbox>> {
        Err(Error::new(ErrorCode::Invalid, "create", "image: the archive holds a device"))
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.0.list().await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.0.destroy(id).await
    }
}

#[tokio::test]
async fn an_image_that_cannot_be_used_is_refused_and_not_lost() {
    let state = tempfile::tempdir().unwrap();
    let config = EngineConfig::at(state.path());
    let engine = Engine::open(config, vec![Arc::new(Picky(programs()))]).await.unwrap();
    assert!(engine.run(spec(), Command::program(["true"])).await.is_err());
    let why = "image: the archive holds a device".to_owned();
    assert_eq!(recorded_ending(&engine), Ending::Refused(why));
}

#[tokio::test]
async fn a_command_whose_sandbox_could_not_be_built_was_not_started() {
    let state = tempfile::tempdir().unwrap();
    let mock = programs().with_faults(Faults { create: Fault::Error, ..Faults::default() });
    let engine = engine_at(state.path(), &mock, |_| {}).await;
    assert!(engine.run(spec(), Command::program(["true"])).await.is_err());
    let ending = recorded_ending(&engine);
    assert!(matches!(ending, Ending::StartFailed(StartFailure::NoSandbox(_))), "{ending:?}");
}

/// An engine that dies with this many commands under way: its tasks end where they are.
fn dies_with(running: usize, state: &Path, mock: &Mock) -> Vec<JobId> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let jobs = runtime.block_on(async {
        let engine = engine_at(state, mock, |config| config.keep_output = true).await;
        let mut jobs = Vec::new();
        for _ in 0..running {
            let command = Command::program(["forever"]);
            jobs.push(engine.run(spec(), command).await.unwrap().detach().job().clone());
        }
        jobs
    });
    drop(runtime);
    jobs
}

fn unknown_ends(engine: &Engine) -> Vec<JobId> {
    let records = engine.journal().records(Filter::default()).unwrap();
    let mut found = Vec::new();
    for record in records {
        if let Event::EndUnknown { job, .. } = record.unwrap().event {
            found.push(job);
        }
    }
    found
}

#[test]
fn jobs_of_an_engine_that_died_are_closed_once_by_those_that_come_next() {
    let state = tempfile::tempdir().unwrap();
    let mock = programs();
    let jobs = dies_with(3, state.path(), &mock);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let next = || {
            let (state, mock) = (state.path().to_owned(), mock.clone());
            tokio::spawn(async move { engine_at(&state, &mock, |_| {}).await })
        };
        let mut engines = Vec::new();
        for opening in (0..8).map(|_| next()).collect::<Vec<_>>() {
            engines.push(opening.await.unwrap());
        }
        // Engines that came while another was reaping leave the rest to the next engine.
        let last = engine_at(state.path(), &mock, |_| {}).await;
        assert_eq!(unknown_ends(&last), jobs);
        assert!(last.journal().verify().unwrap().is_clean());
        let left: Vec<_> = std::fs::read_dir(state.path().join("engines")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[tokio::test]
async fn jobs_of_an_engine_that_lives_are_not_closed_by_another() {
    let state = tempfile::tempdir().unwrap();
    let mock = programs();
    let first = engine_at(state.path(), &mock, |_| {}).await;
    let running = first.run(spec(), Command::program(["forever"])).await.unwrap();
    let second = engine_at(state.path(), &mock, |_| {}).await;
    second.reap().await.unwrap();
    assert_eq!(unknown_ends(&second), []);
    running.close().await.unwrap();
    first.close().await.unwrap();
    drop((running, first));
    second.reap().await.unwrap();
    assert_eq!(unknown_ends(&second), []);
    assert_eq!(recorded_ending(&second), Ending::Cancelled);
}

#[test]
fn a_job_stays_open_while_something_of_its_sandbox_may_stand() {
    let state = tempfile::tempdir().unwrap();
    let stuck = programs().with_faults(Faults { destroy: Fault::Error, ..Faults::default() });
    let jobs = dies_with(1, state.path(), &stuck);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let next = engine_at(state.path(), &stuck, |_| {}).await;
        assert_eq!(unknown_ends(&next), []);
        let able = engine_at(state.path(), &programs(), |_| {}).await;
        assert_eq!(unknown_ends(&able), jobs);
    });
}

#[tokio::test]
async fn output_that_is_kept_is_there_for_an_engine_that_comes_later() {
    let state = tempfile::tempdir().unwrap();
    let mock = programs();
    let engine = engine_at(state.path(), &mock, |config| config.keep_output = true).await;
    let execution = engine.run(spec(), Command::program(["hello"])).await.unwrap();
    let job = execution.job().clone();
    execution.outcome().await;
    engine.close().await.unwrap();
    drop((execution, engine));
    let later = engine_at(state.path(), &mock, |_| {}).await;
    let mut reader = later.output_logs().read(&job).unwrap().unwrap();
    let mut read = Vec::new();
    while let Some(OutputEvent::Output { stream, data, .. }) = reader.next_event().unwrap() {
        read.push((stream, data));
    }
    assert_eq!(read, [(StreamId::Stdout, "out".into()), (StreamId::Stderr, "err".into())]);
    let stopped = jobs(&later).pop().unwrap().stopped.unwrap();
    assert_eq!(stopped.event.log(), Some(format!("logs/{job}").as_str()));
}

#[tokio::test]
async fn output_is_not_kept_unless_asked_for() {
    let state = tempfile::tempdir().unwrap();
    let engine = engine_at(state.path(), &programs(), |_| {}).await;
    let execution = engine.run(spec(), Command::program(["hello"])).await.unwrap();
    execution.outcome().await;
    assert!(engine.output_logs().read(execution.job()).unwrap().is_none());
}

/// The first output of an execution.
async fn first_output(execution: &Watcher) -> bytes::Bytes {
    let next = execution.subscribe().next().await;
    let Some(OutputEvent::Output { data, .. }) = next else { panic!("{next:?}") };
    data
}

#[tokio::test]
async fn programs_that_go_on_in_a_copy_are_executions_of_its_own() {
    let state = tempfile::tempdir().unwrap();
    let engine = engine_at(state.path(), &programs(), |_| {}).await;
    let id = engine.create(spec()).await.unwrap();
    let server = engine.exec(&id, Command::program(["server", "--port"])).await.unwrap();
    first_output(&server).await;
    let snapshot = engine.snapshot(&id, SnapshotKind::Full).await.unwrap().id;
    let forked = engine.fork(&id, 1).await.unwrap().remove(0);
    let made = engine.create_from(&snapshot, spec()).await.unwrap();
    for copy in [forked, made] {
        let carried = engine.executions(&copy).unwrap();
        assert_eq!(carried.len(), 1, "{carried:?}");
        assert_eq!(carried[0].command(), ["server", "--port"]);
        assert_eq!(
            (carried[0].sandbox(), first_output(&carried[0]).await),
            (&copy, "listening".into())
        );
        let record = engine.journal().job(carried[0].job()).unwrap().unwrap();
        assert!(record.stopped.is_none() && record.started.event.sandbox() == Some(&copy));
        engine.destroy(&copy).await.unwrap();
        assert_eq!(carried[0].outcome().await.ending, Ending::Cancelled);
    }
    assert_eq!(engine.executions(&id).unwrap().len(), 1, "the first one goes on");
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_command_of_its_own_takes_the_programs_that_went_on_with_it() {
    let state = tempfile::tempdir().unwrap();
    let engine = engine_at(state.path(), &programs(), |_| {}).await;
    let id = engine.create(spec()).await.unwrap();
    let server = engine.exec(&id, Command::program(["server"])).await.unwrap();
    first_output(&server).await;
    let snapshot = engine.snapshot(&id, SnapshotKind::Full).await.unwrap().id;
    let command = Command::program(["true"]);
    let (run, _) = engine.run_from_followed(&snapshot, spec(), command).await.unwrap();
    assert!(run.outcome().await.success());
    let of_run = Filter { sandbox: Some(run.sandbox().clone()), ..Filter::default() };
    let jobs: Vec<_> = engine.journal().jobs(of_run).unwrap().map(|job| job.unwrap()).collect();
    let ending = |job: &Job| job.stopped.as_ref().unwrap().event.outcome().unwrap().ending.clone();
    assert_eq!(jobs.iter().map(ending).collect::<Vec<_>>(), [Ending::Cancelled, Ending::Exited(0)]);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn programs_that_go_on_in_a_copy_count_as_executions_of_their_tenant() {
    let state = tempfile::tempdir().unwrap();
    let quota = Quota { executions: Some(2), ..Quota::default() };
    let engine = engine_at(state.path(), &programs(), |config| config.default_quota = quota).await;
    let id = engine.create(spec()).await.unwrap();
    let server = engine.exec(&id, Command::program(["server"])).await.unwrap();
    first_output(&server).await;
    let snapshot = engine.snapshot(&id, SnapshotKind::Full).await.unwrap().id;
    let copy = engine.create_from(&snapshot, spec()).await.unwrap();
    let command = || Command::program(["true"]);
    let refusals = [
        engine.exec(&id, command()).await.map(drop).unwrap_err(),
        engine.create_from(&snapshot, spec()).await.map(drop).unwrap_err(),
        engine.run_from_followed(&snapshot, spec(), command()).await.map(drop).unwrap_err(),
        // One more is refused when it is made, two before anything is captured.
        engine.fork(&id, 1).await.map(drop).unwrap_err(),
        engine.fork(&id, 2).await.map(drop).unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused.code(), ErrorCode::QuotaExceeded, "{refused}");
    }
    assert_eq!(engine.list().await.unwrap().leases.len(), 2, "a refused copy is left");
    assert_eq!(jobs(&engine).len(), 2, "a refused copy has a record of its program");
    engine.destroy(&copy).await.unwrap();
    let forked = engine.fork(&id, 1).await.unwrap().remove(0);
    engine.executions(&forked).unwrap().remove(0).close().await.unwrap();
    assert!(engine.exec(&id, command()).await.unwrap().outcome().await.success());
    engine.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn programs_that_go_on_in_a_copy_are_held_to_the_processor_time_of_their_tenant() {
    let state = tempfile::tempdir().unwrap();
    let burning = vec![
        ScriptStep::Burn(Duration::from_secs(2)),
        ScriptStep::Write(StreamId::Stdout, "listening".into()),
        ScriptStep::Sleep(Duration::MAX / 4),
    ];
    let mock = programs().with_program("burning", Script(burning));
    let quota = Quota { cpu_seconds_per_hour: Some(3), ..Quota::default() };
    let engine = engine_at(state.path(), &mock, |config| config.default_quota = quota).await;
    let id = engine.create(spec()).await.unwrap();
    let server = engine.exec(&id, Command::program(["burning"])).await.unwrap();
    first_output(&server).await;
    let snapshot = engine.snapshot(&id, SnapshotKind::Full).await.unwrap().id;
    let copy = engine.create_from(&snapshot, spec()).await.unwrap();
    first_output(&engine.executions(&copy).unwrap()[0]).await;
    // In simulated time: past the next time that both are charged.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let refused = engine.exec(&copy, Command::program(["true"])).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    let refused = engine.create_from(&snapshot, spec()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    // A sandbox in which nothing goes on uses none.
    engine.create(spec()).await.unwrap();
    engine.close().await.unwrap();
}
