//! Where tools run: one sandbox of an engine, or the machine itself by the same means.
//!
//! Everything goes through an engine, so that each execution has its record, its limits and its end.
//! Local execution has an engine of its own with one backend that no spec can name elsewhere.

mod jobs;
mod places;
mod spool;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stockade_backends::local;
use stockade_core::{
    BackendName, Boundary, Command, Files, JobId, Outcome, Sandbox, SandboxId, SandboxPath,
    SandboxSpec, StreamId, WORKSPACE_ROOT, Workspace,
};
use stockade_engine::{Engine, Execution, OutputEvent};
use tokio::sync::OnceCell;

pub(crate) use jobs::{Job, Jobs};
pub(crate) use places::Places;

use crate::approval::{Facts, NetworkFact, Programs, plain_path};
use crate::arguments::Stream;
use crate::views::{View, Views};
use crate::{Call, ToolError};

/// One place.
pub(crate) struct Place {
    pub engine: Arc<Engine>,
    pub id: SandboxId,
    pub spec: SandboxSpec,
    pub backend: BackendName,
    pub boundary: Boundary,
    pub jobs: Jobs,
    pub local: bool,
    /// Its workspace, where changes are kept apart.
    pub view: Option<View>,
    /// Where the search program lies in it, once it was put there.
    pub finder: OnceCell<String>,
    sandbox: Arc<dyn Sandbox>,
    shell: OnceCell<&'static str>,
}

impl Place {
    /// Builds the sandbox. Its output is kept in a directory beneath `spools`.
    pub(crate) async fn build(
        engine: &Arc<Engine>,
        mut spec: SandboxSpec,
        views: Option<&Views>,
        spools: PathBuf,
        local: bool,
    ) -> Result<Self, ToolError> {
        let view = match views {
            Some(views) => views.take(&mut spec).await?,
            None => None,
        };
        let created = engine.create(spec.clone()).await;
        if let (Err(_), Some(view)) = (&created, &view) {
            view.give_back().await?;
        }
        let id = created?;
        let (backend, boundary) = engine.walls(&id)?;
        let sandbox = engine.sandbox(&id)?;
        let jobs = Jobs::new(spools.join(id.as_str()));
        let (finder, shell) = (OnceCell::new(), OnceCell::new());
        let engine = Arc::clone(engine);
        Ok(Self { engine, id, spec, backend, boundary, jobs, local, view, finder, sandbox, shell })
    }

    pub(crate) fn files(&self) -> Result<&dyn Files, ToolError> {
        Ok(self.sandbox.files()?)
    }

    /// Whether its walls still stand.
    pub(crate) fn lives(&self) -> bool {
        self.engine.sandbox(&self.id).is_ok()
    }

    /// Ends it, and removes what was kept of its output.
    pub(crate) async fn end(&self) -> Result<(), ToolError> {
        let ended = self.engine.destroy(&self.id).await;
        self.forget().await;
        Ok(ended?)
    }

    /// Lets go of what outlives the walls.
    pub(crate) async fn forget(&self) {
        self.jobs.forget();
        if let Some(view) = &self.view {
            // One that cannot be given back stays listed with its changes.
            let _ = view.give_back().await;
        }
    }

    /// Starts a command under a record of this id. The handle kills when it is dropped.
    pub(crate) async fn start(
        &self,
        job: JobId,
        command: Command,
        line: String,
    ) -> Result<(Execution, Arc<Job>), ToolError> {
        let prepared = self.jobs.prepare(&job)?;
        let started = self.engine.exec_followed_as(job, &self.id, command).await;
        let (execution, output) = started.inspect_err(|_| prepared.discard())?;
        let job = self.jobs.keep(prepared, execution.clone(), output, line);
        Ok((execution, job))
    }

    /// Runs one of the tools' own programs to its end, without keeping its output for `logs`.
    pub(crate) async fn run(&self, command: Command, call: &Call) -> Result<Ran, ToolError> {
        let (execution, mut output) = self.engine.exec_followed(&self.id, command).await?;
        let mut stdout = Vec::new();
        let read = async {
            while let Some(event) = output.next().await {
                match event {
                    OutputEvent::Output { stream: StreamId::Stdout, data, .. } => {
                        stdout.extend_from_slice(&data);
                    }
                    OutputEvent::Output { stream: StreamId::Stderr, .. }
                    | OutputEvent::Gap { .. }
                    | OutputEvent::End(_) => {}
                }
            }
            execution.outcome().await
        };
        tokio::select! {
            outcome = read => Ok(Ran { stdout, outcome }),
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
    fn plain(&self, path: &SandboxPath) -> String {
        let inside = match &self.spec.workspace {
            Workspace::Local(root) => local::inside(root, path).ok(),
            Workspace::Ephemeral | Workspace::Overlay(_) => None,
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
            paths: paths.iter().map(|path| self.plain(path)).collect(),
            network,
            backend: Some(self.backend.clone()),
            boundary: self.boundary,
            widens: false,
            details: Vec::new(),
        }
    }
}

/// What a program of the tools' own did.
pub(crate) struct Ran {
    pub stdout: Vec<u8>,
    pub outcome: Outcome,
}

/// What was read of a stream that is kept.
pub(crate) struct Piece {
    pub data: Vec<u8>,
    pub next: u64,
    pub total: u64,
}

/// How long to wait for something new at most.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(600);

impl From<Stream> for stockade_core::StreamId {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}
