//! QEMU's small machine: by the processor where KVM works, and else by software emulation, which works
//! anywhere and claims nothing.

mod arguments;
mod memory;
mod qemu_sandbox;
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
use stockade_launcher::copy_to_sealed_memfd;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::driver::{Driver, MachineSpec, Saved, Vm};
use super::{NAME, system_error};
use crate::linux::lock;
use crate::native::Native;
pub(super) use arguments::Power;
use arguments::{Ends, QemuArguments};
use memory::{Memories, SealedMemory};
use qemu_sandbox::SandboxedQemu;
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
    caged: SandboxedQemu,
    pipe: Mutex<Option<UnixStream>>,
    control: tokio::sync::Mutex<Qmp>,
    memory: Ram,
}

/// The memory of a machine.
enum Ram {
    /// What the guest writes shows in this file.
    Shared(Arc<OwnedFd>),
    /// What the guest writes is its own; the rest is this.
    Private(Arc<SealedMemory>),
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
pub(super) fn find_program() -> Option<&'static Path> {
    Some(Path::new(QEMU_PROGRAM)).filter(|path| path.is_file())
}

impl Qemu {
    /// In these walls, which show it what its power needs.
    pub(super) fn open(native: Arc<Native>, power: Power, helper: PathBuf) -> Result<Self> {
        if find_program().is_none() {
            let message = "qemu-system-x86_64 is not installed";
            return Err(Error::new(ErrorCode::Unavailable, "create", message)
                .backend(NAME)
                .remedy("install the package qemu-system-x86"));
        }
        let (memories, version) = (Memories::default(), OnceCell::new());
        Ok(Self { native, power, helper, memories, version })
    }

    async fn start_vm(
        &self,
        id: &SandboxId,
        machine: &MachineSpec,
        memory: Ram,
        further: impl FnOnce(&mut QemuArguments) -> io::Result<()>,
    ) -> Result<QemuVm> {
        let unusable =
            |error: io::Error| system_error("create", "it cannot be described").source(error);
        let (pipe, theirs) = Socket::pair().map_err(unusable)?;
        let (control, controlled) = Socket::pair().map_err(unusable)?;
        let ends = Ends {
            pipe: theirs.into(),
            control: controlled.into(),
            memory: memory.file().as_fd(),
            shared: matches!(memory, Ram::Shared(_)),
        };
        let mut order =
            QemuArguments::new(QEMU_PROGRAM, self.power, machine, ends).map_err(unusable)?;
        for (number, disk) in machine.disks.iter().enumerate() {
            let ways = if disk.read_only { &[false][..] } else { &[false, true] };
            let open = |write: &bool| File::options().read(true).write(*write).open(&disk.path);
            let opened: io::Result<Vec<_>> = ways.iter().map(|way| Ok(open(way)?.into())).collect();
            order.add_disk(number, opened.map_err(unusable)?, disk.read_only);
        }
        further(&mut order).map_err(unusable)?;
        let caged =
            qemu_sandbox::start_qemu(&self.native, id, machine, &self.helper, order).await?;
        let control = match into_async_stream(control) {
            Ok(stream) => Qmp::begin(stream).await,
            Err(error) => Err(error),
        };
        let control = match control {
            Ok(control) => control,
            Err(error) => return Err(caged.tear_down_with_error(error).await),
        };
        Ok(QemuVm {
            pipe: Mutex::new(Some(into_async_stream(pipe).map_err(unusable)?)),
            control: tokio::sync::Mutex::new(control),
            memory,
            caged,
        })
    }
}

fn into_async_stream(socket: Socket) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

fn memory_error(error: io::Error) -> Error {
    system_error("create", "the machine's memory cannot be allocated").source(error)
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
            system_error("create", "QEMU's version cannot be read").source(error)
        })
    }

    async fn boot(
        &self,
        id: &SandboxId,
        machine: &MachineSpec,
        _dir: &Path,
    ) -> Result<Box<dyn Vm>> {
        let memory =
            Ram::Shared(Arc::new(memory::create_memfd(machine.memory).map_err(memory_error)?));
        let vm = self
            .start_vm(id, machine, memory, |order| add_kernel_arguments(order, machine))
            .await?;
        Ok(Box::new(vm))
    }

    async fn resume(
        &self,
        id: &SandboxId,
        machine: &MachineSpec,
        saved: &Saved,
        _dir: &Path,
    ) -> Result<Box<dyn Vm>> {
        let memory = self.memories.get_or_create(saved, machine.memory).map_err(memory_error)?;
        let state = File::open(&saved.state).map_err(memory_error)?;
        let mut ways = Vec::new();
        let incoming = |order: &mut QemuArguments| {
            ways = add_incoming_state(order, &state)?;
            order.add_option("-incoming", "defer");
            order.add_option("-serial", "null");
            Ok(())
        };
        // It looks at its memory only when it is told to go on.
        let ram = Ram::Private(Arc::clone(&memory));
        let started = self.start_vm(id, machine, ram, incoming);
        let (vm, filled) = tokio::join!(started, memory.wait_until_filled());
        if filled.is_err() {
            self.memories.forget_memory(&memory);
        }
        let vm = vm?;
        let goes_on = match filled {
            Ok(()) => vm.load_state(&ways).await,
            Err(error) => Err(memory_error(error)),
        };
        if goes_on.is_err() {
            vm.end().await?;
        }
        goes_on.map(|()| Box::new(vm) as _)
    }
}

