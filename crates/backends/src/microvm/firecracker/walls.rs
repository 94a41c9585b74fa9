//! Firecracker inside native walls, where its own jailer is not asked for. All that it may write to is its
//! machine's directory and disks; the rest of what a machine needs is shown to it file by file.

use std::path::Path;
use std::sync::Arc;

use stockade_core::{Command, Network, Result, SandboxSpec, Workspace};

use super::api;
use super::jail::{Access, MachineDir, MachineFile, path_inside, resolve_symlinks};
use crate::microvm::driver::MachineSpec;
use crate::microvm::vmm_sandbox::{
    VmmSandbox, build_limits, build_mount, largest_disk_bytes, to_host_path,
};
use crate::native::Native;

/// Memory of Firecracker itself, beside the guest's.
const MEMORY_OVERHEAD_BYTES: u64 = 128 << 20;
/// Disk space of a saved machine's state, beside its memory.
const STATE_DISK_BYTES: u64 = 16 << 20;
/// The program's name inside the walls.
const PROGRAM_NAME: &str = "firecracker";

/// Builds the walls and starts it in them, at its directory.
pub(super) async fn start_in_walls(
    native: &Arc<Native>,
    place: &MachineDir,
    machine: &MachineSpec,
    binary: &Path,
    files: &[MachineFile],
) -> Result<VmmSandbox> {
    let mut mounts =
        vec![build_mount(&resolve_symlinks(binary)?, &path_inside(PROGRAM_NAME), true)?];
    for MachineFile { file, name, access } in files {
        mounts.push(build_mount(
            &resolve_symlinks(file)?,
            &path_inside(name),
            *access != Access::Write,
        )?);
    }
    // The largest file that it writes to is a disk, or the memory of a machine that is saved.
    let disk = machine
        .memory
        .0
        .saturating_add(largest_disk_bytes(machine))
        .saturating_add(STATE_DISK_BYTES);
    let spec = SandboxSpec {
        workspace: Workspace::Local(to_host_path(place.root())?),
        mounts,
        limits: build_limits(machine, MEMORY_OVERHEAD_BYTES, disk),
        network: Network::None,
        ..SandboxSpec::default()
    };
    let id = place.id().as_str();
    let command = [&path_inside(PROGRAM_NAME), "--id", id, "--api-sock", api::API_SOCKET];
    VmmSandbox::start(native, place.id(), &spec, &Command::program(command)).await
}
