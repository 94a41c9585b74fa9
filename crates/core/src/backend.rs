//! What a backend implements: walls, processes, files. The traits hold primitives only; what can be
//! built from them is on the `…Ext` traits, written once for everybody.
//!
//! Behaviour is given per method with the clauses that bind it; the conformance kit checks it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use serde::{Deserialize, Serialize};

use crate::{
    Admitted, BackendName, Bytes, Capabilities, Command, EffectiveLimits, Error, ErrorCode,
    Feature, ImageName, LimitKind, ResolvedImage, Result, SandboxId, SandboxPath, Signal, Span,
    StartFailure, TerminalSize,
};

/// A way of building walls.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Its name, always the same.
    fn name(&self) -> BackendName;

    /// Measures what this host lets it enforce: builds a throw-away sandbox and looks.
    ///
    /// - Never fails: a backend that cannot work here says so, with the remedy.
    /// - Leaves nothing behind, and ends in bounded time.
    async fn probe(&self) -> Capabilities;

    /// What its measurements depend on: while this is the same, so are they, and an engine may keep
    /// them. Absent: they are taken anew by every engine.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// Why it is taken only when named explicitly, where that is known without measuring: a caller that
    /// names no backend then does not wait for its measurement.
    fn only_by_name(&self) -> Option<String> {
        None
    }

    /// An image by name of a store of this backend's own, fetched first if need be and if that is allowed. Nothing where
    /// it has no such store.
    ///
    /// - A tag is resolved once: [`ResolvedImage::name`] is what it meant, where the store knows a digest.
    async fn resolve_image(&self, _name: &ImageName) -> Result<Option<ResolvedImage>> {
        Ok(None)
    }

    /// Builds the walls.
    ///
    /// - Enforces everything in `admitted` or fails, naming the wall (C-02).
    /// - If it fails or its future is dropped, nothing is left (C-32).
    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>>;

    /// Builds the walls around a captured state. The clone is a different machine: what makes it
    /// unique is its own before anything of the guest runs in it.
    ///
    /// - Binds as `create` does (C-02, C-32).
    async fn create_from(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        from: &SnapshotFiles,
    ) -> Result<Arc<dyn Sandbox>> {
        create_and_restore(self, id, admitted, from).await
    }

    /// The sandboxes of this user that exist on this host, whichever process made them.
    async fn list(&self) -> Result<Vec<SandboxId>>;

    /// Removes every trace of a sandbox.
    ///
    /// - Needs no handle, works for what a dead engine left, succeeds when nothing is there.
    /// - Returns only after it has checked that nothing is left (C-30).
    async fn destroy(&self, id: &SandboxId) -> Result<()>;
}

/// One live set of walls.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Its id.
    fn id(&self) -> &SandboxId;

    /// Whether it can still be used, as far as that is known without asking anybody: false once its
    /// pipe is gone or its last process has ended. Cheap, and never waits.
    fn alive(&self) -> bool {
        true
    }

    /// Whether everything in it stands still, or may do so, as far as that is known without asking anybody. The one
    /// place where this is said: ending a program may resume the sandbox. Cheap, and never waits.
    fn is_paused(&self) -> bool {
        false
    }

    /// Starts a command. The engine has already merged environment, directory and user.
    ///
    /// - A program that cannot be started is an [`ExitStatus::StartFailed`] event, not an error (C-10).
    /// - Processor time, memory and the like are enforced here; wall time and output by the engine.
    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process>;

    /// Its files. Requires `file-transfer`.
    fn files(&self) -> Result<&dyn Files> {
        Err(Error::unsupported("files", Feature::FileTransfer))
    }

    /// Starts the helper inside through which programs reach other hosts: its input and output are the
    /// messages of the agent's network protocol. Requires `egress-allowlist`; a helper that is set up for ports
    /// inside alone listens nowhere, and needs no more than `loopback-network`.
    ///
    /// - It decides nothing, and what it says is guest input.
    /// - It ends with the sandbox, and when its events are dropped; then nothing is reached any more (C-52).
    async fn open_network(&self) -> Result<Process> {
        Err(Error::unsupported("network", Feature::EgressAllowlist))
    }

    /// Captures its state as plain files in `into`, an empty directory of this user alone. Requires
    /// `files-snapshot` or `full-snapshot`.
    ///
    /// - The sandbox goes on as if nothing had happened, also when this fails.
    /// - Names are lower-case letters, digits and dashes. What is zero may be a hole.
    async fn snapshot(&self, kind: SnapshotKind, _into: &Path) -> Result<()> {
        Err(Error::unsupported("snapshot", kind.feature()))
    }

    /// Writes the tree at a path as a tar archive into a new file, refused where it has more than `most` bytes:
    /// files, directories and symbolic links, and nothing that is mounted in the tree. Requires `files-snapshot`.
    ///
    /// - Not of an instant: what is written meanwhile may be caught half-way.
    /// - What it says is guest input.
    async fn archive_tree(&self, _path: &SandboxPath, _into: &Path, _most: u64) -> Result<()> {
        Err(Error::unsupported("archive", Feature::FilesSnapshot))
    }

    /// Brings a captured state back, in place. Requires what `snapshot` requires.
    ///
    /// - What cannot be brought back whole changes nothing.
    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        Err(Error::unsupported("restore", from.kind.feature()))
    }

    /// The programs that go on in a sandbox that was made from a state with its memory. Each is returned
    /// once, to the caller that supervises it from then on.
    fn take_carried(&self) -> Vec<CarriedProgram> {
        Vec::new()
    }

    /// Stops every process where it is. Requires `pause`. Idempotent.
    ///
    /// - A program in it can be ended all the same; where that needs an answer from inside, all of it is resumed.
    async fn pause(&self) -> Result<()> {
        Err(Error::unsupported("pause", Feature::Pause))
    }

    /// Continues after `pause`. Requires `pause`. Idempotent.
    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported("resume", Feature::Pause))
    }
}

