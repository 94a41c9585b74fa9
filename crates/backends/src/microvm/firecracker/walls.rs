//! Firecracker inside native walls, where its own jailer is not asked for. All that it may write to is its
//! machine's directory and disks; the rest of what a machine needs is shown to it file by file.

use std::path::Path;
use std::sync::Arc;

use stockade_core::{Command, Network, Result, SandboxSpec, Workspace};

use super::api;
use super::jail::{Access, Place, Shown, inside, real};
use crate::microvm::cage::{Cage, host_path, largest_disk, limits, shown};
use crate::microvm::driver::Machine;
use crate::native::Native;

/// Memory of Firecracker itself, beside the guest's.
const MEMORY_OVERHEAD_BYTES: u64 = 128 << 20;
/// Disk space of a saved machine's state, beside its memory.
const STATE_DISK_BYTES: u64 = 16 << 20;
/// The program's name inside the walls.
const PROGRAM_NAME: &str = "firecracker";

/// Builds the walls and starts it in them, at its directory.
pub(super) async fn start(
    native: &Arc<Native>,
    place: &Place,
    machine: &Machine,
    binary: &Path,
    files: &[Shown],
) -> Result<Cage> {
    let mut mounts = vec![shown(&real(binary)?, &inside(PROGRAM_NAME), true)?];
    for Shown { file, name, access } in files {
        mounts.push(shown(&real(file)?, &inside(name), *access != Access::Write)?);
    }
    // The largest file that it writes to is a disk, or the memory of a machine that is saved.
    let disk =
        machine.memory.0.saturating_add(largest_disk(machine)).saturating_add(STATE_DISK_BYTES);
    let spec = SandboxSpec {
        workspace: Workspace::Local(host_path(place.root())?),
        mounts,
        limits: limits(machine, MEMORY_OVERHEAD_BYTES, disk),
        network: Network::None,
        ..SandboxSpec::default()
    };
    let id = place.id().as_str();
    let command = [&inside(PROGRAM_NAME), "--id", id, "--api-sock", api::API_SOCKET];
    Cage::start(native, place.id(), &spec, &Command::program(command)).await
}
