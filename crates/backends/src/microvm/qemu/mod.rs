//! QEMU's small machine: by the processor where KVM works, and else by software emulation, which works
//! anywhere and claims nothing.

mod arguments;
mod cage;
mod memory;
mod qmp;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use stockade_core::{Boundary, Error, ErrorCode, Result, SandboxId};
use stockade_launcher::seal;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::driver::{Driver, Machine, Saved, Vm};
use super::{NAME, failed};
use crate::linux::lock;
use crate::native::Native;
pub(super) use arguments::Power;
use arguments::{Ends, Order};
use cage::Caged;
use memory::{Memories, Memory};
use qmp::Qmp;

/// QEMU's program, which the walls show where the host has it.
const QEMU_PROGRAM: &str = "/usr/bin/qemu-system-x86_64";

/// Timeout of the request for QEMU's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The driver.
pub(super) struct Qemu {
    native: Arc<Native>,
    power: Power,
    /// What starts it inside its walls.
    helper: PathBuf,
    memories: Memories,
    version: OnceCell<String>,
}

/// One machine.
struct QemuVm {
    caged: Caged,
    pipe: Mutex<Option<UnixStream>>,
    control: tokio::sync::Mutex<Qmp>,
    memory: Ram,
}

/// The memory of a machine.
enum Ram {
    /// What the guest writes shows in this file.
    Shared(Arc<OwnedFd>),
    /// What the guest writes is its own; the rest is this.
    Private(Arc<Memory>),
}

impl Ram {
    fn file(&self) -> &OwnedFd {
        match self {
            Self::Shared(file) => file,
            Self::Private(memory) => &memory.file,
        }
    }
}

/// Where the program lies, if it is installed.
pub(super) fn program() -> Option<&'static Path> {
    Some(Path::new(QEMU_PROGRAM)).filter(|path| path.is_file())
}

impl Qemu {
    /// In these walls, which show it what its power needs.
    pub(super) fn open(native: Arc<Native>, power: Power, helper: PathBuf) -> Result<Self> {
        if program().is_none() {
            let message = "qemu-system-x86_64 is not installed";
            return Err(Error::new(ErrorCode::Unavailable, "create", message)
                .backend(NAME)
                .remedy("install the package qemu-system-x86"));
        }
        let (memories, version) = (Memories::default(), OnceCell::new());
        Ok(Self { native, power, helper, memories, version })
    }

    async fn start(
        &self,
        id: &SandboxId,
        machine: &Machine,
        memory: Ram,
        further: impl FnOnce(&mut Order) -> io::Result<()>,
    ) -> Result<QemuVm> {
        let unusable = |error: io::Error| failed("create", "it cannot be described").source(error);
        let (pipe, theirs) = Socket::pair().map_err(unusable)?;
        let (control, controlled) = Socket::pair().map_err(unusable)?;
        let ends = Ends {
            pipe: theirs.into(),
            control: controlled.into(),
            memory: memory.file().as_fd(),
            shared: matches!(memory, Ram::Shared(_)),
        };
        let mut order = Order::new(QEMU_PROGRAM, self.power, machine, ends).map_err(unusable)?;
        for (number, disk) in machine.disks.iter().enumerate() {
            let ways = if disk.read_only { &[false][..] } else { &[false, true] };
            let open = |write: &bool| File::options().read(true).write(*write).open(&disk.path);
            let opened: io::Result<Vec<_>> = ways.iter().map(|way| Ok(open(way)?.into())).collect();
            order.disk(number, opened.map_err(unusable)?, disk.read_only);
        }
        further(&mut order).map_err(unusable)?;
        let caged = cage::start(&self.native, id, machine, &self.helper, order).await?;
        let control = match stream(control) {
            Ok(stream) => Qmp::begin(stream).await,
            Err(error) => Err(error),
        };
        let control = match control {
            Ok(control) => control,
            Err(error) => return Err(caged.given_up(error).await),
        };
        Ok(QemuVm {
            pipe: Mutex::new(Some(stream(pipe).map_err(unusable)?)),
            control: tokio::sync::Mutex::new(control),
            memory,
            caged,
        })
    }
}

fn stream(socket: Socket) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

fn no_memory(error: io::Error) -> Error {
    failed("create", "the machine's memory cannot be had").source(error)
}

#[async_trait]
impl Driver for Qemu {
    fn boundary(&self) -> Boundary {
        match self.power {
            Power::Processor => Boundary::Hardware,
            Power::Software => Boundary::Emulated,
        }
    }

    /// The kind of machine has no versions of its own: what it saves is that program's alone.
    async fn version(&self) -> Result<String> {
        let ask = || async {
            let mut asked = tokio::process::Command::new(QEMU_PROGRAM);
            asked.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
            let said =
                timeout(VERSION_TIMEOUT, asked.output()).await.map_err(io::Error::from)??;
            let said = String::from_utf8_lossy(&said.stdout);
            let said = said.lines().next().unwrap_or_default().escape_debug().to_string();
            Ok(format!("{said}, {:?}", self.power))
        };
        let version = self.version.get_or_try_init(ask).await;
        version.cloned().map_err(|error: io::Error| {
            failed("create", "QEMU does not say which version it is").source(error)
        })
    }

