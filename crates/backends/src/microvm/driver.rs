//! What the ways of running virtual machines have in common, as far as the rest of the backend cares.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use stockade_core::{Boundary, Bytes, Millicores, Result, SandboxId};
use tokio::net::UnixStream;

/// What a machine is made of.
#[derive(Debug, Clone)]
pub(super) struct MachineSpec {
    /// An uncompressed kernel.
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub command_line: String,
    pub memory: Bytes,
    pub cpus: u32,
    /// The share of processor time that all of it may use.
    pub cpu_rate: Option<Millicores>,
    pub disks: Vec<MachineDisk>,
}

/// A disk, which the guest finds in the place it has among the others.
#[derive(Debug, Clone)]
pub(super) struct MachineDisk {
    pub path: PathBuf,
    pub read_only: bool,
}

/// A machine that was saved: its devices, and its memory, in which what is zero may be a hole.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    pub state: PathBuf,
    pub memory: PathBuf,
    /// The pages in which the memory is different from that file.
    pub touched: Option<PathBuf>,
}

impl Saved {
    pub const STATE_FILE: &str = "state";
    pub const MEMORY_FILE: &str = "memory";
    pub const DIRTY_PAGES_FILE: &str = "touched";

    /// The files that [`Vm::save`] makes in a directory: the pages that were touched, where the memory was
    /// that of another file before, or all of the memory.
    pub fn within(dir: &Path) -> Self {
        let touched = Some(dir.join(Self::DIRTY_PAGES_FILE));
        Self { state: dir.join(Self::STATE_FILE), memory: dir.join(Self::MEMORY_FILE), touched }
    }
}

/// A way of running virtual machines.
#[async_trait]
pub(super) trait Driver: Send + Sync {
    /// What stands between the guest and the host.
    fn boundary(&self) -> Boundary;

    /// What exactly it is: what another has saved is not continued.
    async fn version(&self) -> Result<String>;

    /// Starts a machine from nothing, for this sandbox. `dir` is its own, empty and private.
    async fn boot(&self, id: &SandboxId, machine: &MachineSpec, dir: &Path) -> Result<Box<dyn Vm>>;

    /// Continues one that was saved. Its kernel need not be there any more.
    async fn resume(
        &self,
        id: &SandboxId,
        machine: &MachineSpec,
        saved: &Saved,
        dir: &Path,
    ) -> Result<Box<dyn Vm>>;
}

/// One machine.
#[async_trait]
pub(super) trait Vm: Send + Sync {
    /// A connection to the program in the guest.
    async fn connect(&self) -> Result<UnixStream>;

    /// Stops it where it is, time included. Idempotent.
    async fn pause(&self) -> Result<()>;

    /// Lets it go on. Idempotent.
    async fn unpause(&self) -> Result<()>;

    /// Saves it as files in `into` (see [`Saved::within`]). It stands still from then on, until
    /// `unpause`.
    async fn save(&self, into: &Path) -> Result<()>;

    /// Whether it can be saved while a guest runs in it, and continued with another connection.
    fn can_be_captured(&self) -> bool;

    /// What it has complained of so far; nothing, mostly.
    fn said(&self) -> String;

    /// Waits until its process has ended by itself, and no more is to come of what it says.
    async fn wait_for_end(&self);

    /// Ends it and waits until its process is gone.
    async fn end(&self) -> Result<()>;
}
