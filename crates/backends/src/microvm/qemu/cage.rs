//! The walls around QEMU itself: a native sandbox with nothing of the host's but its system directories, no
//! network, and the memory of the guest and a little more. What it needs is handed in as open files.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use stockade_core::{
    Backend, Bytes, Command, Error, ErrorCode, HostPath, Limits, Mount, Process, ProcessControl,
    ProcessEvent, ProcessEvents, Result, Sandbox, SandboxId, SandboxSpec, StreamId,
};
use tokio::time::timeout;

use super::arguments::Order;
use crate::across::vmm::send;
use crate::linux::{self, lock};
use crate::microvm::driver::Machine;
use crate::microvm::{NAME, failed};
use crate::native::Native;

/// What QEMU takes beside the guest's memory: itself, its compiled code, its threads.
const OVERHEAD: u64 = 384 << 20;
const PROCESSES: u32 = 128;
/// How long the helper inside may take to come for the files.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where it finds its program and the socket.
const PROGRAM: &str = "/stockade/vmm";
const DOOR: &str = "/stockade/door";
const SOCKET: &str = "socket";
/// The most of its complaints that is kept.
const SAID: usize = 4096;

/// A QEMU that runs in its walls.
pub(super) struct Caged {
    native: Arc<Native>,
    id: SandboxId,
    /// Kept: without them it would be ended.
    _inside: Arc<dyn Sandbox>,
    _control: Arc<dyn ProcessControl>,
    said: Arc<Mutex<String>>,
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
    let admitted = linux::provisional(NAME, &spec)?;
    let inside = native.create(id, &admitted).await?;
    let limits = Limits { cpu_time: None, wall_time: None, ..*admitted.limits() };
    let argv = [PROGRAM.to_owned(), "vmm".into(), format!("{DOOR}/{SOCKET}")];
    let Process { events, control } = inside.spawn(&Command::program(argv), &limits).await?;
    let said = Arc::<Mutex<String>>::default();
    tokio::spawn(attend(events, Arc::clone(&said)));
    let mut caged = Caged {
        native: Arc::clone(native),
        id: id.clone(),
        _inside: inside,
        _control: control,
        said,
        process: 0,
    };
    let handed = timeout(PATIENCE, hand_over(listener, &order)).await;
    match handed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(process) => caged.process = process,
        Err(error) => return Err(caged.complaint("create", error)),
    }
    std::fs::remove_file(dir.join(SOCKET)).map_err(no_socket)?;
    Ok(caged)
}

fn spec(machine: &Machine, program: &Path, dir: &Path) -> Result<SandboxSpec> {
    let written = machine.disks.iter().filter(|disk| !disk.read_only);
    let sizes = written.map(|disk| std::fs::metadata(&disk.path).map_or(0, |found| found.len()));
    Ok(SandboxSpec {
        mounts: vec![shown(program, PROGRAM)?, shown(dir, DOOR)?],
        limits: Limits {
            memory: Some(Bytes(machine.memory.0.saturating_add(OVERHEAD))),
            processes: Some(PROCESSES),
            cpu_rate: machine.cpu_rate,
            // The only files it can write are the disks.
            disk: Some(Bytes(sizes.max().unwrap_or(0).max(1 << 20))),
            ..Limits::default()
        },
        ..SandboxSpec::default()
    })
}

fn shown(source: &Path, target: &str) -> Result<Mount> {
    let wrong = |error: String| Error::new(ErrorCode::Invalid, "create", error).backend(NAME);
    let source = HostPath::try_from(source.to_owned()).map_err(|error| wrong(error.to_string()))?;
    let target = target.parse().map_err(|error| wrong(format!("{error}")))?;
    Ok(Mount { source, target, read_only: true })
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

/// Keeps the last of what it complains of, until it ends.
async fn attend(mut events: Box<dyn ProcessEvents>, said: Arc<Mutex<String>>) {
    while let Some(event) = events.next().await {
        match event {
            ProcessEvent::Output(StreamId::Stdout | StreamId::Stderr, data) => {
                let mut said = lock(&said);
                if said.len() < SAID {
                    said.push_str(&String::from_utf8_lossy(&data).escape_debug().to_string());
                }
            }
            ProcessEvent::Exit(_) => return,
        }
    }
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

    /// What it has complained of.
    pub(super) fn said(&self) -> String {
        lock(&self.said).clone()
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) async fn end(&self) -> Result<()> {
        self.native.destroy(&self.id).await
    }
}
