//! What the backend asks of whatever runs its virtual machines.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use stockade_core::{Boundary, Bytes, Result};
use tokio::net::UnixStream;

/// What a machine is made of.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub command_line: String,
    pub memory: Bytes,
    pub cpus: u32,
    pub disks: Vec<Disk>,
}

/// A file that a machine has as a disk.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub path: PathBuf,
    pub read_only: bool,
}

/// A saved machine: where the files that `save` wrote are.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    pub dir: PathBuf,
}

/// A way of running virtual machines.
#[async_trait]
pub(super) trait Driver: Send + Sync {
    /// What stands between such a machine and the host.
    fn boundary(&self) -> Boundary;

    /// Starts a machine. What it needs while it runs lies in `dir`, which is the caller's to remove.
    async fn boot(&self, machine: &Machine, dir: &Path) -> Result<Box<dyn Vm>>;

    /// Continues a saved machine as another one; its disks are those of `machine`, in the same order.
    async fn resume(&self, machine: &Machine, saved: &Saved, dir: &Path) -> Result<Box<dyn Vm>>;
}

/// One machine. It ends with this value, at the latest.
#[async_trait]
pub(super) trait Vm: Send + Sync {
    /// A new stream to the agent inside, as soon as it listens.
    async fn connect(&self) -> Result<UnixStream>;

    /// Stops it where it is. Twice is as good as once.
    async fn pause(&self) -> Result<()>;

    /// Lets it go on.
    async fn unpause(&self) -> Result<()>;

    /// Writes its state and memory into a directory. It goes on afterwards if it went on before.
    async fn save(&self, into: &Path) -> Result<()>;

    /// Ends it. When this returns its process is gone. Twice is as good as once.
    async fn end(&self) -> Result<()>;
}
