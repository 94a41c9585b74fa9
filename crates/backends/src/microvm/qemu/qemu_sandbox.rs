//! How QEMU gets into its walls: a small program inside listens for the arguments and for what is needed, as
//! open files, and becomes QEMU. Its socket lies in a private place of the walls, under no name of the host's:
//! this side connects, so that no other process can be served.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use stockade_core::{Command, Error, ErrorCode, Network, Result, SandboxId, SandboxSpec};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::arguments::QemuArguments;
use crate::microvm::NAME;
use crate::microvm::driver::MachineSpec;
use crate::microvm::vmm_sandbox::{VmmSandbox, build_limits, build_mount, largest_disk_bytes};
use crate::native::Native;
use crate::peer::vmm::send;

/// Memory of QEMU beside the guest's: itself, its compiled code, its threads.
const MEMORY_OVERHEAD_BYTES: u64 = 384 << 20;
/// Timeout for the helper inside to listen and to take the files.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Retry interval until the helper listens.
const CONNECT_INTERVAL: Duration = Duration::from_millis(1);
/// The helper's program and its socket, both paths inside.
const HELPER_PROGRAM: &str = "/stockade/vmm";
const HELPER_SOCKET: &str = "/run/vmm.sock";

/// A QEMU that runs in its walls.
pub(super) struct SandboxedQemu {
    cage: VmmSandbox,
    /// Its process, as this side numbers it.
    pub process: i32,
}

/// Builds the walls and has QEMU started in them.
pub(super) async fn start_qemu(
    native: &Arc<Native>,
    id: &SandboxId,
    machine: &MachineSpec,
    program: &Path,
    order: QemuArguments,
) -> Result<SandboxedQemu> {
    let spec = build_spec(machine, program)?;
    let helper = Command::program([HELPER_PROGRAM, "vmm", HELPER_SOCKET]);
    let mut caged =
        SandboxedQemu { cage: VmmSandbox::start(native, id, &spec, &helper).await?, process: 0 };
    let handed = timeout(HANDOVER_TIMEOUT, send_arguments(&caged.cage, &order)).await;
    match handed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(process) => caged.process = process,
        Err(error) => return Err(caged.tear_down_with_error(error).await),
    }
    Ok(caged)
}

fn build_spec(machine: &MachineSpec, program: &Path) -> Result<SandboxSpec> {
    // The only files it can write are the disks.
    let disk = largest_disk_bytes(machine).max(1 << 20);
    Ok(SandboxSpec {
        mounts: vec![build_mount(program, HELPER_PROGRAM, true)?],
        limits: build_limits(machine, MEMORY_OVERHEAD_BYTES, disk),
        network: Network::None,
        ..SandboxSpec::default()
    })
}

/// Returns the process that they were handed to, which becomes QEMU.
async fn send_arguments(cage: &VmmSandbox, order: &QemuArguments) -> io::Result<i32> {
    let socket = connect_helper(cage).await?;
    let text = serde_json::to_vec(&order.words)?;
    socket.writable().await?;
    socket.try_io(tokio::io::Interest::WRITABLE, || send(&socket, &text, &order.files))?;
    Ok(socket_peercred(&socket)?.pid.as_raw_pid())
}

/// Connects to the helper as soon as it listens.
async fn connect_helper(cage: &VmmSandbox) -> io::Result<UnixStream> {
    let path = cage.path_from_host(HELPER_SOCKET).ok_or(io::ErrorKind::NotConnected)?;
    loop {
        match UnixStream::connect(&path).await {
            Err(error) if is_not_listening_yet(&error) => {
                tokio::time::sleep(CONNECT_INTERVAL).await
            }
            connected => return connected,
        }
    }
}

fn is_not_listening_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

impl SandboxedQemu {
    /// Why something failed, in its own words if it has any.
    pub(super) fn describe_failure(&self, operation: &'static str, error: io::Error) -> Error {
        let said = self.output_so_far();
        let message = match said.is_empty() {
            true => "QEMU did not carry out a command".to_owned(),
            false => format!("QEMU did not carry out a command: {said}"),
        };
        Error::new(ErrorCode::WallMissing, operation, message).backend(NAME).source(error)
    }

    /// Why it could not be started, when nothing of it is left.
    pub(super) async fn tear_down_with_error(&self, error: io::Error) -> Error {
        let complaint = self.describe_failure("create", error);
        self.tear_down().await.err().unwrap_or(complaint)
    }

    /// What it has complained of.
    pub(super) fn output_so_far(&self) -> String {
        self.cage.words.read_so_far()
    }

    /// Waits until it has ended by itself.
    pub(super) async fn wait_for_end(&self) {
        self.cage.words.wait_for_end().await;
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn tear_down(&self) -> Result<()> {
        self.cage.tear_down().await
    }
}
