//! One machine under Firecracker: its stream, its pauses, its snapshots.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use stockade_core::{Bytes, Error, ErrorCode, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::api::Method;
use super::copy;
use super::jail::MachineDir;
use super::process::FirecrackerProcess;
use super::{microvm_error, to_mebibytes};
use crate::microvm::driver::{Saved, Vm};
use crate::peer::guest::VSOCK_PORT;

/// The socket on which Firecracker accepts connections to the guest.
pub(super) const VSOCK_SOCKET: &str = "vsock";

/// Retry intervals of a connection to the guest: the first, and the longest.
const CONNECT_RETRY_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(20));
/// Size limit of the reply to a greeting: `OK`, a number, the end of the line.
const MAX_GREETING_BYTES: usize = 16;
/// Memory written per second, if nothing else is; request timeouts are computed from it.
const MEMORY_BYTES_PER_SECOND: u64 = 64 << 20;

/// The files of a snapshot until it is complete.
const DRAFT_STATE: &str = "saved-state";
const DRAFT_MEMORY: &str = "saved-memory";

/// How much longer a request may take that reads or writes memory.
pub(super) fn transfer_timeout(memory: Bytes) -> Duration {
    Duration::from_secs(memory.0 / MEMORY_BYTES_PER_SECOND)
}

/// What the pages that were written since are relative to.
pub(super) enum MemoryBase {
    /// Empty memory: it was booted, and never saved.
    Nothing,
    /// The memory it was continued from, or last saved to.
    File(File),
    /// Not known: a snapshot failed half-way.
    Unknown,
}

/// A machine.
pub(super) struct Machinery {
    process: FirecrackerProcess,
    place: MachineDir,
    memory: Bytes,
    state: Mutex<MachineState>,
}

struct MachineState {
    /// Whether its process is stopped by the kernel, which is how it is paused.
    stopped: bool,
    /// Whether Firecracker has paused it, which it wants for a snapshot. Nothing while that is being changed,
    /// and after a caller gave up waiting for the change: then it is unknown.
    paused: Option<bool>,
    base: MemoryBase,
}

impl Machinery {
    pub(super) fn new(
        process: FirecrackerProcess,
        place: MachineDir,
        memory: Bytes,
        base: MemoryBase,
    ) -> Self {
        let state = Mutex::new(MachineState { stopped: false, paused: Some(false), base });
        Self { process, place, memory, state }
    }

    /// By the kernel: one that is stopped goes on where it was, connections to the guest included.
    async fn set_stopped(&self, state: &mut MachineState, stop: bool) -> Result<()> {
        if state.stopped != stop {
            // A request whose caller gave up may have been heard: continuing one that was not stopped is no harm.
            state.stopped = true;
            self.process.set_stopped(stop).await?;
            state.stopped = stop;
        }
        Ok(())
    }

    /// By Firecracker. It answers only while its process is not stopped. The guest loses its connections if it
    /// is resumed without a snapshot in between (see [`super::stop`]).
    async fn set_paused(&self, state: &mut MachineState, paused: bool) -> Result<()> {
        if state.paused == Some(paused) {
            return Ok(());
        }
        state.paused = None;
        let (operation, word) = if paused { ("snapshot", "Paused") } else { ("resume", "Resumed") };
        let (body, limit) = (json!({ "state": word }), self.process.patience.answer);
        self.process.send_request(operation, Method::PATCH, "/vm", &body, limit).await?;
        state.paused = Some(paused);
        Ok(())
    }

    /// Writes the drafts: of the memory only what changed, wherever it is known what that is.
    async fn write_drafts(&self, state: &mut MachineState) -> Result<()> {
        let memory = self.draft_path(DRAFT_MEMORY);
        let base = std::mem::replace(&mut state.base, MemoryBase::Unknown);
        let kind = match base {
            MemoryBase::Unknown => "Full",
            MemoryBase::Nothing => "Diff",
            MemoryBase::File(base) => {
                let (place, to) = (self.place.owner(), memory.clone());
                let copied = move || copy::copy_to_new(&base, &to, place);
                run_blocking(copied).await.map_err(|error| snapshot_write_error(&memory, error))?;
                "Diff"
            }
        };
        let body = json!({
            "snapshot_type": kind,
            "snapshot_path": DRAFT_STATE,
            "mem_file_path": DRAFT_MEMORY,
        });
        let limit = self.process.patience.answer + transfer_timeout(self.memory);
        self.process.send_request("snapshot", Method::PUT, "/snapshot/create", &body, limit).await
    }

    /// Takes the drafts to where they are wanted; the state last, for it makes the snapshot one.
    async fn publish_drafts(&self, into: &Saved) -> Result<File> {
        let memory = into.memory.clone();
        let names = [(DRAFT_MEMORY, memory.clone()), (DRAFT_STATE, into.state.clone())];
        for (draft, to) in names {
            let (from, at) = (self.draft_path(draft), to.clone());
            let moved = move || copy::move_file(&from, &at);
            run_blocking(moved).await.map_err(|error| snapshot_write_error(&to, error))?;
        }
        let whole = File::open(&memory).map_err(|error| snapshot_write_error(&memory, error))?;
        let size = whole.metadata().map_err(|error| snapshot_write_error(&memory, error))?.len();
        if size != to_mebibytes(self.memory) << 20 {
            let what = format!("Firecracker wrote {size} bytes of {} of memory", self.memory.0);
            return Err(microvm_error(ErrorCode::Protocol, "snapshot", what)
                .remedy("see that the binary is Firecracker, unchanged"));
        }
        Ok(whole)
    }

    async fn save_paused(&self, state: &mut MachineState, into: &Saved) -> Result<()> {
        self.write_drafts(state).await?;
        state.base = MemoryBase::File(self.publish_drafts(into).await?);
        Ok(())
    }

