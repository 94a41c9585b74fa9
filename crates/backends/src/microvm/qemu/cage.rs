//! How QEMU gets into its walls: a small program inside comes for the arguments and for what is needed, as open
//! files, and becomes QEMU.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use stockade_core::{Command, Error, ErrorCode, Result, SandboxId, SandboxSpec};
use tokio::time::timeout;

use super::arguments::Order;
use crate::across::vmm::send;
use crate::microvm::cage::{Cage, largest_disk, limits, shown};
use crate::microvm::driver::Machine;
use crate::microvm::{NAME, failed};
use crate::native::Native;

/// What QEMU takes beside the guest's memory: itself, its compiled code, its threads.
const OVERHEAD: u64 = 384 << 20;
/// How long the helper inside may take to come for the files.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where it finds its program and the socket.
const PROGRAM: &str = "/stockade/vmm";
const DOOR: &str = "/stockade/door";
const SOCKET: &str = "socket";

/// A QEMU that runs in its walls.
pub(super) struct Caged {
    cage: Cage,
    /// Its process, as this side numbers it.
    pub process: i32,
}

/// Builds the walls and has QEMU started in them.
pub(super) async fn start(
    native: &Arc<Native>,
    id: &SandboxId,
    machine: &Machine,
    (program, dir): (&Path, &Path),
    order: Order,
) -> Result<Caged> {
    let no_socket = |error: io::Error| failed("create", "its socket cannot be made").source(error);
    let listener = UnixListener::bind(dir.join(SOCKET)).map_err(no_socket)?;
    let spec = spec(machine, program, dir)?;
    let helper = Command::program([PROGRAM.to_owned(), "vmm".into(), format!("{DOOR}/{SOCKET}")]);
    let mut caged = Caged { cage: Cage::start(native, id, &spec, &helper).await?, process: 0 };
    let handed = timeout(PATIENCE, hand_over(listener, &order)).await;
    match handed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(process) => caged.process = process,
        Err(error) => return Err(caged.given_up(error).await),
    }
    std::fs::remove_file(dir.join(SOCKET)).map_err(no_socket)?;
    Ok(caged)
}

fn spec(machine: &Machine, program: &Path, dir: &Path) -> Result<SandboxSpec> {
    // The only files it can write are the disks.
    let disk = largest_disk(machine).max(1 << 20);
    Ok(SandboxSpec {
        mounts: vec![shown(program, PROGRAM, true)?, shown(dir, DOOR, true)?],
        limits: limits(machine, OVERHEAD, disk),
        ..SandboxSpec::default()
    })
}

/// Returns whom they were handed to, who becomes QEMU.
async fn hand_over(listener: UnixListener, order: &Order) -> io::Result<i32> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let (socket, _) = listener.accept().await?;
    let text = serde_json::to_vec(&order.words)?;
    socket.writable().await?;
    socket.try_io(tokio::io::Interest::WRITABLE, || send(&socket, &text, &order.files))?;
    Ok(socket_peercred(&socket)?.pid.as_raw_pid())
}

impl Caged {
    /// Why something failed, in its own words if it has any.
    pub(super) fn complaint(&self, operation: &'static str, error: io::Error) -> Error {
        let said = self.said();
        let message = match said.is_empty() {
            true => "QEMU does not do as it is told".to_owned(),
            false => format!("QEMU does not do as it is told: {said}"),
        };
        Error::new(ErrorCode::WallMissing, operation, message).backend(NAME).source(error)
    }

    /// Why it could not be started, when nothing of it is left.
    pub(super) async fn given_up(&self, error: io::Error) -> Error {
        let complaint = self.complaint("create", error);
        self.end().await.err().unwrap_or(complaint)
    }

    /// What it has complained of.
    pub(super) fn said(&self) -> String {
        self.cage.words.so_far()
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn end(&self) -> Result<()> {
        self.cage.end().await
    }
}
