//! QEMU's small machine, by software emulation: works anywhere, and claims nothing.

mod arguments;
mod cage;
mod qmp;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::{Value, json};
use stockade_core::{Boundary, Bytes, Error, Feature, Result, SandboxId};
use stockade_launcher::seal;
use tokio::net::UnixStream;

use super::driver::{Driver, Machine, Saved, Vm};
use super::{failed, sparse};
use crate::linux::lock;
use crate::native::Native;
use arguments::{Ends, Order};
use cage::Caged;
use qmp::Qmp;

/// The program, which the walls show where the host has it.
const PROGRAM: &str = "/usr/bin/qemu-system-x86_64";

/// The driver.
pub(super) struct Qemu {
    native: Arc<Native>,
    /// What starts it inside its walls.
    helper: PathBuf,
    /// Memory that machines are copies of, by where it was saved.
    memories: Mutex<HashMap<PathBuf, Arc<OwnedFd>>>,
}

/// One machine.
struct QemuVm {
    caged: Caged,
    pipe: Mutex<Option<UnixStream>>,
    control: tokio::sync::Mutex<Qmp>,
    /// The memory, where what the guest writes shows in it.
    memory: Option<Arc<OwnedFd>>,
}

/// Where the program lies, if it is installed.
pub(super) fn program() -> Option<&'static Path> {
    Some(Path::new(PROGRAM)).filter(|path| path.is_file())
}

impl Qemu {
    pub(super) fn new(native: Arc<Native>, helper: PathBuf) -> Self {
        Self { native, helper, memories: Mutex::default() }
    }

    /// The memory that was saved, as nobody can change it any more. Copies of a machine share it.
    fn memory(&self, path: &Path) -> io::Result<Arc<OwnedFd>> {
        if let Some(known) = lock(&self.memories).get(path) {
            return Ok(Arc::clone(known));
        }
        let memory = memfd()?;
        sparse::copy(&File::open(path)?, &memory)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals)?;
        let memory = Arc::new(memory);
        lock(&self.memories).insert(path.to_owned(), Arc::clone(&memory));
        Ok(memory)
    }

    async fn start(
        &self,
        id: &SandboxId,
        machine: &Machine,
        memory: Arc<OwnedFd>,
        dir: &Path,
        further: impl FnOnce(&mut Order) -> io::Result<()>,
        shared: bool,
    ) -> Result<QemuVm> {
        let unusable = |error: io::Error| failed("create", "it cannot be described").source(error);
        let (pipe, theirs) = Socket::pair().map_err(unusable)?;
        let (control, controlled) = Socket::pair().map_err(unusable)?;
        let ends = Ends {
            pipe: theirs.into(),
            control: controlled.into(),
            memory: memory.as_fd(),
            shared,
        };
        let mut order = Order::new(PROGRAM, machine, ends).map_err(unusable)?;
        for (number, disk) in machine.disks.iter().enumerate() {
            let ways = if disk.read_only { &[false][..] } else { &[false, true] };
            let open = |write: &bool| File::options().read(true).write(*write).open(&disk.path);
            let opened: io::Result<Vec<_>> = ways.iter().map(|way| Ok(open(way)?.into())).collect();
            order.disk(number, opened.map_err(unusable)?, disk.read_only);
        }
        further(&mut order).map_err(unusable)?;
        let caged = cage::start(&self.native, id, machine, (&self.helper, dir), order).await?;
        let control = match stream(control) {
            Ok(stream) => Qmp::begin(stream).await,
            Err(error) => Err(error),
        };
        let control = control.map_err(|error| caged.complaint("create", error))?;
        Ok(QemuVm {
            pipe: Mutex::new(Some(stream(pipe).map_err(unusable)?)),
            control: tokio::sync::Mutex::new(control),
            memory: Some(memory).filter(|_| shared),
            caged,
        })
    }
}

fn memfd() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create("stockade-memory", flags)?)
}

fn stream(socket: Socket) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

fn sized(size: Bytes) -> io::Result<OwnedFd> {
    let memory = memfd()?;
    ftruncate(&memory, size.0)?;
    Ok(memory)
}

fn no_memory(error: io::Error) -> Error {
    failed("create", "the machine's memory cannot be had").source(error)
}

#[async_trait]
impl Driver for Qemu {
    fn boundary(&self) -> Boundary {
        Boundary::Emulated
    }

    async fn boot(&self, id: &SandboxId, machine: &Machine, dir: &Path) -> Result<Box<dyn Vm>> {
        let memory = Arc::new(sized(machine.memory).map_err(no_memory)?);
        let vm = self.start(id, machine, memory, dir, |order| kernel(order, machine), true).await?;
        Ok(Box::new(vm))
    }

    async fn resume(
        &self,
        id: &SandboxId,
        machine: &Machine,
        saved: &Saved,
        dir: &Path,
    ) -> Result<Box<dyn Vm>> {
        let memory = self.memory(&saved.memory).map_err(no_memory)?;
        let state = File::open(&saved.state).map_err(no_memory)?;
        let incoming = |order: &mut Order| {
            let number = order.give(state.into());
            order.pair("-incoming", format!("fd:{number}"));
            order.pair("-serial", "null");
            Ok(())
        };
        Ok(Box::new(self.start(id, machine, memory, dir, incoming, false).await?))
    }
}

/// A kernel to start, in memory, so that nothing of the host has to be shown.
fn kernel(order: &mut Order, machine: &Machine) -> io::Result<()> {
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

    /// Stops it and writes the state of its devices: everything but memory and disks.
    async fn save_state(&self, path: &Path) -> io::Result<()> {
        let mut control = self.control.lock().await;
        control.ask("stop", Value::Null).await?;
        let name = control.give(File::create(path)?.into()).await?;
        // Named after what it was first made for; it serves any machine.
        control.ask("xen-save-devices-state", json!({ "filename": name })).await?;
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
        let Some(memory) = self.memory.clone() else {
            return Err(Error::unsupported("snapshot", Feature::FullSnapshot));
        };
        let copied = tokio::task::spawn_blocking(move || {
            let memory = File::from(memory.try_clone()?);
            sparse::copy(&memory, File::create(&saved.memory)?)
        });
        let copied = copied.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        copied.map(drop).map_err(no_memory)
    }

    fn said(&self) -> String {
        self.caged.said()
    }

    async fn end(&self) -> Result<()> {
        self.caged.end().await
    }
}
