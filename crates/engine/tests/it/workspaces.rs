//! The workspace step of the pipeline: acquired before there are walls, released when they are gone, whatever
//! happens in between.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use stockade_backends::mock::{Fault, Faults, Mock, Script, ScriptStep};
use stockade_core::*;
use stockade_engine::*;
use tokio::sync::{OnceCell, Semaphore};

use crate::common::drop_after;

/// Hands out workspaces and notes what happens to them.
#[derive(Clone)]
struct NotedSource {
    mock: Mock,
    acquired: Arc<AtomicUsize>,
    /// For each that was released, how many sandboxes there were then.
    released: Arc<Mutex<Vec<usize>>>,
    release_fails: bool,
    /// Nothing is released while a test has its one permit.
    gate: Arc<Semaphore>,
}

struct NotedWorkspace {
    id: WorkspaceId,
    source: NotedSource,
    released: OnceCell<Result<()>>,
}

impl NotedWorkspace {
    async fn note_release(&self) -> Result<()> {
        let _pass = self.source.gate.acquire().await.unwrap();
        let standing = self.source.mock.list().await?.len();
        self.source.released.lock().unwrap().push(standing);
        if self.source.release_fails {
            return Err(Error::new(ErrorCode::System, "release the workspace", "no room"));
        }
        Ok(())
    }
}

impl fmt::Debug for NotedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotedSource")
    }
}

impl fmt::Debug for NotedWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotedWorkspace")
    }
}

#[async_trait]
impl WorkspaceSource for NotedSource {
    async fn acquire(&self) -> Result<Arc<dyn HeldWorkspace>> {
        let count = self.acquired.fetch_add(1, Ordering::SeqCst);
        let id = format!("ws{count}").parse().unwrap();
        Ok(Arc::new(NotedWorkspace { id, source: self.clone(), released: OnceCell::new() }))
    }
}

#[async_trait]
impl HeldWorkspace for NotedWorkspace {
    fn id(&self) -> &WorkspaceId {
        &self.id
    }

    fn spec(&self) -> Workspace {
        Workspace::Ephemeral
    }

    async fn release(&self) -> Result<()> {
        self.released.get_or_init(|| self.note_release()).await.clone()
    }
}

struct WorkspaceBench {
    engine: Engine,
    source: NotedSource,
    _state: tempfile::TempDir,
}

async fn bench(faults: Faults) -> WorkspaceBench {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::new()
        .with_program("true", Script::default())
        .with_program(
            "forever",
            Script(vec![ScriptStep::IgnoreSignals, ScriptStep::Sleep(Duration::MAX / 4)]),
        )
        .with_faults(faults);
    let config = EngineConfig::at(state.path().join("state"));
    let engine = Engine::open(config, vec![Arc::new(mock.clone())]).await.unwrap();
    let (acquired, released) = (Arc::default(), Arc::default());
    let gate = Arc::new(Semaphore::new(1));
    let source = NotedSource { mock, acquired, released, release_fails: false, gate };
    WorkspaceBench { engine, source, _state: state }
}

impl WorkspaceBench {
    fn request(&self) -> SandboxRequest {
        let spec = SandboxSpec { backend: "mock".parse().unwrap(), ..SandboxSpec::default() };
        SandboxRequest {
            workspace: Some(Arc::new(self.source.clone())),
            ..SandboxRequest::from(spec)
        }
    }

    /// How many sandboxes there were at each release.
    fn released(&self) -> Vec<usize> {
        self.source.released.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn the_workspace_of_a_run_is_released_before_its_outcome_and_after_its_walls() {
    let bench = bench(Faults::default()).await;
    let run = bench.engine.run(bench.request(), Command::program(["forever"])).await.unwrap();
    assert!(bench.released().is_empty());
    run.cancel();
    run.outcome().await;
    assert_eq!(bench.released(), [0]);
}

#[tokio::test]
async fn the_workspace_of_a_sandbox_is_its_own_until_it_is_destroyed() {
    let bench = bench(Faults::default()).await;
    let id = bench.engine.create(bench.request()).await.unwrap();
    let held = bench.engine.workspace(&id).unwrap().unwrap();
    assert_eq!(held.id().as_str(), "ws0");
    bench.engine.exec(&id, Command::program(["true"])).await.unwrap().outcome().await;
    assert!(bench.released().is_empty());
    bench.engine.destroy(&id).await.unwrap();
    assert_eq!(bench.released(), [0]);
}

#[tokio::test]
async fn what_is_refused_or_fails_leaves_no_workspace() {
    let fine = bench(Faults::default()).await;
    let mut elsewhere = fine.request();
    elsewhere.spec.backend = "nowhere".parse().unwrap();
    fine.engine.run(elsewhere.clone(), Command::program(["true"])).await.unwrap_err();
    fine.engine.create(elsewhere).await.unwrap_err();
    assert_eq!(fine.released(), [0, 0]);
    let create = Faults { create: Fault::Error, ..Faults::default() };
    let spawn = Faults { spawn: Fault::Error, ..Faults::default() };
    for faults in [create, spawn] {
        let faulty = bench(faults).await;
        faulty.engine.run(faulty.request(), Command::program(["true"])).await.unwrap_err();
        assert_eq!(faulty.released(), [0]);
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_half_way_leaves_no_workspace() {
    for polls in 0..40 {
        let bench = bench(Faults::default()).await;
        let (engine, forever) = (&bench.engine, Command::program(["forever"]));
        drop(drop_after(polls, engine.run(bench.request(), forever)).await);
        engine.close().await.unwrap();
        let acquired = bench.source.acquired.load(Ordering::SeqCst);
        assert_eq!(bench.released(), vec![0; acquired], "after {polls} polls");
    }
}

#[tokio::test]
async fn a_workspace_that_cannot_be_released_is_told_by_a_run_alone() {
    let mut bench = bench(Faults::default()).await;
    bench.source.release_fails = true;
    let run = bench.engine.run(bench.request(), Command::program(["true"])).await.unwrap();
    assert_eq!(run.close().await.unwrap_err().message(), "no room");
    let id = bench.engine.create(bench.request()).await.unwrap();
    bench.engine.destroy(&id).await.unwrap();
    assert_eq!(bench.released(), [0, 0]);
}

#[tokio::test]
async fn one_who_closes_the_engine_waits_for_a_workspace_that_is_being_released() {
    let bench = bench(Faults::default()).await;
    let id = bench.engine.create(bench.request()).await.unwrap();
    let shut = Arc::clone(&bench.source.gate).acquire_owned().await.unwrap();
    let engine = bench.engine.clone();
    let destroying = tokio::spawn(async move { engine.destroy(&id).await });
    while !bench.source.mock.list().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let mut closing = std::pin::pin!(bench.engine.close());
    assert!(drop_after(200, &mut closing).await.is_none(), "closed before the release");
    drop(shut);
    closing.await.unwrap();
    destroying.await.unwrap().unwrap();
    assert_eq!(bench.released(), [0]);
}