    async fn boot(&self, id: &SandboxId, machine: &Machine, _dir: &Path) -> Result<Box<dyn Vm>> {
        let memory = Ram::Shared(Arc::new(memory::sized(machine.memory).map_err(no_memory)?));
        let vm =
            self.start(id, machine, memory, |order| add_kernel_arguments(order, machine)).await?;
        Ok(Box::new(vm))
    }

    async fn resume(
        &self,
        id: &SandboxId,
        machine: &Machine,
        saved: &Saved,
        _dir: &Path,
    ) -> Result<Box<dyn Vm>> {
        let memory = self.memories.of(saved, machine.memory).map_err(no_memory)?;
        let state = File::open(&saved.state).map_err(no_memory)?;
        let mut ways = Vec::new();
        let incoming = |order: &mut Order| {
            ways = incoming_ways(order, &state)?;
            order.pair("-incoming", "defer");
            order.pair("-serial", "null");
            Ok(())
        };
        // It looks at its memory only when it is told to go on.
        let ram = Ram::Private(Arc::clone(&memory));
        let started = self.start(id, machine, ram, incoming);
        let (vm, filled) = tokio::join!(started, memory.filled());
        if filled.is_err() {
            self.memories.forget(&memory);
        }
        let vm = vm?;
        let goes_on = match filled {
            Ok(()) => vm.go_on_from(&ways).await,
            Err(error) => Err(no_memory(error)),
        };
        if goes_on.is_err() {
            vm.end().await?;
        }
        goes_on.map(|()| Box::new(vm) as _)
    }
}

/// The fd set, none of a disk's, in which QEMU finds the state of its devices.
const STATE_FDSET_ID: usize = 100;

/// The ways in which QEMU may read the state of its devices: from a file that it is handed, which newer ones
/// (11) refuse, or from one that it opens by name, which older ones (before 8.2) do not know.
fn incoming_ways(order: &mut Order, state: &File) -> io::Result<Vec<String>> {
    let handed = order.give(state.try_clone()?.into());
    let opened = order.give_to_open(state.try_clone()?.into(), STATE_FDSET_ID);
    Ok(vec![format!("fd:{handed}"), format!("file:{opened}")])
}

/// A kernel to start, in memory, so that nothing of the host has to be shown.
fn add_kernel_arguments(order: &mut Order, machine: &Machine) -> io::Result<()> {
    for (name, path) in [("-kernel", &machine.kernel), ("-initrd", &machine.initramfs)] {
        let number = order.give(seal("stockade-kernel", &mut File::open(path)?)?);
        order.pair(name, format!("/proc/self/fd/{number}"));
    }
    order.pair("-append", machine.command_line.clone());
    // What the kernel says when it cannot start is said by who cannot start it.
    order.pair("-serial", "stdio");
    Ok(())
}

impl QemuVm {
    async fn ask(&self, operation: &'static str, command: &str) -> Result<()> {
        let asked = self.control.lock().await.ask(command, Value::Null).await;
        asked.map(drop).map_err(|error| self.caged.complaint(operation, error))
    }

    /// Continues it from the state of its devices, in the first of these ways that it takes.
    async fn go_on_from(&self, ways: &[String]) -> Result<()> {
        let mut control = self.control.lock().await;
        let asked = control.first_taken("migrate-incoming", "uri", ways).await;
        asked.map_err(|error| self.caged.complaint("create", error))
    }

    /// Stops it and writes the state of its devices: everything but memory and disks.
    async fn save_state(&self, path: &Path) -> io::Result<()> {
        let mut control = self.control.lock().await;
        control.ask("stop", Value::Null).await?;
        let name = control.give(File::create(path)?.into()).await?;
        // Named after what it was first made for; it serves any machine.
        control.ask("xen-save-devices-state", json!({ "filename": name, "live": false })).await?;
        control.take_back(&name).await
    }
}

#[async_trait]
impl Vm for QemuVm {
    async fn connect(&self) -> Result<UnixStream> {
        let pipe = lock(&self.pipe).take();
        pipe.ok_or_else(|| failed("connect", "its port is in use already"))
    }

    async fn pause(&self) -> Result<()> {
        self.ask("pause", "stop").await
    }

    async fn unpause(&self) -> Result<()> {
        self.ask("resume", "cont").await
    }

    async fn save(&self, into: &Path) -> Result<()> {
        let saved = Saved::within(into);
        let failed = |error: io::Error| self.caged.complaint("snapshot", error);
        self.save_state(&saved.state).await.map_err(failed)?;
        let process = self.caged.process;
        let kept = match &self.memory {
            Ram::Shared(memory) => {
                let memory = Arc::clone(memory);
                spawn_blocking(move || memory::keep_all(&memory, &saved))
            }
            Ram::Private(memory) => {
                let memory = Arc::clone(memory);
                spawn_blocking(move || memory.keep_touched(process, &saved))
            }
        };
        kept.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(no_memory)
    }

    fn can_be_captured(&self) -> bool {
        memory::is_seen(self.caged.process)
    }

    fn said(&self) -> String {
        self.caged.said()
    }

    async fn end(&self) -> Result<()> {
        self.caged.end().await
    }
}
