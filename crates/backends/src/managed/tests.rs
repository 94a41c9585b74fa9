//! The life cycle over walls that are only noted down: what is left when a build fails, hangs or is given up.

use std::sync::Mutex;
use std::time::Duration;

use stockade_core::{Boundary, Command, EffectiveLimits, Process, SandboxSpec};
use tokio::sync::Notify;

use super::*;
use crate::linux::{admit_provisionally, lock};

/// How a build goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Succeeds,
    Fails,
    /// Waits for [`NotedWalls::go_on`], and can be given up meanwhile.
    Waits,
    /// The same, and cannot.
    WaitsForbidding,
    Panics,
}

struct NotedWalls {
    course: Course,
    begun: Notify,
    go_on: Notify,
    standing: Mutex<BTreeSet<SandboxId>>,
    /// What was done, in order.
    done: Mutex<Vec<&'static str>>,
}

struct NotedSandbox(SandboxId);

#[async_trait]
impl Sandbox for NotedSandbox {
    fn id(&self) -> &SandboxId {
        &self.0
    }

    async fn spawn(&self, _: &Command, _: &EffectiveLimits) -> Result<Process> {
        Err(Error::new(ErrorCode::Invalid, "spawn", "nothing runs here"))
    }
}

impl NotedWalls {
    fn note(&self, what: &'static str) {
        lock(&self.done).push(what);
    }
}

#[async_trait]
impl WallBuilder for NotedWalls {
    const NAME: BackendName = BackendName::literal("noted");

    async fn probe(self: Arc<Self>) -> Capabilities {
        Capabilities::none(Self::NAME, Boundary::None)
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        _: &Admitted,
        cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        lock(&self.standing).insert(id.clone());
        self.begun.notify_one();
        match self.course {
            Course::Succeeds => {}
            Course::Fails => return Err(Error::new(ErrorCode::WallMissing, "create", "it fails")),
            Course::Waits => self.go_on.notified().await,
            Course::WaitsForbidding => {
                cancellation.forbid();
                self.go_on.notified().await;
            }
            Course::Panics => panic!("it panics"),
        }
        self.note("built");
        Ok(Arc::new(NotedSandbox(id.clone())))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        lock(&self.standing).remove(id);
        self.note("taken down");
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(lock(&self.standing).iter().cloned().collect())
    }

    fn leftovers(&self) -> Vec<SandboxId> {
        lock(&self.standing).iter().cloned().collect()
    }
}

fn managed(course: Course) -> Arc<Managed<NotedWalls>> {
    Arc::new(Managed::of(NotedWalls {
        course,
        begun: Notify::new(),
        go_on: Notify::new(),
        standing: Mutex::default(),
        done: Mutex::default(),
    }))
}

fn id() -> SandboxId {
    "one".parse().unwrap()
}

fn admitted() -> Admitted {
    admit_provisionally(NotedWalls::NAME, &SandboxSpec::default()).unwrap()
}

/// Begins a build, and gives it up when it is under way.
async fn give_up(backend: &Arc<Managed<NotedWalls>>) {
    let (id, admitted) = (id(), admitted());
    tokio::select! {
        _ = backend.create(&id, &admitted) => panic!("it waits"),
        () = backend.builder().begun.notified() => {}
    }
}

fn done(backend: &Managed<NotedWalls>) -> Vec<&'static str> {
    lock(&backend.builder().done).clone()
}

#[tokio::test]
async fn what_was_built_stands_until_it_is_destroyed() {
    let backend = managed(Course::Succeeds);
    let sandbox = backend.create(&id(), &admitted()).await.unwrap();
    assert_eq!((sandbox.id(), backend.list().await.unwrap()), (&id(), vec![id()]));
    backend.destroy(&id()).await.unwrap();
    assert_eq!(backend.list().await.unwrap(), []);
    assert_eq!(done(&backend), ["built", "taken down"]);
}

#[tokio::test]
async fn a_build_that_fails_is_taken_down_before_its_caller_learns_of_it() {
    let backend = managed(Course::Fails);
    let error = backend.create(&id(), &admitted()).await.map(drop).unwrap_err();
    assert_eq!(error.code(), ErrorCode::WallMissing);
    assert_eq!(done(&backend), ["taken down"]);
}

