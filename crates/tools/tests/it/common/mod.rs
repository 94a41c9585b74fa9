//! A toolbox over a real engine and a workspace of its own, in a sandbox or locally.
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses a part; a test fails where a value is missing"
)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use stockade_backends::landlock::{self, Landlock};
use stockade_backends::native::{self, Native};
use stockade_core::{Backend, BackendChoice, ErrorCode, HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig, Event, Filter};
use stockade_tools::{
    ApprovalConfig, Ask, Call, Cancelled, Decision, LocalOptions, Nobody, Question, ToolAnswer,
    ToolError, Toolbox, ToolboxOptions,
};

/// Timeout of a test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a test that must end in time.
pub fn test<F: Future<Output = ()>>(body: F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, body).await.unwrap() });
}

/// Where the tools run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    Native,
    Landlock,
    Local,
}

/// In the usual sandbox, and without one.
pub const NATIVE_AND_LOCAL: [Where; 2] = [Where::Native, Where::Local];
pub const ALL_PLACES: [Where; 3] = [Where::Native, Where::Landlock, Where::Local];

pub struct ToolBench {
    pub toolbox: Toolbox,
    pub engine: Arc<Engine>,
    pub whose: Arc<Person>,
    dir: tempfile::TempDir,
}

/// Answers every question the same way, and remembers them.
pub struct Person {
    pub answer: Mutex<Option<Decision>>,
    pub asked: Mutex<Vec<Question>>,
}

#[async_trait]
impl Ask for Person {
    async fn ask(&self, question: Question) -> Decision {
        self.asked.lock().unwrap().push(question);
        let answer = self.answer.lock().unwrap().clone();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

impl ToolBench {
    pub async fn new(place: Where) -> Self {
        Self::with(place, |_| {}).await
    }

    pub async fn with(place: Where, change: impl FnOnce(&mut ToolboxOptions)) -> Self {
        Self::on(&std::env::temp_dir(), place, change).await
    }

    /// On another file system.
    pub async fn on(base: &Path, place: Where, change: impl FnOnce(&mut ToolboxOptions)) -> Self {
        let dir = tempfile::tempdir_in(base).unwrap();
        let workspace = dir.path().join("work");
        std::fs::create_dir(&workspace).unwrap();
        let state = dir.path().join("state");
        let backends: Vec<Arc<dyn Backend>> =
            vec![Arc::new(Native::new()), Arc::new(Landlock::new())];
        let engine = Engine::open(EngineConfig::at(&state), backends).await.unwrap();
        let engine = Arc::new(engine);
        let mut options = ToolboxOptions::at(&state);
        let host: HostPath = workspace.try_into().unwrap();
        let mut spec =
            SandboxSpec { workspace: Workspace::Local(host.clone()), ..Default::default() };
        let named = if place == Where::Landlock { landlock::NAME } else { native::NAME };
        spec.backend = BackendChoice::Named(named);
        options.template = spec.clone();
        match place {
            Where::Native | Where::Landlock => options.bound = Some(spec),
            Where::Local => {
                options.local = Some(LocalOptions::at(host));
                // What is asked about locally is tested by itself.
                options.approval = allow_everything();
            }
        }
        change(&mut options);
        let person = Person { answer: Mutex::new(Some(Decision::Yes)), asked: Mutex::default() };
        let toolbox = Toolbox::new(Arc::clone(&engine), options);
        Self { toolbox, engine, whose: Arc::new(person), dir }
    }

    /// A path on the host, in the workspace.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    /// A path on the host that tools must not reach.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn caller(&self) -> Call {
        Call {
            progress: Arc::new(Nobody),
            ask: Arc::clone(&self.whose) as Arc<dyn Ask>,
            cancelled: Cancelled::never(),
        }
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Result<ToolAnswer, ToolError> {
        self.toolbox.call(tool, arguments, &self.caller()).await
    }

    /// The data of a call that must succeed.
    #[track_caller]
    pub fn ok(&self, tool: &str, arguments: Value) -> impl Future<Output = Value> {
        let told = format!("{tool} {arguments}");
        let answer = self.call_owned(tool, arguments);
        async move {
            match answer.await {
                Ok(answer) => answer.structured,
                Err(error) => panic!("{told}: {error:?}"),
            }
        }
    }

    fn call_owned(
        &self,
        tool: &str,
        arguments: Value,
    ) -> impl Future<Output = Result<ToolAnswer, ToolError>> {
        let (tool, caller) = (tool.to_owned(), self.caller());
        async move { self.toolbox.call(&tool, arguments, &caller).await }
    }

    /// The failure of a call that must be refused.
    pub async fn refused(&self, tool: &str, arguments: Value) -> ToolError {
        let told = format!("{tool} {arguments}");
        match self.call(tool, arguments).await {
            Ok(answer) => panic!("{told} was not refused: {}", answer.text),
            Err(error) => error,
        }
    }

    /// Fails unless the call is refused with this code and names this.
    pub async fn refuses(&self, tool: &str, arguments: Value, code: ErrorCode, names: &str) {
        let told = format!("{tool} {arguments}");
        let error = self.refused(tool, arguments).await;
        assert_eq!(error.code, code, "{told}: {error}");
        assert!(error.message.contains(names), "{told}: {error}");
    }

    /// Every event of the journal.
    pub fn events(&self) -> Vec<Event> {
        let records = self.engine.journal().records(Filter::default()).unwrap();
        records.map(|record| record.unwrap().event).collect()
    }

    /// Ends it, and fails if anything is left.
    pub async fn close(self) {
        self.toolbox.close().await;
        let leases = self.engine.list().await.unwrap().leases;
        assert!(leases.is_empty(), "a sandbox is left");
        let spools = std::fs::read_dir(self.state().join("spools"));
        assert_eq!(spools.map_or(0, Iterator::count), 0, "output is left");
    }
}

pub fn allow_everything() -> ApprovalConfig {
    serde_json::from_value(serde_json::json!({ "rules": [{ "verdict": "allow" }] })).unwrap()
}
