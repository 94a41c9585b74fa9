//! The walls around the program that runs a machine: a native sandbox with nothing of the host's but its
//! system directories and what its driver shows it, no network, and limits of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_core::{
    Backend, Bytes, Command, Error, ErrorCode, HostPath, Limits, Mount, Process, ProcessControl,
    Result, Sandbox, SandboxId, SandboxSpec,
};

use super::NAME;
use super::driver::MachineSpec;
use super::vmm_output::VmmOutput;
use crate::linux;
use crate::native::Native;

/// Process limit of the monitor: its threads, those of the machine's processors among them.
const MAX_VMM_PROCESSES: u32 = 128;

/// A program that runs in its walls.
pub(super) struct VmmSandbox {
    native: Arc<Native>,
    id: SandboxId,
    /// Kept: without them it would be ended.
    _inside: Arc<dyn Sandbox>,
    _control: Arc<dyn ProcessControl>,
    /// What it complains of, until it has ended.
    pub words: VmmOutput,
}

impl VmmSandbox {
    /// Builds the walls and starts a program in them.
    pub(super) async fn start(
        native: &Arc<Native>,
        id: &SandboxId,
        spec: &SandboxSpec,
        program: &Command,
    ) -> Result<Self> {
        let admitted = linux::admit_provisionally(NAME, spec)?;
        let inside = native.create(id, &admitted).await?;
        // It runs for as long as its machine.
        let limits = Limits { cpu_time: None, wall_time: None, ..*admitted.limits() };
        let spawned = inside.spawn(program, &limits).await;
        if spawned.is_err() {
            native.destroy(id).await?;
        }
        let Process { events, control } = spawned?;
        Ok(Self {
            native: Arc::clone(native),
            id: id.clone(),
            _inside: inside,
            _control: control,
            words: VmmOutput::from_events(events),
        })
    }

    /// Where the host finds a file of its own: in its root, which no name on the host leads to.
    pub(super) fn path_from_host(&self, inside: &str) -> Option<PathBuf> {
        let first = self.native.first_process(&self.id)?;
        Some(PathBuf::from(format!("/proc/{first}/root{inside}")))
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn tear_down(&self) -> Result<()> {
        self.native.destroy(&self.id).await
    }
}

/// What it is held to: the guest's memory and what it takes itself, the machine's share of processor time,
/// and this much on disk.
pub(super) fn build_limits(machine: &MachineSpec, overhead: u64, disk: u64) -> Limits {
    Limits {
        memory: Some(Bytes(machine.memory.0.saturating_add(overhead))),
        processes: Some(MAX_VMM_PROCESSES),
        cpu_rate: machine.cpu_rate,
        disk: Some(Bytes(disk)),
        ..Limits::default()
    }
}

/// The largest of the disks that are written to.
pub(super) fn largest_disk_bytes(machine: &MachineSpec) -> u64 {
    let written = machine.disks.iter().filter(|disk| !disk.read_only);
    let sizes = written.map(|disk| std::fs::metadata(&disk.path).map_or(0, |found| found.len()));
    sizes.max().unwrap_or(0)
}

/// A file or directory of the host's that is shown inside.
pub(super) fn build_mount(source: &Path, target: &str, read_only: bool) -> Result<Mount> {
    let source = to_host_path(source)?;
    let target = target.parse().map_err(|error| invalid_error(format!("{error}")))?;
    Ok(Mount { source, target, read_only })
}

/// A path as specs name it.
pub(super) fn to_host_path(path: &Path) -> Result<HostPath> {
    HostPath::try_from(path.to_owned()).map_err(|error| invalid_error(error.to_string()))
}

fn invalid_error(message: String) -> Error {
    Error::new(ErrorCode::Invalid, "create", message).backend(NAME)
}