/// Makes a sandbox, and brings a captured state back into it.
pub async fn create_and_restore<B: Backend + ?Sized>(
    backend: &B,
    id: &SandboxId,
    admitted: &Admitted,
    from: &SnapshotFiles,
) -> Result<Arc<dyn Sandbox>> {
    let sandbox = backend.create(id, admitted).await?;
    match sandbox.restore(from).await {
        Ok(()) => Ok(sandbox),
        Err(error) => {
            backend.destroy(id).await?;
            Err(error)
        }
    }
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotKind {
    /// The writable files: an archive of each place that could be written to. The same on every
    /// backend, so that one can bring back what another has captured.
    Files,
    /// Memory too.
    Full,
}

impl SnapshotKind {
    /// The feature a backend needs to take one.
    pub const fn feature(self) -> Feature {
        match self {
            Self::Files => Feature::FilesSnapshot,
            Self::Full => Feature::FullSnapshot,
        }
    }
}

/// A captured state: its files by name. Its provider has verified every byte, and keeps the files unchanged
/// while they are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFiles {
    /// What was captured.
    pub kind: SnapshotKind,
    /// Where each part is.
    pub files: BTreeMap<String, PathBuf>,
}

impl SnapshotFiles {
    /// The part of that name.
    pub fn get(&self, name: &str) -> Result<&Path> {
        self.files.get(name).map(PathBuf::as_path).ok_or_else(|| {
            Error::new(ErrorCode::Invalid, "restore", format!("the snapshot has no part `{name}`"))
                .remedy("take another one with this version of the backend")
        })
    }
}

/// One command that was started: its events for one reader, its control for anybody.
pub struct Process {
    /// What it does, in order.
    pub events: Box<dyn ProcessEvents>,
    /// How to influence it.
    pub control: Arc<dyn ProcessControl>,
}

/// A program that was captured while it ran, and goes on in a copy of its sandbox.
pub struct CarriedProgram {
    /// Its arguments, as far as they were kept. They are what the snapshot says: bounded and cleaned.
    pub command: Vec<String>,
    /// The program.
    pub process: Process,
}

/// What a process does, in order.
#[async_trait]
pub trait ProcessEvents: Send {
    /// The next event. [`ProcessEvent::Exit`] comes exactly once, after all output; then nothing.
    ///
    /// - Safe to drop half-way: no event is lost.
    /// - Not being read slows the program down, as a full pipe does, and costs bounded memory.
    async fn next(&mut self) -> Option<ProcessEvent>;
}

/// How to influence a running process. Every method succeeds without effect after the end.
#[async_trait]
pub trait ProcessControl: Send + Sync {
    /// Ends every process of this execution, descendants that hide included (C-11). Idempotent.
    async fn kill(&self) -> Result<()>;

    /// Resolves once the program has ended although its exit is not told yet, because what it leaves is
    /// still being brought: that is not its time any more. Never, where nothing is.
    async fn ended(&self) {
        std::future::pending().await
    }

    /// Sends a signal to the program and its descendants. Requires `signals`.
    async fn signal(&self, _signal: Signal) -> Result<()> {
        Err(Error::unsupported("signal", Feature::Signals))
    }

    /// Feeds it input, waiting while it does not read. Requires `stdin`.
    async fn write_stdin(&self, _data: Data) -> Result<()> {
        Err(Error::unsupported("write to stdin", Feature::Stdin))
    }

    /// Ends its input. Requires `stdin`. Idempotent.
    async fn close_stdin(&self) -> Result<()> {
        Err(Error::unsupported("close stdin", Feature::Stdin))
    }