/// The fd set, none of a disk's, in which QEMU finds the state of its devices.
const STATE_FDSET_ID: usize = 100;

/// The ways in which QEMU may read the state of its devices: from a file that it opens by name, which older ones
/// (before 8.2) do not know, or from one that it is handed, which newer ones (11) refuse. In this order: the newer
/// ones take no second way after one that they have refused.
fn add_incoming_state(order: &mut QemuArguments, state: &File) -> io::Result<Vec<String>> {
    let handed = order.add_file(state.try_clone()?.into());
    let opened = order.add_fdset(state.try_clone()?.into(), STATE_FDSET_ID);
    Ok(vec![format!("file:{opened}"), format!("fd:{handed}")])
}

/// A kernel to start, in memory, so that nothing of the host has to be shown.
fn add_kernel_arguments(order: &mut QemuArguments, machine: &MachineSpec) -> io::Result<()> {
    for (name, path) in [("-kernel", &machine.kernel), ("-initrd", &machine.initramfs)] {
        let number =
            order.add_file(copy_to_sealed_memfd("stockade-kernel", &mut File::open(path)?)?);
        order.add_option(name, format!("/proc/self/fd/{number}"));
    }
    order.add_option("-append", machine.command_line.clone());
    // What the kernel says when it cannot start is said by who cannot start it.
    order.add_option("-serial", "stdio");
    Ok(())
}

impl QemuVm {
    async fn run_qmp_command(&self, operation: &'static str, command: &str) -> Result<()> {
        let asked = self.control.lock().await.run_command(command, Value::Null).await;
        asked.map(drop).map_err(|error| self.caged.describe_failure(operation, error))
    }

    /// Continues it from the state of its devices, in the first of these ways that it takes.
    async fn load_state(&self, ways: &[String]) -> Result<()> {
        let mut control = self.control.lock().await;
        let asked = control.try_each_value("migrate-incoming", "uri", ways).await;
        asked.map_err(|error| self.caged.describe_failure("create", error))
    }

    /// Stops it and writes the state of its devices: everything but memory and disks.
    async fn save_state(&self, path: &Path) -> io::Result<()> {
        let mut control = self.control.lock().await;
        control.run_command("stop", Value::Null).await?;
        let name = control.add_fd(File::create(path)?.into()).await?;
        // Named after what it was first made for; it serves any machine.
        control
            .run_command("xen-save-devices-state", json!({ "filename": name, "live": false }))
            .await?;
        control.remove_fd(&name).await
    }
}

#[async_trait]
impl Vm for QemuVm {
    async fn connect(&self) -> Result<UnixStream> {
        let pipe = lock(&self.pipe).take();
        pipe.ok_or_else(|| system_error("connect", "its port is in use already"))
    }

    async fn pause(&self) -> Result<()> {
        self.run_qmp_command("pause", "stop").await
    }

    async fn unpause(&self) -> Result<()> {
        self.run_qmp_command("resume", "cont").await
    }

    async fn save(&self, into: &Path) -> Result<()> {
        let saved = Saved::within(into);
        let failed = |error: io::Error| self.caged.describe_failure("snapshot", error);
        self.save_state(&saved.state).await.map_err(failed)?;
        let process = self.caged.process;
        let kept = match &self.memory {
            Ram::Shared(memory) => {
                let memory = Arc::clone(memory);
                spawn_blocking(move || memory::save_all_pages(&memory, &saved))
            }
            Ram::Private(memory) => {
                let memory = Arc::clone(memory);
                spawn_blocking(move || memory.save_dirty_pages(process, &saved))
            }
        };
        kept.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(memory_error)
    }

    fn can_be_captured(&self) -> bool {
        memory::is_memory_readable(self.caged.process)
    }

    fn said(&self) -> String {
        self.caged.output_so_far()
    }

    async fn wait_for_end(&self) {
        self.caged.wait_for_end().await;
    }

    async fn end(&self) -> Result<()> {
        self.caged.tear_down().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_that_newer_versions_of_qemu_take_is_tried_first() {
        let mut order = QemuArguments { words: Vec::new(), files: Vec::new() };
        let ways = add_incoming_state(&mut order, &tempfile::tempfile().unwrap()).unwrap();
        let schemes: Vec<_> = ways.iter().map(|way| way.split(':').next().unwrap()).collect();
        assert_eq!(schemes, ["file", "fd"]);
        // One file for each: they have a position of their own.
        assert_eq!(order.files.len(), 2);
    }
}
