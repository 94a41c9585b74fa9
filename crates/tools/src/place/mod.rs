//! Where tools run: one sandbox of an engine, or the machine itself by the same means.
//!
//! Everything goes through an engine, so that each execution has its record, its limits and its end.
//! Local execution has an engine of its own with one backend that no spec can name elsewhere.

mod jobs;
mod places;
mod spool;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_backends::local;
use stockade_core::{
    BackendName, Boundary, Command, EntryKind, ErrorCode, Files, JobId, Outcome, Sandbox,
    SandboxId, SandboxPath, SandboxSpec, WORKSPACE_ROOT, Workspace, WorkspaceSource,
};
use stockade_engine::{Engine, Execution, Output, SandboxRequest};
use stockade_workspaces::SandboxWorkspaces;
use tokio::sync::OnceCell;

pub(crate) use jobs::{ToolJob, ToolJobs};
pub(crate) use places::ToolPlaces;
pub use places::spool_cache;

use crate::approval::{Facts, NetworkFact, Programs, plain_path};
use crate::arguments::Stream;
use crate::browser::BrowserSession;
use crate::options::{AdoptedSandbox, SandboxShare};
use crate::workspace::WorkspaceView;
use crate::{Call, ToolError};

/// How many sessions of this process have adopted a sandbox.
static ADOPTED_SESSIONS: AtomicU64 = AtomicU64::new(0);
/// How often it is looked whether walls still stand: they go down without an event.
const ALIVE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long it may take to hear why they do not.
const LOST_TIMEOUT: Duration = Duration::from_secs(2);

/// One place.
pub(crate) struct ToolPlace {
    pub engine: Arc<Engine>,
    pub id: SandboxId,
    pub spec: SandboxSpec,
    pub backend: BackendName,
    pub boundary: Boundary,
    pub jobs: ToolJobs,
    pub local: bool,
    /// Whether it was there before this session, which does not end it.
    pub adopted: bool,
    /// Its workspace, where changes are kept apart.
    pub view: Option<WorkspaceView>,
    /// Where the search program lies in it, once it was put there.
    pub finder: OnceCell<String>,
    /// Its browser, once an agent has opened a page.
    pub browser: tokio::sync::Mutex<Option<BrowserSession>>,
    sandbox: Arc<dyn Sandbox>,
    /// Whether it is paused while a person decides.
    pub paused: AtomicBool,
    /// Why its walls went down, cached after the first query.
    down: OnceCell<WallsDown>,
    /// Its share of the sandboxes that agents may make.
    share: Mutex<Option<SandboxShare>>,
    shell: OnceCell<&'static str>,
}

impl ToolPlace {
    /// Builds the sandbox. Its output is kept in a directory beneath `spools`.
    pub(crate) async fn build(
        engine: &Arc<Engine>,
        mut spec: SandboxSpec,
        workspaces: Option<&SandboxWorkspaces>,
        spools: PathBuf,
        local: bool,
        share: Option<SandboxShare>,
    ) -> Result<Self, ToolError> {
        let source = match &spec.workspace {
            Workspace::Overlay(_) => workspaces,
            Workspace::Local(_) | Workspace::Ephemeral => None,
        };
        let workspace = source.map(|source| Arc::new(source.clone()) as Arc<dyn WorkspaceSource>);
        let request = SandboxRequest { workspace, ..SandboxRequest::from(spec.clone()) };
        let id = engine.create(request).await?;
        let view = match (source, engine.workspace(&id)?) {
            (Some(source), Some(held)) => {
                spec.workspace = held.spec();
                Some(WorkspaceView::new(source.workspaces(), held.id()))
            }
            (Some(_), None) | (None, _) => None,
        };
        let jobs = ToolJobs::new(spools.join(id.as_str()));
        let place = Self::of_live(engine, id, spec, jobs, view)?;
        Ok(Self { local, share: Mutex::new(share), ..place })
    }

    /// A place in a sandbox that is there already, and not this session's to end.
    pub(crate) fn adopt(
        engine: &Arc<Engine>,
        adopted: &AdoptedSandbox,
        spools: PathBuf,
    ) -> Result<Self, ToolError> {
        let AdoptedSandbox { id, spec, workspaces } = adopted;
        let mut spec = spec.clone();
        let view = match (workspaces, engine.workspace(id)?) {
            (Some(workspaces), Some(held)) => {
                spec.workspace = held.spec();
                Some(WorkspaceView::new(workspaces, held.id()))
            }
            (Some(_), None) | (None, _) => None,
        };
        // Several sessions may be in it, each with output of its own.
        let session = ADOPTED_SESSIONS.fetch_add(1, Ordering::Relaxed);
        let jobs = ToolJobs::new(spools.join(id.as_str()).join(format!("session-{session}")));
        Ok(Self { adopted: true, ..Self::of_live(engine, id.clone(), spec, jobs, view)? })
    }

