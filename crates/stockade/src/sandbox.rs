//! One live sandbox: processes run in it, files live in it.

use bytes::Bytes as Data;
use stockade_core::{
    BackendName, Boundary, Command, Error, ErrorCode, FilesExt, Result, SandboxId, SandboxPath,
    SandboxSpec, SnapshotKind,
};
use stockade_engine::{Engine, PortStream, Snapshot};
use tokio::runtime::Handle;

use crate::builder::SandboxBuilder;
use crate::exec::Exec;

/// The largest file that is read at once.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// One live sandbox. Dropping it ends it and everything in it in the background (C-15); [`Sandbox::destroy`] also
/// waits until nothing is left, and says so if something is.
pub struct Sandbox {
    engine: Engine,
    id: SandboxId,
    /// Where it is ended if it is dropped. Absent: it was ended already.
    runtime: Option<Handle>,
}

impl Sandbox {
    /// Describes a sandbox of an engine of its own, which is opened by `create`. A program that builds several opens
    /// a [`crate::Stockade`] once.
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::new(None, SandboxSpec::default())
    }

    /// Called within a runtime: the engine's own tasks need it too.
    pub(crate) fn new(engine: Engine, id: SandboxId) -> Self {
        Self { engine, id, runtime: Handle::try_current().ok() }
    }

    /// Its id, as `stockade ps` shows it.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The backend that built its walls, and what stands between it and the host's kernel.
    pub fn walls(&self) -> Result<(BackendName, Boundary)> {
        self.engine.walls(&self.id)
    }

    /// A program with its arguments, passed on as they are. It is started by [`Exec::output`] or [`Exec::start`].
    pub fn exec<I: IntoIterator<Item = S>, S: Into<String>>(&self, argv: I) -> Exec<'_> {
        self.command(Command::program(argv))
    }

    /// A line for the sandbox's `/bin/sh`.
    pub fn shell(&self, line: impl Into<String>) -> Exec<'_> {
        self.command(Command::shell(line))
    }

    /// A command that is described in full.
    pub fn command(&self, command: Command) -> Exec<'_> {
        Exec::new(&self.engine, &self.id, command)
    }

    /// A whole file, of at most 256 MiB. Relative paths start at the workspace (C-22).
    pub async fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        let path = parse_path(path)?;
        self.engine.sandbox(&self.id)?.files()?.read_all(&path, MAX_FILE_BYTES).await
    }

    /// Writes a whole file, in place of what was there. The directories above it have to be there.
    pub async fn write_file(&self, path: &str, content: impl Into<Vec<u8>>) -> Result<()> {
        let path = parse_path(path)?;
        let content = Data::from(content.into());
        self.engine.sandbox(&self.id)?.files()?.write_all(&path, content).await
    }

    /// Connects to a port on its own loopback, as `stockade port` does. The error is `not-found` where nothing listens.
    pub async fn connect_port(&self, port: u16) -> Result<PortStream> {
        self.engine.connect_port(&self.id, port).await
    }

    /// Captures its state while it goes on. [`SandboxBuilder::from_snapshot`] begins with it, [`Sandbox::restore`]
    /// goes back to it. It stays in the state directory until it is removed there.
    pub async fn snapshot(&self, kind: SnapshotKind) -> Result<Snapshot> {
        self.engine.snapshot(&self.id, kind).await
    }

    /// Goes back to a state that was captured of a sandbox of the same backend.
    pub async fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        self.engine.restore(&self.id, &snapshot.id).await
    }

    /// Makes this many copies, with their memory where the backend can. This one goes on. All or none.
    pub async fn fork(&self, count: usize) -> Result<Vec<Self>> {
        let copies = self.engine.fork(&self.id, count).await?;
        Ok(copies.into_iter().map(|id| Self::new(self.engine.clone(), id)).collect())
    }

    /// The engine that it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Ends it and everything in it, and returns when nothing is left (C-30). If that fails, the next engine on the
    /// same state directory tries again.
    pub async fn destroy(mut self) -> Result<()> {
        self.engine.destroy(&self.id).await?;
        // Not before: a future that is dropped half-way leaves the rest to `drop`.
        self.runtime = None;
        Ok(())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let (engine, id) = (self.engine.clone(), self.id.clone());
            // A runtime that is shutting down drops the task, and the walls fall with the engine.
            runtime.spawn(async move { engine.destroy(&id).await });
        }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

fn parse_path(path: &str) -> Result<SandboxPath> {
    path.parse().map_err(|why: stockade_core::PathError| {
        Error::new(ErrorCode::Invalid, "use a file", why.to_string())
    })
}