    /// Its output is not wanted from now on. Where it can be discarded and counted at its source,
    /// [`Exit::unsent`] tells how much that was; elsewhere it comes as before.
    async fn discard_output(&self) {}

    /// Changes its terminal's size. Requires `terminal`.
    async fn resize(&self, _size: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", Feature::Terminal))
    }

    /// Processor time that it has used so far, where the host counts it: never the guest's own word. Elsewhere
    /// [`Exit::cpu_time`] tells it at the end.
    fn cpu_used(&self) -> Option<Span> {
        None
    }
}

/// Which output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamId {
    /// Standard output; a terminal's only stream.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One thing a process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It wrote.
    Output(StreamId, Data),
    /// It ended. Nothing follows.
    Exit(Exit),
}

/// How a process ended, as the mechanism tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// What ended it.
    pub status: ExitStatus,
    /// Processor time, if the backend can tell.
    pub cpu_time: Option<Span>,
    /// Highest memory, if the backend can tell.
    pub peak_memory: Option<Bytes>,
    /// Instructions by the count of [`LimitKind::Fuel`], if it was kept.
    pub fuel: Option<u64>,
    /// Bytes it wrote after [`ProcessControl::discard_output`] that were not sent.
    pub unsent: Unsent,
    /// The limits that it ran into and was not ended for: a process that could not be started, a file that
    /// could not grow.
    pub limits_reached: Vec<LimitKind>,
    /// Whether it failed after something in its sandbox had tried to reach another host, and there was no
    /// way to any.
    pub network_unreachable: bool,
}

/// Output that was counted where it was written, and thrown away there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Bytes of [`StreamId::Stdout`].
    pub stdout: u64,
    /// Bytes of [`StreamId::Stderr`].
    pub stderr: u64,
}

/// What ended a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signalled(Signal),
    /// It never ran.
    StartFailed(StartFailure),
    /// It was ended for going beyond this limit.
    LimitExceeded(LimitKind),
    /// The walls went away underneath it.
    Lost(String),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        let (cpu_time, peak_memory, fuel) = (None, None, None);
        let (unsent, limits_reached) = (Unsent::default(), Vec::new());
        let network_unreachable = false;
        Self { status, cpu_time, peak_memory, fuel, unsent, limits_reached, network_unreachable }
    }
}

/// A sandbox's files. Paths resolve beneath its root by the kernel (C-21); absolute ones name the
/// sandbox's own tree, relative ones start at the workspace root (C-22).
#[async_trait]
pub trait Files: Send + Sync {
    /// What is at this path; a symbolic link is itself, not what it points to.
    async fn stat(&self, path: &SandboxPath) -> Result<Entry>;

    /// What is in this directory, in no particular order. More than a hundred thousand entries are
    /// `too-large`.
    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>>;

    /// At most `most` bytes from `offset`; fewer only at the end of the file. Regular files only.
    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data>;

    /// Writes a regular file: from the start, replacing what was there, or at its end.
    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()>;

    /// Sets the permission bits of a regular file; those that change who a program runs as are left
    /// out.
    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()>;

    /// Makes a directory and those above it. Succeeds when it is there.
    async fn make_dir(&self, path: &SandboxPath) -> Result<()>;

    /// Moves within the sandbox, replacing a file that is in the way.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()>;

    /// Removes a file, a link, or a directory with everything in it. Succeeds when nothing is there.
    async fn remove(&self, path: &SandboxPath) -> Result<()>;
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// What kind of thing it is.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
}

/// What kind of thing a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, fifo or socket.
    Other,
}

/// Chunk in which large files are transferred.
const TRANSFER_CHUNK_BYTES: u32 = 1 << 20;

/// Conveniences over [`Files`].
#[async_trait]
pub trait FilesExt: Files {
    /// A whole file, or `too-large` if it has more than `most` bytes.
    async fn read_all(&self, path: &SandboxPath, most: u64) -> Result<Vec<u8>> {
        let mut whole = Vec::new();
        loop {
            let piece = self.read(path, whole.len() as u64, TRANSFER_CHUNK_BYTES).await?;
            whole.extend_from_slice(&piece);
            if whole.len() as u64 > most {
                let message = format!("`{path}` has more than {most} bytes");
                return Err(Error::new(ErrorCode::TooLarge, "read", message));
            }
            if piece.len() < TRANSFER_CHUNK_BYTES as usize {
                return Ok(whole);
            }
        }
    }

    /// A whole file of any size, piece by piece.
    async fn write_all(&self, path: &SandboxPath, mut data: Data) -> Result<()> {
        let mut append = false;
        loop {
            let piece = data.split_to(data.len().min(TRANSFER_CHUNK_BYTES as usize));
            self.write(path, piece, append).await?;
            append = true;
            if data.is_empty() {
                return Ok(());
            }
        }
    }
}

impl<F: Files + ?Sized> FilesExt for F {}