    fn discard_drafts(&self) {
        for draft in [DRAFT_STATE, DRAFT_MEMORY] {
            // It may not be there.
            let _ = fs::remove_file(self.draft_path(draft));
        }
    }

    fn draft_path(&self, name: &str) -> PathBuf {
        self.place.root().join(name)
    }

    /// Connects with retries until the guest answers.
    async fn connect_with_retries(&self) -> Result<UnixStream, GreetingRefusal> {
        let (mut pause, most) = CONNECT_RETRY_INTERVALS;
        loop {
            match timeout(self.process.patience.attempt, self.try_connect()).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(ConnectAttempt::Refused(refusal))) => return Err(refusal),
                // The listener is not there yet, or still busy with having been restored.
                Ok(Err(ConnectAttempt::NotYet)) => sleep(pause).await,
                // A request that meets a connection from before a snapshot is never answered; the
                // next one is, for it comes from another port.
                Err(_) => {}
            }
            pause = (pause * 2).min(most);
        }
    }

    async fn try_connect(&self) -> Result<UnixStream, ConnectAttempt> {
        let connected = self.process.sockets.connect(VSOCK_SOCKET).await;
        let mut stream = connected.map_err(|_| ConnectAttempt::NotYet)?;
        let asked = format!("CONNECT {VSOCK_PORT}\n");
        stream.write_all(asked.as_bytes()).await.map_err(|_| ConnectAttempt::NotYet)?;
        let mut line = Vec::new();
        // Byte by byte: what follows the line is the guest's, for the reader of the stream.
        while line.last() != Some(&b'\n') {
            let byte = stream.read_u8().await.map_err(|_| ConnectAttempt::NotYet)?;
            line.push(byte);
            if line.len() > MAX_GREETING_BYTES {
                break;
            }
        }
        let said = String::from_utf8_lossy(&line);
        match said.strip_prefix("OK ").and_then(|port| port.strip_suffix('\n')) {
            Some(port) if port.parse::<u32>().is_ok() => Ok(stream),
            _ => Err(ConnectAttempt::Refused(GreetingRefusal(said.escape_debug().to_string()))),
        }
    }
}

/// Why one attempt came to nothing.
enum ConnectAttempt {
    NotYet,
    Refused(GreetingRefusal),
}

/// An answer that is none.
struct GreetingRefusal(String);

/// Why the guest could not be connected to.
enum Missed {
    /// Firecracker answered this instead.
    Refused(String),
    /// Its process ended.
    Ended,
    /// The guest did not answer for this long.
    Silent(Duration),
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(said) => write!(f, "Firecracker answered `{said}`"),
            Self::Ended => write!(f, "Firecracker ended"),
            Self::Silent(deadline) => write!(f, "the guest gave no answer within {deadline:?}"),
        }
    }
}

impl Missed {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) => ErrorCode::Protocol,
            Self::Ended => ErrorCode::Gone,
            Self::Silent(_) => ErrorCode::TooSlow,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Refused(_) => "see that the binary is Firecracker, unchanged",
            Self::Ended => {
                "its last output is the guest's console or Firecracker's own: see whether the kernel \
                 starts, finds its initramfs and disks, and has memory enough"
            }
            Self::Silent(_) => {
                "see that the kernel has virtio-vsock; Firecracker 1.16.0 may lose it with a \
                 restore, 1.16.1 does not"
            }
        }
    }
}

#[async_trait]
impl Vm for Machinery {
    async fn connect(&self) -> Result<UnixStream> {
        let deadline = self.process.patience.connect;
        let missed = tokio::select! {
            greeted = self.connect_with_retries() => match greeted {
                Ok(stream) => return Ok(stream),
                Err(GreetingRefusal(said)) => Missed::Refused(said),
            },
            () = self.process.wait_for_exit() => Missed::Ended,
            () = sleep(deadline) => Missed::Silent(deadline),
        };
        let what = format!("asked for `CONNECT {VSOCK_PORT}`, {missed}");
        let what = self.process.append_last_words(what).await;
        Err(microvm_error(missed.code(), "create", what).remedy(missed.remedy()))
    }

    async fn pause(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        // One that stands still after a snapshot needs nothing more.
        if state.paused == Some(true) { Ok(()) } else { self.set_stopped(&mut state, true).await }
    }

    async fn unpause(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        self.set_stopped(&mut state, false).await?;
        self.set_paused(&mut state, false).await
    }

    async fn save(&self, into: &Path) -> Result<()> {
        let mut state = self.state.lock().await;
        // The caller of an earlier save may have given up and left drafts.
        self.discard_drafts();
        self.set_stopped(&mut state, false).await?;
        self.set_paused(&mut state, true).await?;
        let saved = self.save_paused(&mut state, &Saved::within(into)).await;
        self.discard_drafts();
        saved
    }

    /// Connections do not survive it, and the program inside takes one alone.
    fn can_be_captured(&self) -> bool {
        false
    }

    fn said(&self) -> String {
        self.process.output_so_far()
    }

    async fn wait_for_end(&self) {
        self.process.wait_for_exit().await;
    }

    async fn end(&self) -> Result<()> {
        self.process.kill_and_wait().await?;
        let place = self.place.clone();
        let taken_back = run_blocking(move || place.reclaim_disks()).await;
        taken_back.map_err(|error| {
            microvm_error(ErrorCode::System, "destroy", "the owner of its disk cannot be restored")
                .source(error)
        })
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn snapshot_write_error(path: &Path, error: io::Error) -> Error {
    microvm_error(ErrorCode::System, "snapshot", format!("`{}` cannot be written", path.display()))
        .remedy("see that the disk has room")
        .source(error)
}