    fn of_live(
        engine: &Arc<Engine>,
        id: SandboxId,
        spec: SandboxSpec,
        jobs: ToolJobs,
        view: Option<WorkspaceView>,
    ) -> Result<Self, ToolError> {
        let (backend, boundary) = engine.walls(&id)?;
        let sandbox = engine.sandbox(&id)?;
        Ok(Self {
            engine: Arc::clone(engine),
            id,
            spec,
            backend,
            boundary,
            jobs,
            local: false,
            adopted: false,
            view,
            finder: OnceCell::new(),
            browser: tokio::sync::Mutex::default(),
            sandbox,
            paused: AtomicBool::new(false),
            down: OnceCell::new(),
            share: Mutex::new(None),
            shell: OnceCell::new(),
        })
    }

    pub(crate) fn files(&self) -> Result<&dyn Files, ToolError> {
        Ok(self.sandbox.files()?)
    }

    /// Whether its walls still stand and something answers behind them.
    pub(crate) fn lives(&self) -> bool {
        self.sandbox.alive() && self.engine.sandbox(&self.id).is_ok()
    }

    /// Ends it when its walls go down from outside: by `stockade kill`, by a container engine, with a
    /// far side. So its lease is given back without a tool call.
    pub(crate) fn watch(self: &Arc<Self>) {
        let place = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ALIVE_POLL_INTERVAL).await;
                let Some(place) = place.upgrade() else { return };
                if place.engine.sandbox(&place.id).is_err() {
                    return;
                }
                if !place.sandbox.alive() {
                    // While the process that kills it waits for its lease, and can be told from a loss.
                    place.why_down().await;
                    // What cannot be ended now is tried again by the next call, and reaped at last.
                    let _ = place.engine.destroy(&place.id).await;
                    return;
                }
            }
        });
    }

    /// Why its walls went down.
    pub(crate) async fn why_down(&self) -> &WallsDown {
        let find = || async {
            match self.engine.ended_on_purpose(&self.id) {
                true => WallsDown::Killed,
                false => WallsDown::Lost(self.why_lost().await),
            }
        };
        self.down.get_or_init(find).await
    }

    /// Why it is lost: the message of the error that a file request gets now.
    async fn why_lost(&self) -> String {
        let ask = async {
            let root = "/".parse::<SandboxPath>().ok()?;
            let error = self.sandbox.files().ok()?.stat(&root).await.err()?;
            Some(error.message().to_owned())
        };
        let said = tokio::time::timeout(LOST_TIMEOUT, ask).await.ok().flatten();
        said.unwrap_or_else(|| "it was ended from outside".to_owned())
    }

    /// What is lost with it, in words.
    pub(crate) fn what_is_lost(&self) -> String {
        let files = match (&self.spec.workspace, &self.view) {
            (_, Some(view)) => format!(
                "what was changed in its workspace is kept apart in workspace {id} (`stockade \
                 workspace diff {id}`), and the new one begins without it",
                id = view.id
            ),
            (Workspace::Local(_), None) => {
                "its workspace is the user's directory and still exists, except for what was being written"
                    .to_owned()
            }
            (Workspace::Ephemeral | Workspace::Overlay(_), None) => {
                "the files of its workspace are lost".to_owned()
            }
        };
        format!("{files}; files outside the workspace, programs that ran and their output are lost")
    }

    /// Refuses a path that leads out of the workspace of local execution, before a person is asked.
    pub(crate) async fn refuse_outside(&self, paths: &[&SandboxPath]) -> Result<(), ToolError> {
        for path in paths {
            if let Some(error) = self.leads_outside(path).await? {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Why a path leads out of the workspace of local execution, if it does. Any other fault of the path is
    /// reported only after the call is approved.
    pub(crate) async fn leads_outside(
        &self,
        path: &SandboxPath,
    ) -> Result<Option<ToolError>, ToolError> {
        if !self.local {
            return Ok(None);
        }
        let files = self.files()?;
        let looked = match files.stat(path).await {
            // Opened, to see where it leads; nothing is read.
            Ok(entry) if entry.kind == EntryKind::Symlink => files.read(path, 0, 0).await.err(),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        let outside = looked.filter(|error| error.code() == ErrorCode::PathEscapes);
        Ok(outside.map(ToolError::from))
    }

    /// Ends it, and removes what was kept of its output. Of one that was adopted the programs of this session end,
    /// and nothing else.
    pub(crate) async fn end(&self) -> Result<(), ToolError> {
        if self.adopted {
            self.jobs.cancel_running().await;
            // One that a call is using ends with that call.
            if let Some(browser) = self.browser.try_lock().ok().and_then(|mut slot| slot.take()) {
                browser.close(self).await;
            }
            self.forget();
            return Ok(());
        }
        let ended = self.engine.destroy(&self.id).await;
        self.forget();
        Ok(ended?)
    }

    /// Lets go of what outlives the walls.
    pub(crate) fn forget(&self) {
        self.jobs.forget();
        // Given back here and not on drop: the watching task may hold the place a little longer.
        self.share.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Starts a command under a record of this id. The handle kills when it is dropped.
    pub(crate) async fn start(
        &self,
        job: JobId,
        command: Command,
        line: String,
    ) -> Result<(Execution, Arc<ToolJob>), ToolError> {
        let prepared = self.jobs.prepare(&job)?;
        let started = self.engine.exec_followed_as(job, &self.id, command).await;
        let (execution, output) = started.inspect_err(|_| prepared.discard())?;
        let job = self.jobs.keep(prepared, execution.clone(), output, line);
        Ok((execution, job))
    }

    /// Runs one of the tools' own programs to its end, without keeping its output for `logs`.
    pub(crate) async fn run(
        &self,
        command: Command,
        call: &Call,
    ) -> Result<FinishedRun, ToolError> {
        let (execution, events) = self.engine.exec_followed(&self.id, command).await?;
        tokio::select! {
            Output { stdout, outcome, .. } = events.output() => Ok(FinishedRun { stdout, outcome }),
            () = call.cancelled.wait() => {
                let _ = execution.close().await;
                Err(ToolError::cancelled())
            }
        }
    }

    /// The shell that reads command lines: `bash` where there is one.
    pub(crate) async fn shell(&self) -> &'static str {
        let look = || async {
            let there = match ("/bin/bash".parse::<SandboxPath>(), self.local) {
                (_, true) => std::path::Path::new("/bin/bash").exists(),
                (Ok(path), false) => match self.files() {
                    Ok(files) => files.stat(&path).await.is_ok(),
                    Err(_) => false,
                },
                (Err(_), false) => false,
            };
            if there { "/bin/bash" } else { "/bin/sh" }
        };
        self.shell.get_or_init(look).await
    }

    /// Where a command starts, as the command itself sees it.
    pub(crate) fn directory(&self, given: Option<&SandboxPath>) -> String {
        let dir = given.or(self.spec.workdir.as_ref()).map_or(".", SandboxPath::as_str);
        if dir.starts_with('/') {
            return dir.to_owned();
        }
        let root = match (self.local, self.spec.workspace.clone()) {
            (true, Workspace::Local(path)) => path.to_string(),
            (true, Workspace::Ephemeral | Workspace::Overlay(_)) | (false, _) => {
                WORKSPACE_ROOT.to_owned()
            }
        };
        match dir.trim_start_matches("./") {
            "" | "." => root,
            inner => format!("{root}/{inner}"),
        }
    }

    /// A path as rules see it: one spelling, from the workspace on where it leads there.
    fn normalize_path(&self, path: &SandboxPath) -> String {
        let inside = match &self.spec.workspace {
            Workspace::Local(root) => local::inside(root, path).ok(),
            Workspace::Overlay(layers) => local::inside(&layers.lower, path).ok(),
            Workspace::Ephemeral => None,
        };
        plain_path(inside.as_ref().unwrap_or(path).as_str())
    }

    /// What is known about a call here.
    pub(crate) fn facts(&self, tool: &str, programs: Programs, paths: &[&SandboxPath]) -> Facts {
        let network =
            if self.local { NetworkFact::Host } else { NetworkFact::from(&self.spec.network) };
        Facts {
            tool: tool.to_owned(),
            programs,
            paths: paths.iter().map(|path| self.normalize_path(path)).collect(),
            network,
            backend: Some(self.backend.clone()),
            boundary: self.boundary,
            widens: false,
            person_only: false,
            details: Vec::new(),
        }
    }
}

/// Why the walls of a place went down while it was in use.
pub(crate) enum WallsDown {
    /// Another process ended the sandbox on purpose.
    Killed,
    /// The sandbox was lost, for this reason.
    Lost(String),
}

/// What a program of the tools' own did.
pub(crate) struct FinishedRun {
    pub stdout: Vec<u8>,
    pub outcome: Outcome,
}

/// What was read of a stream that is kept.
pub(crate) struct OutputPiece {
    pub data: Vec<u8>,
    pub next: u64,
    pub total: u64,
}

/// How long to wait for something new at most.
pub(crate) const MAX_OUTPUT_WAIT: Duration = Duration::from_secs(600);

impl From<Stream> for stockade_core::StreamId {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}