#[tokio::test]
async fn a_build_that_is_given_up_is_dropped_and_taken_down_by_itself() {
    let backend = managed(Course::Waits);
    give_up(&backend).await;
    let gone = async {
        while !backend.list().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap();
    assert_eq!(done(&backend), ["taken down"]);
}

#[tokio::test]
async fn a_build_that_has_to_be_completed_is_and_a_destroy_waits_for_that() {
    let backend = managed(Course::WaitsForbidding);
    give_up(&backend).await;
    let mut destroying = Box::pin({
        let backend = Arc::clone(&backend);
        async move { backend.destroy(&id()).await }
    });
    let soon = tokio::time::timeout(Duration::from_millis(50), &mut destroying).await;
    assert!(soon.is_err() && done(&backend).is_empty(), "it is destroyed while it is built");
    backend.builder().go_on.notify_one();
    destroying.await.unwrap();
    // Once because nobody took it, once because it was asked for.
    assert_eq!(done(&backend), ["built", "taken down", "taken down"]);
}

#[tokio::test]
async fn what_stands_when_its_caller_is_dropped_before_it_looks_is_taken_down() {
    let backend = managed(Course::Waits);
    let (id, admitted) = (id(), admitted());
    let mut creating = Box::pin(backend.create(&id, &admitted));
    tokio::select! {
        _ = &mut creating => panic!("it waits"),
        () = backend.builder().begun.notified() => {}
    }
    backend.builder().go_on.notify_one();
    while done(&backend).is_empty() {
        tokio::task::yield_now().await;
    }
    drop(creating);
    while done(&backend).len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(done(&backend), ["built", "taken down"]);
}

#[tokio::test]
async fn a_destroy_does_not_wait_for_a_caller_that_does_not_look_and_nothing_is_taken_down_twice() {
    let backend = managed(Course::Waits);
    let (id, admitted) = (id(), admitted());
    let mut creating = Box::pin(backend.create(&id, &admitted));
    tokio::select! {
        _ = &mut creating => panic!("it waits"),
        () = backend.builder().begun.notified() => {}
    }
    backend.builder().go_on.notify_one();
    backend.destroy(&id).await.unwrap();
    drop(creating);
    // What was built again under the same id is another one.
    backend.builder().go_on.notify_one();
    backend.create(&id, &admitted).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(done(&backend), ["built", "taken down", "built"]);
    assert_eq!(backend.list().await.unwrap(), [id]);
}

#[tokio::test]
async fn a_build_that_panics_is_an_error_and_can_be_destroyed() {
    let backend = managed(Course::Panics);
    let error = backend.create(&id(), &admitted()).await.map(drop).unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (ErrorCode::System, "building the sandbox went wrong")
    );
    backend.destroy(&id()).await.unwrap();
    assert_eq!(backend.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_trial_is_taken_down_whatever_is_seen_and_whoever_waits() {
    let backend = managed(Course::Waits);
    let look = |walls: Arc<NotedWalls>, id: SandboxId| async move {
        walls.build(&id, &admitted(), &Cancellation::default()).await.map(drop)
    };
    tokio::select! {
        _ = try_out(backend.builder(), look) => panic!("it waits"),
        () = backend.builder().begun.notified() => {}
    }
    assert_eq!(backend.builder().list().await.unwrap().len(), 1);
    backend.builder().go_on.notify_one();
    while done(&backend).len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(done(&backend), ["built", "taken down"]);
}

#[tokio::test]
async fn what_dead_engines_tried_is_swept_once_and_nothing_else_is() {
    let backend = managed(Course::Succeeds);
    // Beyond what the kernel gives out.
    let forsaken: SandboxId = "probe4194305n3".parse().unwrap();
    lock(&backend.builder().standing).extend([forsaken.clone(), id()]);
    assert_eq!(backend.list().await.unwrap(), [id()]);
    lock(&backend.builder().standing).insert(forsaken.clone());
    assert_eq!(backend.list().await.unwrap(), [id(), forsaken]);
}
